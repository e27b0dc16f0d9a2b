"""Who a connection's client is: by SASL, by its certificate, or nobody.

With SASL, a client first names a mechanism (SaslHandshake), then sends its messages (SaslAuthenticate), one after the
other; before it has authenticated it may ask for nothing else but ApiVersions. Every failure is answered alike, after
`FAILURE_MS`, and ends the connection: a client learns neither which users exist nor how long a check took. Failures are
bounded per address, checks of passwords run in threads, and lines name the user but nothing that it sent.

A session may end (LLOG_KAFKA_REAUTH_MS, or with its token): then the client authenticates again on the same connection,
as the same user by the same mechanism, or loses it with its next request (KIP-368).
"""

from __future__ import annotations

import asyncio
import secrets
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, Protocol

from llog.audit_log import Principal, printable, write_line
from llog.kafka.apis.handler import Client
from llog.kafka.error_codes import ErrorCode
from llog.kafka.net.frames import Frame
from llog.security.acl import USER_PREFIX
from llog.security.certificates import Rule, principal_of, principal_rules
from llog.security.oauthbearer import TokenVerifier, parse_bearer
from llog.security.plain import parse_plain
from llog.security.refusals import LinePace
from llog.security.scram import HASHES, AuthenticationFailed, ScramServer, is_password, parse_client_first
from llog.security.security import Security
from llog.security.throttle import FailureLimit
from llog.security.view import SecurityView
from llog.settings import Settings

FAILURE_MS: Final = 100
"""From a message to the answer that it failed."""
AUTHENTICATION_MS_MAX: Final = 30_000
"""From the connection to the end of its first authentication."""
PASSWORD_THREADS: Final = 2
PASSWORD_CHECKS_MAX: Final = 256
"""Passwords that are checked or wait for it; more fail at once."""
NONCE_BYTES: Final = 24
FAILURES: Final = "authentication_failures"
_BEFORE: Final = frozenset({17, 18, 36})
"""SaslHandshake, ApiVersions, SaslAuthenticate."""
_FAILED: Final = "authentication failed"
_USER_CHARS_MAX: Final = 100


class _Counts(Protocol):
    def count(self, name: str, value: int = 1) -> None: ...


class Proven(NamedTuple):
    user: str
    answer: bytes = b""
    expires_at_ms: int | None = None
    """Of the token, by the clock of the wall."""


class Answer(NamedTuple):
    """Of one message of the client."""

    code: ErrorCode
    message: str | None = None
    auth_bytes: bytes = b""
    session_lifetime_ms: int = 0


class Authentication:
    """What the connections of one listener share."""

    def __init__(
        self,
        security: Security,
        metrics: _Counts,
        *,
        mechanisms: tuple[str, ...],
        reauth_ms: int = 0,
        rules: tuple[Rule, ...] = (),
        tokens: TokenVerifier | None = None,
        monotonic_ms: Callable[[], float] = lambda: time.monotonic() * 1_000,
        wall_ms: Callable[[], float] = lambda: time.time() * 1_000,
    ) -> None:
        self.security, self.mechanisms, self.reauth_ms = security, mechanisms, reauth_ms
        self.tokens, self.monotonic_ms, self.wall_ms = tokens, monotonic_ms, wall_ms
        self._metrics, self._rules = metrics, rules
        self._limit, self._pace = FailureLimit(monotonic_ms), LinePace(monotonic_ms)
        self._threads = ThreadPoolExecutor(PASSWORD_THREADS, thread_name_prefix="llog-passwords")
        self._checks = 0

    @classmethod
    def of(cls, security: Security, settings: Settings, metrics: _Counts) -> Authentication | None:
        """None where clients do not authenticate. `SettingsError`."""
        if not settings.kafka_sasl_mechanisms and settings.tls_client_auth == "none":
            return None
        rules = principal_rules(settings)
        mechanisms = settings.kafka_sasl_mechanisms
        tokens = TokenVerifier.of(settings) if "OAUTHBEARER" in mechanisms else None
        reauth_ms = settings.kafka_reauth_ms
        return cls(security, metrics, mechanisms=mechanisms, reauth_ms=reauth_ms, rules=rules, tokens=tokens)

    def begin(self, client: Client, tls: Any) -> None:
        """A client has connected; `tls` is the connection's SSL object, or None."""
        if self.mechanisms:
            client.sasl = SaslSession(self, client)
        elif tls is not None:
            client.principal = principal_of(tls.getpeercert(), self._rules)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def check_address(self, host: str) -> None:
        if self._limit.is_blocked(host):
            raise AuthenticationFailed("too many attempts from this address have failed")

    def view(self) -> SecurityView:
        view = self.security.view
        if view is None:
            raise AuthenticationFailed("users could not be read for too long")
        return view

    async def off_loop(self, work: Callable[[], object]) -> object:
        if self._checks >= PASSWORD_CHECKS_MAX:
            raise AuthenticationFailed(f"{PASSWORD_CHECKS_MAX} others are being checked")
        self._checks += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._checks -= 1

    def failed(self, client: Client, mechanism: str, user: str, error: AuthenticationFailed) -> None:
        """Count the failure, and write its line."""
        self._limit.failed(client.host)
        self._metrics.count(FAILURES)
        left_out = self._pace.admit((client.host, user))
        if left_out is not None:
            more = {"lines_left_out": left_out} if left_out else {}
            by, subject = Principal(client.principal, client.host), printable(user[:_USER_CHARS_MAX])
            write_line("authenticate", subject, "refused", by=by, mechanism=mechanism, error=error.detail, **more)


class SaslSession:
    """The authentication of one connection."""

    def __init__(self, shared: Authentication, client: Client) -> None:
        self._shared, self._client = shared, client
        self._begun_ms = shared.monotonic_ms()
        self._mechanism = ""
        """Of the exchange that is going on."""
        self._scram: ScramServer | None = None
        self._user = ""
        """Whom the client claims to be in it, once it said so."""
        self._is_busy = False
        self._proven: tuple[str, str] | None = None
        """User and mechanism."""
        self._ends_ms: float | None = None

    @property
    def is_authenticated(self) -> bool:
        return self._proven is not None

    def patience_ms(self) -> float:
        """How long the client still has to authenticate."""
        return self._begun_ms + AUTHENTICATION_MS_MAX - self._shared.monotonic_ms()

    def refusal(self, frame: Frame) -> str:
        """Why this request is not answered; empty if it is."""
        [key] = struct.unpack_from(">h", frame)
        if key in _BEFORE:
            return ""
        if self._proven is None:
            return f"API {key} before authentication"
        if self._ends_ms is not None and self._shared.monotonic_ms() > self._ends_ms:
            return "the session has ended, and the client did not authenticate again"
        return ""

    # -- the client's requests -----------------------------------------------------------------------------------------
    def handshake(self, mechanism: str) -> ErrorCode:
        if self._mechanism or self._is_busy:
            self._client.ends = True
            return ErrorCode.ILLEGAL_SASL_STATE
        if mechanism not in self._shared.mechanisms:
            self._client.ends = True
            return ErrorCode.UNSUPPORTED_SASL_MECHANISM
        self._mechanism, self._scram, self._user = mechanism, None, ""
        return ErrorCode.NONE

    async def authenticate(self, message: bytes) -> Answer:
        """One message of the exchange."""
        if not self._mechanism or self._is_busy:
            self._client.ends = True
            return Answer(ErrorCode.ILLEGAL_SASL_STATE, "no exchange has begun, or its last message was not answered")
        began_ms = self._shared.monotonic_ms()
        self._is_busy = True
        try:
            self._shared.check_address(self._client.host)
            step = await self._step(message)
            return Answer(ErrorCode.NONE, None, step) if isinstance(step, bytes) else self._accept(step)
        except AuthenticationFailed as error:
            self._shared.failed(self._client, self._mechanism, self._user, error)
            self._mechanism, self._scram, self._client.ends = "", None, True
            passed_ms = self._shared.monotonic_ms() - began_ms
            await asyncio.sleep(max(0.0, FAILURE_MS - passed_ms) / 1_000)
            return Answer(ErrorCode.SASL_AUTHENTICATION_FAILED, _FAILED)
        finally:
            self._is_busy = False

    def _accept(self, proven: Proven) -> Answer:
        """The client is this user."""
        mechanism, known = self._mechanism, self._proven
        if known is not None and known != (proven.user, mechanism):
            raise AuthenticationFailed("the client authenticates again as another user, or by another mechanism")
        self._mechanism, self._scram = "", None
        self._proven = (proven.user, mechanism)
        self._client.principal = USER_PREFIX + proven.user
        lifetimes = [self._shared.reauth_ms] if self._shared.reauth_ms else []
        if proven.expires_at_ms is not None:
            lifetimes.append(max(1, int(proven.expires_at_ms - self._shared.wall_ms())))
        lifetime_ms = min(lifetimes, default=0)
        self._ends_ms = self._shared.monotonic_ms() + lifetime_ms if lifetime_ms else None
        return Answer(ErrorCode.NONE, None, proven.answer, lifetime_ms)

    # -- mechanisms ----------------------------------------------------------------------------------------------------
    async def _step(self, message: bytes) -> bytes | Proven:
        if self._mechanism == "PLAIN":
            return await self._plain(message)
        if self._mechanism == "OAUTHBEARER":
            return await self._bearer(message)
        if self._scram is not None:
            return Proven(self._scram.user, self._scram.finish(message))
        return self._scram_first(message)

    def _scram_first(self, message: bytes) -> bytes:
        first = parse_client_first(message)
        self._user = first.user
        credential, is_known = self._shared.view().credential(first.user, self._mechanism)
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        self._scram = ScramServer(self._mechanism, first, credential, is_known=is_known, nonce=nonce)
        return self._scram.server_first.encode()

    async def _plain(self, message: bytes) -> Proven:
        sent = parse_plain(message)
        self._user = sent.user
        view = self._shared.view()
        user = view.users.get(sent.user)
        mechanism = next((name for name in reversed(HASHES) if user is None or name in user.scram), "SCRAM-SHA-512")
        credential, is_known = view.credential(sent.user, mechanism)
        is_right = await self._shared.off_loop(lambda: is_password(sent.password, credential, HASHES[mechanism]))
        if not (is_right and is_known):
            raise AuthenticationFailed("unknown user or wrong password")
        return Proven(sent.user)

    async def _bearer(self, message: bytes) -> Proven:
        tokens = self._shared.tokens
        assert tokens is not None, "the mechanism is offered with a verifier only"
        token, authorized = parse_bearer(message)
        if tokens.needs_keys(token):
            await self._shared.off_loop(tokens.read_keys)
        verified = tokens.verify(token, authorized)
        self._user = verified.subject
        return Proven(verified.subject, b"", verified.expires_at_ms)
