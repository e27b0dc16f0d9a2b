"""What the metadata store holds of users and ACLs. Passwords and tokens are never stored, only what verifies them.

None of these values shows a verifier in its `repr`, so none can end in a log line or an error message.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from llog.formats.values import Count, Value

Mechanism = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]


class ScramCredential(msgspec.Struct, frozen=True):
    """What RFC 5802 has a server keep of a password."""

    salt: bytes
    iterations: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


class HttpToken(msgspec.Struct, frozen=True, kw_only=True):
    """A bearer token. Tokens are random, so a plain digest of one is enough."""

    name: str
    digest: bytes
    """SHA-256 of the token."""
    created_at_ms: Count
    expires_at_ms: Count | None = None

    def __repr__(self) -> str:
        return f"HttpToken({self.name!r})"


class UserRecord(Value, frozen=True, kw_only=True):
    scram: dict[str, ScramCredential] = msgspec.field(default_factory=dict)
    """By mechanism. PLAIN verifies a password against these too."""
    tokens: tuple[HttpToken, ...] = ()
    created_at_ms: Count = 0


class AclRecord(Value, frozen=True, kw_only=True):
    """Codes are Kafka's."""

    principal: str
    host: str
    resource_type: int
    name: str
    pattern: int
    operation: int
    permission: int
    created_at_ms: Count = 0


class SecurityState(Value, frozen=True, kw_only=True):
    """Every change of a user or an ACL raises `changes`, by which other processes notice it."""

    changes: Count
    salt_key: bytes
    """Makes the salts that unknown users are answered with, the same on every node."""

    def __repr__(self) -> str:
        return f"SecurityState(changes={self.changes})"
