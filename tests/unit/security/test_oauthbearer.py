from __future__ import annotations

import base64
import hmac
import json
import time
from pathlib import Path
from typing import Any

import pytest

from llog.security.oauthbearer import TOKEN_BYTES_MAX, TokenVerifier, parse_bearer, parse_keys
from llog.security.scram import AuthenticationFailed

jwt = pytest.importorskip("jwt", reason="the extra oauth is not installed")
ec = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")
rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")

EC_KEY = ec.generate_private_key(ec.SECP256R1())
OTHER_KEY = ec.generate_private_key(ec.SECP256R1())
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
ISSUER, AUDIENCE = "https://id.example", "llog"


def public(key: Any, kid: str, algorithm: Any) -> dict[str, Any]:
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig"}


def jwks() -> bytes:
    keys = [
        public(EC_KEY, "ec", jwt.algorithms.ECAlgorithm),
        public(RSA_KEY, "rsa", jwt.algorithms.RSAAlgorithm),
        {"kty": "oct", "k": "c2VjcmV0", "kid": "shared", "alg": "HS256"},
    ]
    return json.dumps({"keys": keys}).encode()


@pytest.fixture
def verifier(tmp_path: Path) -> TokenVerifier:
    (tmp_path / "jwks.json").write_bytes(jwks())
    made = TokenVerifier(str(tmp_path / "jwks.json"), issuer=ISSUER, audience=AUDIENCE, clock_skew_ms=1_000)
    made.read_keys()
    return made


def token(key: Any = EC_KEY, kid: str | None = "ec", algorithm: str = "ES256", **changed: Any) -> str:
    now = int(time.time())
    claims = {"sub": "ada", "iss": ISSUER, "aud": AUDIENCE, "exp": now + 60, "iat": now} | changed
    claims = {name: value for name, value in claims.items() if value is not None}
    return str(jwt.encode(claims, key, algorithm=algorithm, headers={} if kid is None else {"kid": kid}))


def test_tokens_of_the_provider_are_accepted(verifier: TokenVerifier) -> None:
    assert verifier.verify(token()).subject == "ada"
    assert verifier.verify(token(RSA_KEY, "rsa", "RS256")).subject == "ada"
    assert verifier.verify(token(), "ada").subject == "ada"
    assert abs(verifier.verify(token()).expires_at_ms - time.time() * 1_000 - 60_000) < 5_000


def signed_with_the_public_key() -> str:
    """By hand, because the library refuses to sign so."""
    _, payload, _ = token().split(".")
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"rsa"}').rstrip(b"=").decode()
    encoding, kind = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    secret = RSA_KEY.public_key().public_bytes(encoding, kind)
    signature = hmac.digest(secret, f"{header}.{payload}".encode(), "sha256")
    return f"{header}.{payload}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


@pytest.mark.parametrize(
    "made",
    [
        lambda: token(exp=int(time.time()) - 60),
        lambda: token(exp=None),
        lambda: token(nbf=int(time.time()) + 600),
        lambda: token(iss="https://other.example"),
        lambda: token(iss=None),
        lambda: token(aud="other"),
        lambda: token(aud=None),
        lambda: token(sub=None),
        lambda: token(sub=""),
        lambda: token(sub="a\nb"),
        lambda: token(OTHER_KEY),
        lambda: token(OTHER_KEY, "unknown"),
        lambda: token(EC_KEY, None),
        lambda: token("", "ec", "none"),
        lambda: token("secret" * 10, "shared", "HS256"),
        # The public key as a shared secret: the classic confusion of algorithms.
        lambda: signed_with_the_public_key(),
        lambda: token() + "x",
        lambda: token().rpartition(".")[0] + ".",
        lambda: "a.b.c",
        lambda: "",
    ],
)
def test_any_other_token_is_refused(verifier: TokenVerifier, made: Any) -> None:
    with pytest.raises(AuthenticationFailed):
        verifier.verify(made())


def test_a_client_cannot_act_as_another_user(verifier: TokenVerifier) -> None:
    with pytest.raises(AuthenticationFailed):
        verifier.verify(token(), "root")


def test_keys_are_read_again_for_a_token_with_an_unknown_key_but_not_too_often(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks())
    verifier = TokenVerifier(str(path), issuer=ISSUER, audience=AUDIENCE, clock_skew_ms=0, monotonic_ms=lambda: now[0])
    assert verifier.needs_keys(token())
    verifier.read_keys()
    assert not verifier.needs_keys(token())
    assert not verifier.needs_keys(token(OTHER_KEY, "new"))  # it was read just now
    now[0] = 10_001
    assert verifier.needs_keys(token(OTHER_KEY, "new"))
    assert not verifier.needs_keys(token())
    now[0] = 300_001
    assert verifier.needs_keys(token())
    path.write_text("{}")
    with pytest.raises(AuthenticationFailed):
        verifier.read_keys()
    assert verifier.verify(token()).subject == "ada"


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"keys": []}', b'{"keys": [{"kty": "oct", "k": "AA"}]}'])
def test_a_document_without_usable_keys_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_keys(text)


def test_the_message_is_parsed_strictly() -> None:
    assert parse_bearer(b"n,,\x01auth=Bearer abc\x01\x01") == ("abc", "")
    assert parse_bearer(b"n,a=ada,\x01auth=bearer abc\x01host=x\x01\x01") == ("abc", "ada")
    for wrong in (
        b"",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer abc\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
        b"y,,\x01auth=Bearer abc\x01\x01",
        b"n,,\x01auth=Bearer " + b"a" * TOKEN_BYTES_MAX + b"\x01\x01",
    ):
        with pytest.raises(AuthenticationFailed):
            parse_bearer(wrong)
