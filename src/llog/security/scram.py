"""SCRAM (RFC 5802, RFC 7677), the server's side: one exchange is four messages, each understood completely or refused.

An exchange with a user that does not exist goes on to the end with a salt that only the cluster can make, so that it
looks like one with a wrong password. Channel binding is not offered, and a client that asks for it is refused, as is a
message out of order, repeated, or with anything in it that this side would have to understand and does not.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import Final, NamedTuple

from llog.errors import RequestUnauthenticated
from llog.security.records import ScramCredential

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
"""Kafka's bounds."""
ITERATIONS_DEFAULT: Final = 8_192
SALT_BYTES: Final = 24
SCRAM_MESSAGE_BYTES_MAX: Final = 4_096
_NONCE: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]{1,256}")
_REFUSED: Final = "authentication failed"


class AuthenticationFailed(RequestUnauthenticated):
    """Nothing about why: the client learns no more than that. `detail` is for the log, and holds no secret."""

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(_REFUSED)


def salted_password(password: bytes, salt: bytes, iterations: int, hash_name: str) -> bytes:
    return hashlib.pbkdf2_hmac(hash_name, password, salt, iterations)


def credential_of(salted: bytes, salt: bytes, iterations: int, hash_name: str) -> ScramCredential:
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    return ScramCredential(salt, iterations, stored_key, hmac.digest(salted, b"Server Key", hash_name))


def is_password(password: bytes, credential: ScramCredential, hash_name: str) -> bool:
    """Takes as long as the iterations say, whatever the answer."""
    salted = salted_password(password, credential.salt, credential.iterations, hash_name)
    derived = credential_of(salted, credential.salt, credential.iterations, hash_name)
    return hmac.compare_digest(derived.stored_key, credential.stored_key)


class ClientFirst(NamedTuple):
    gs2_header: str
    user: str
    nonce: str
    bare: str


def parse_client_first(message: bytes) -> ClientFirst:
    text = _text(message)
    flag, _, rest = text.partition(",")
    if flag.startswith("p="):
        raise AuthenticationFailed("the client asks for channel binding, which is not offered")
    if flag not in ("n", "y"):
        raise AuthenticationFailed("the first message has no channel binding flag")
    authorized, comma, bare = rest.partition(",")
    if not comma or (authorized and not authorized.startswith("a=")):
        raise AuthenticationFailed("the first message has no valid header")
    fields = bare.split(",")
    if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r="):
        raise AuthenticationFailed("the first message has no user and nonce")
    if any(not _is_known_extension(field) for field in fields[2:]):
        raise AuthenticationFailed("the first message has an extension that is not supported")
    user, nonce = _name(fields[0][2:]), fields[1][2:]
    if not _NONCE.fullmatch(nonce):
        raise AuthenticationFailed("the nonce is not valid")
    if authorized and _name(authorized[2:]) != user:
        raise AuthenticationFailed("the client asks to act as another user")
    return ClientFirst(f"{flag},{authorized},", user, nonce, bare)


def _is_known_extension(field: str) -> bool:
    """Optional ones are ignored; delegation tokens, and whatever must be understood, are not."""
    name, equals, value = field.partition("=")
    if not equals or not name.isalpha() or name == "m":
        return False
    return name != "tokenauth" or value.lower() == "false"


def _name(text: str) -> str:
    if not text or re.search("=(?!2C|3D)", text):
        raise AuthenticationFailed("the user's name is not encoded validly")
    return text.replace("=2C", ",").replace("=3D", "=")


def _text(message: bytes) -> str:
    if len(message) > SCRAM_MESSAGE_BYTES_MAX:
        raise AuthenticationFailed("a message is too long")
    try:
        text = bytes(message).decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed("a message is not UTF-8") from None
    if "\x00" in text:
        raise AuthenticationFailed("a message holds a zero byte")
    return text


class ScramServer:
    """After the client's first message. `credential` is a fake one where `is_known` is False."""

    def __init__(
        self, mechanism: str, first: ClientFirst, credential: ScramCredential, *, is_known: bool, nonce: str
    ) -> None:
        """`nonce`: this side's part, random."""
        self.user = first.user
        self._hash, self._first, self._credential, self._is_known = (
            _hash_name(mechanism),
            first,
            credential,
            is_known,
        )
        self._nonce = first.nonce + nonce
        salt = base64.b64encode(credential.salt).decode()
        self.server_first: str = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._is_over = False

    def finish(self, message: bytes) -> bytes:
        """The server's final message; the client knows the password. `AuthenticationFailed`, also when repeated."""
        if self._is_over:
            raise AuthenticationFailed("the exchange is over")
        self._is_over = True
        without_proof, proof = self._parse(_text(message))
        auth_message = f"{self._first.bare},{self.server_first},{without_proof}".encode()
        credential = self._credential
        signature = hmac.digest(credential.stored_key, auth_message, self._hash)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), credential.stored_key)
        if not (is_right and self._is_known):
            raise AuthenticationFailed("unknown user or wrong password")
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, auth_message, self._hash))

    def _parse(self, text: str) -> tuple[str, bytes]:
        fields = text.split(",")
        without_proof, _, proof_field = text.rpartition(",")
        if len(fields) < 3 or not fields[0].startswith("c=") or not fields[1].startswith("r="):
            raise AuthenticationFailed("the final message is not complete")
        if any(not _is_known_extension(field) for field in fields[2:-1]):
            raise AuthenticationFailed("the final message has an extension that is not supported")
        binding = base64.b64encode(self._first.gs2_header.encode()).decode()
        if not hmac.compare_digest(fields[0][2:].encode(), binding.encode()):
            raise AuthenticationFailed("the channel binding is not that of the first message")
        if not hmac.compare_digest(fields[1][2:].encode(), self._nonce.encode()):
            raise AuthenticationFailed("the nonce is not that of this exchange")
        if not proof_field.startswith("p="):
            raise AuthenticationFailed("the final message has no proof")
        try:
            proof = base64.b64decode(proof_field[2:], validate=True)
        except binascii.Error:
            raise AuthenticationFailed("the proof is not base64") from None
        if len(proof) != hashlib.new(self._hash).digest_size:
            raise AuthenticationFailed("the proof has another length")
        return without_proof, proof


def _hash_name(mechanism: str) -> str:
    """Of the hash function of a mechanism."""
    return HASHES.get(mechanism, mechanism)


def fake_credential(
    salt_key: bytes, user: str, mechanism: str, *, iterations: int, salt_bytes: int = SALT_BYTES
) -> ScramCredential:
    """What an unknown user is answered with: always the same salt, which nobody without the key can tell from a real
    one, and keys that no password has."""
    hash_name = _hash_name(mechanism)
    salt, counter = b"", 0
    while len(salt) < salt_bytes:
        salt += hmac.digest(salt_key, f"{mechanism}\x00{counter}\x00{user}".encode(), "sha512")
        counter += 1
    key = hmac.digest(salt_key, f"key\x00{mechanism}\x00{user}".encode(), hash_name)
    return ScramCredential(salt[:salt_bytes], iterations, key, key)
