"""Errors of this client. They distinguish operations that did not happen from those that may have.

OxiaError
├── InvalidRequest     refused by this client before it was sent
│   └── OxiaRequestTooLarge
├── VersionMismatch    the record was not at the expected version: nothing happened
├── SessionExpired     the session has ended: nothing happened
├── Unavailable        no leader, no connection, no room: nothing happened
├── ReadTimeout        a read got no answer in time
├── Uncertain          a write was sent and got no answer: it may have happened, or still happen
├── Denied             credentials
├── Misconfigured      the namespace is missing, or has an unsupported organisation of shards or keys
└── ClientClosed
"""

from __future__ import annotations


class OxiaError(Exception):
    """The root of all errors that this client raises on purpose."""


class InvalidRequest(OxiaError, ValueError):
    pass


class OxiaRequestTooLarge(InvalidRequest):
    pass


class VersionMismatch(OxiaError):
    def __init__(self, key: str, expected: int) -> None:
        self.key, self.expected = key, expected
        super().__init__(f"{key}: {'exists already' if expected < 0 else f'not at version {expected}'}")


class SessionExpired(OxiaError):
    pass


class Unavailable(OxiaError):
    pass


class ReadTimeout(OxiaError):
    pass


class Uncertain(OxiaError):
    pass


class Denied(OxiaError):
    pass


class Misconfigured(OxiaError):
    pass


class ClientClosed(OxiaError):
    pass
