"""SASL OAUTHBEARER (RFC 7628): the client sends a token that an identity provider signed.

The signature is checked with the provider's public keys (JWKS), from a file or a URL that are read again while the
broker runs. Only RS256 and ES256 are accepted: a token that names no algorithm, or one with a shared secret, would let
clients sign for themselves. A token needs a subject and an end; issuer and audience are checked where they are set.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from llog.errors import SettingsError
from llog.limits import KIB, MIB
from llog.security.scram import AuthenticationFailed

if TYPE_CHECKING:
    from jwt import PyJWK

    from llog.settings import Settings

ALGORITHMS: Final = ("RS256", "ES256")
TOKEN_BYTES_MAX: Final = 16 * KIB
JWKS_BYTES_MAX: Final = MIB
JWKS_KEYS_MAX: Final = 100
JWKS_TIMEOUT_S: Final = 10
JWKS_REREAD_MS: Final = 300_000
"""How long keys are used before they are read again."""
JWKS_RETRY_MS: Final = 10_000
"""The shortest time between two attempts to read them, also for tokens with unknown keys."""
_MESSAGE: Final = re.compile(r"n,(?:a=([^,\x01]*))?,\x01((?:[A-Za-z]+=[^\x01]*\x01)*)\x01", re.DOTALL)


class Verified(NamedTuple):
    subject: str
    expires_at_ms: int


def parse_bearer(message: bytes) -> tuple[str, str]:
    """The token, and the user that the client asks to act as (empty: the token's). `AuthenticationFailed`."""
    if len(message) > TOKEN_BYTES_MAX:
        raise AuthenticationFailed("the message is too long")
    try:
        matched = _MESSAGE.fullmatch(bytes(message).decode("ascii"))
    except UnicodeDecodeError:
        matched = None
    if matched is None:
        raise AuthenticationFailed("the message is not that of the mechanism")
    pairs = [pair.partition("=") for pair in matched[2].split("\x01") if pair]
    tokens = [value for name, _, value in pairs if name == "auth"]
    scheme, _, token = (tokens[0] if len(tokens) == 1 else "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise AuthenticationFailed("the message holds no bearer token")
    return token, matched[1] or ""


class TokenVerifier:
    """Keys are read in a thread (`read_keys`); `verify` only computes."""

    def __init__(
        self,
        source: str,
        *,
        issuer: str | None,
        audience: str | None,
        clock_skew_ms: int,
        principal_claim: str = "sub",
        monotonic_ms: Callable[[], float] = lambda: time.monotonic() * 1_000,
    ) -> None:
        """`source`: an https URL or a file's path."""
        self._source, self._issuer, self._audience = source, issuer, audience
        self._leeway_s, self._claim, self._monotonic_ms = clock_skew_ms / 1_000, principal_claim, monotonic_ms
        self._keys: dict[str | None, PyJWK] = {}
        self._read_ms = self._tried_ms = float("-inf")

    @classmethod
    def of(cls, settings: Settings) -> TokenVerifier:
        """`SettingsError` without a source of keys, or where the library is not installed."""
        try:
            import jwt  # noqa: F401
            from cryptography.hazmat.primitives import hashes  # noqa: F401
        except ImportError as error:
            wanted = "OAUTHBEARER needs the extra `oauth`: pip install 'leaderless-log[oauth]'"
            raise SettingsError("LLOG_KAFKA_SASL_MECHANISMS", "OAUTHBEARER", wanted) from error
        if settings.oauth_jwks is None:
            raise SettingsError("LLOG_OAUTH_JWKS", "", "OAUTHBEARER needs the keys of the identity provider")
        return cls(
            settings.oauth_jwks,
            issuer=settings.oauth_issuer,
            audience=settings.oauth_audience,
            clock_skew_ms=settings.oauth_clock_skew_ms,
            principal_claim=settings.oauth_principal_claim,
        )

    def needs_keys(self, token: str) -> bool:
        """Whether `read_keys` should run before `verify`: keys are old, or the token names one that is not known."""
        now_ms = self._monotonic_ms()
        if now_ms - self._tried_ms < JWKS_RETRY_MS:
            return False
        return now_ms - self._read_ms > JWKS_REREAD_MS or self._key_of(token) is None

    def read_keys(self) -> None:
        """Read the keys. While they cannot be read, the earlier ones stay. Takes up to JWKS_TIMEOUT_S."""
        self._tried_ms = self._monotonic_ms()
        try:
            keys = parse_keys(_read(self._source))
        except (OSError, ValueError) as error:
            raise AuthenticationFailed(f"the keys of the identity provider cannot be read: {error}") from error
        self._keys, self._read_ms = keys, self._tried_ms

    def verify(self, token: str, authorized: str = "") -> Verified:
        """`AuthenticationFailed`."""
        import jwt

        key = self._key_of(token)
        if key is None:
            raise AuthenticationFailed("the token is signed with a key that is not known")
        try:
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[key.algorithm_name],
                issuer=self._issuer,
                audience=self._audience,
                leeway=self._leeway_s,
                options={
                    "require": ["exp", self._claim],
                    "verify_iss": self._issuer is not None,
                    "verify_aud": self._audience is not None,
                },
            )
        except jwt.InvalidTokenError as error:
            raise AuthenticationFailed(f"the token is refused: {type(error).__name__}") from None
        subject = claims[self._claim]
        if not isinstance(subject, str) or not subject or not subject.isprintable() or len(subject) > 400:
            raise AuthenticationFailed("the token's subject is not a name")
        if authorized and authorized != subject:
            raise AuthenticationFailed("the client asks to act as another user")
        return Verified(subject, int(claims["exp"]) * 1_000)

    def _key_of(self, token: str) -> PyJWK | None:
        import jwt

        try:
            header = jwt.get_unverified_header(token)
        except jwt.InvalidTokenError:
            return None
        key = self._keys.get(header.get("kid"))
        if key is None and header.get("kid") is None and len(self._keys) == 1:
            key = next(iter(self._keys.values()))
        return key if key is not None and header.get("alg") == key.algorithm_name else None


def parse_keys(text: bytes) -> dict[str | None, PyJWK]:
    """By key id. Keys of other algorithms, and secrets, are left out. `ValueError` if none is left."""
    import json

    import jwt

    document = json.loads(text)
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list) or len(listed) > JWKS_KEYS_MAX:
        raise ValueError(f"not a JWKS of at most {JWKS_KEYS_MAX} keys")
    keys: dict[str | None, PyJWK] = {}
    for one in listed:
        algorithm = _algorithm_of(one)
        if algorithm is None:
            continue
        try:
            keys[one.get("kid")] = jwt.PyJWK.from_dict(one, algorithm=algorithm)
        except jwt.PyJWTError as error:
            raise ValueError(f"key {one.get('kid')!r:.100}: {type(error).__name__}") from None
    if not keys:
        raise ValueError(f"no key for {' or '.join(ALGORITHMS)}")
    return keys


def _algorithm_of(key: Any) -> str | None:
    if not isinstance(key, dict) or key.get("use", "sig") != "sig":
        return None
    fitting: dict[tuple[object, object], str] = {("RSA", None): "RS256", ("EC", "P-256"): "ES256"}
    algorithm = fitting.get((key.get("kty"), key.get("crv")))
    return algorithm if key.get("alg", algorithm) == algorithm else None


def _read(source: str) -> bytes:
    if not source.startswith(("https://", "http://")):
        with Path(source).expanduser().open("rb") as file:
            text = file.read(JWKS_BYTES_MAX + 1)
    else:
        with urllib.request.urlopen(source, timeout=JWKS_TIMEOUT_S) as answer:
            text = answer.read(JWKS_BYTES_MAX + 1)
    if len(text) > JWKS_BYTES_MAX:
        raise ValueError(f"larger than {JWKS_BYTES_MAX} bytes")
    return bytes(text)
