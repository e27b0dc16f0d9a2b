from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from llog.security.records import HttpToken, ScramCredential, UserRecord
from llog.security.scram import (
    AuthenticationFailed,
    ScramServer,
    credential_of,
    fake_credential,
    is_password,
    parse_client_first,
    salted_password,
)

# RFC 5802 section 5, and RFC 7677 section 3: user `user`, password `pencil`.
VECTORS = {
    "sha1": (
        "QSXCR+Q6sek8bf92",
        "fyko+d2lbbFgONRv9qkxdawL",
        "3rfcNHYJY1ZVvWVs7j",
        "v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        "rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    ),
    "sha256": (
        "W22ZaJ0SNY7soEsUEjb6gQ==",
        "rOprNGfwEbeRWgbNEkqO",
        "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
}


def server(hash_name: str = "sha256", *, is_known: bool = True) -> ScramServer:
    salt, client_nonce, nonce, _, _ = VECTORS[hash_name]
    decoded = base64.b64decode(salt)
    credential = credential_of(salted_password(b"pencil", decoded, 4096, hash_name), decoded, 4096, hash_name)
    first = parse_client_first(f"n,,n=user,r={client_nonce}".encode())
    return ScramServer(hash_name, first, credential, is_known=is_known, nonce=nonce)


def final(hash_name: str = "sha256", **changed: str) -> bytes:
    _, client_nonce, nonce, proof, _ = VECTORS[hash_name]
    fields = {"c": "biws", "r": client_nonce + nonce, "p": proof} | changed
    return ",".join(f"{name}={value}" for name, value in fields.items() if value != "-").encode()


@pytest.mark.parametrize("hash_name", VECTORS)
def test_the_exchanges_of_the_rfcs_succeed(hash_name: str) -> None:
    salt, client_nonce, nonce, _, verifier = VECTORS[hash_name]
    exchange = server(hash_name)
    assert exchange.server_first == f"r={client_nonce}{nonce},s={salt},i=4096"
    assert exchange.finish(final(hash_name)) == f"v={verifier}".encode()


def test_a_final_message_is_accepted_once() -> None:
    exchange = server()
    exchange.finish(final())
    with pytest.raises(AuthenticationFailed):
        exchange.finish(final())


def test_the_right_proof_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(AuthenticationFailed, match="authentication failed"):
        server(is_known=False).finish(final())


@pytest.mark.parametrize(
    "changed",
    [
        {"p": base64.b64encode(bytes(32)).decode()},
        {"p": base64.b64encode(bytes(31)).decode()},
        {"p": "!"},
        {"p": "-"},
        {"r": "other"},
        {"r": "rOprNGfwEbeRWgbNEkqO"},
        {"c": "eSws"},
        {"c": "-"},
        {"m": "1"},
    ],
)
def test_a_changed_final_message_is_refused(changed: dict[str, str]) -> None:
    fields = {"c": "biws", "r": "x"} | changed
    with pytest.raises(AuthenticationFailed):
        server().finish(final(**changed) if "m" not in changed else f"m=1,{final().decode()}".encode())
    assert fields


def test_every_truncation_of_a_final_message_is_refused() -> None:
    message = final()
    for length in range(len(message)):
        with pytest.raises(AuthenticationFailed):
            server().finish(message[:length])


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=user",
        b"n,,n=,r=abc",
        b"n,,r=abc,n=user",
        b"p=tls-unique,,n=user,r=abc",
        b"x,,n=user,r=abc",
        b"n,a=other,n=user,r=abc",
        b"n,b=user,n=user,r=abc",
        b"n,,m=1,n=user,r=abc",
        b"n,,n=us=er,r=abc",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,n=user,r=abc,m=ext",
        b"n,,n=user,r=abc,tokenauth=true",
        b"n,,n=us\xffer,r=abc",
        b"n,,n=us\x00er,r=abc",
        b"n,,n=" + b"u" * 5_000 + b",r=abc",
    ],
)
def test_a_first_message_that_is_not_understood_is_refused(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        parse_client_first(message)


def test_names_are_decoded_and_optional_extensions_ignored() -> None:
    first = parse_client_first(b"y,a=a=2Cb=3D,n=a=2Cb=3D,r=abc,tokenauth=false,x=1")
    assert (first.user, first.nonce, first.gs2_header) == ("a,b=", "abc", "y,a=a=2Cb=3D,")


def test_unknown_users_get_the_same_salt_every_time_and_look_like_others() -> None:
    def fake(user: str, mechanism: str = "SCRAM-SHA-512", key: bytes = b"k" * 32) -> ScramCredential:
        return fake_credential(key, user, mechanism, iterations=4096, salt_bytes=64)

    first = fake("ada")
    assert (first.salt, len(first.salt), first.iterations) == (fake("ada").salt, 64, 4096)
    assert len({first.salt, fake("bob").salt, fake("ada", "SCRAM-SHA-256").salt, fake("ada", key=b"x").salt}) == 4


def test_a_password_is_verified_against_the_stored_keys() -> None:
    credential = credential_of(salted_password(b"pencil", b"salt", 10, "sha512"), b"salt", 10, "sha512")
    assert is_password(b"pencil", credential, "sha512")
    assert not is_password(b"pencil ", credential, "sha512")
    client_key = hmac.digest(salted_password(b"pencil", b"salt", 10, "sha512"), b"Client Key", "sha512")
    assert credential.stored_key == hashlib.sha512(client_key).digest()


def test_no_verifier_is_shown() -> None:
    credential = ScramCredential(b"salt-0", 4096, b"stored-1", b"server-2")
    token = HttpToken(name="ci", digest=b"digest-3", created_at_ms=0)
    text = repr(UserRecord(scram={"SCRAM-SHA-256": credential}, tokens=(token,)))
    assert not [secret for secret in ("salt-0", "stored-1", "server-2", "digest-3") if secret in text]
    assert "4096" in text
