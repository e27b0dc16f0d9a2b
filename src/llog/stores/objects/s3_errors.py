"""The table from errors of S3 servers, the network and obstore to ours.

obstore has types for few failures and describes the others in the message, so status, S3 error code and kind of
transport failure are parsed from it. The result says whether a retry may help and whether a write may have happened. In
doubt a write is `ObjectStoreUncertain`, which is always safe. A write is `ObjectStoreThrottled` or
`ObjectStoreUnavailable` only if nothing can have happened: the server refused it, or there was no connection.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from llog.errors import (
    ObjectAlreadyExists,
    ObjectNotFound,
    ObjectRangeInvalid,
    ObjectStoreClockSkew,
    ObjectStoreDenied,
    ObjectStoreError,
    ObjectStoreFull,
    ObjectStoreMisconfigured,
    ObjectStoreThrottled,
    ObjectStoreTimeout,
    ObjectStoreUnavailable,
    ObjectStoreUncertain,
)


class Outcome(NamedTuple):
    reading: type[ObjectStoreError]
    writing: type[ObjectStoreError]


def _both(error: type[ObjectStoreError]) -> Outcome:
    return Outcome(error, error)


_THROTTLED = _both(ObjectStoreThrottled)
_DENIED = _both(ObjectStoreDenied)
_MISCONFIGURED = _both(ObjectStoreMisconfigured)
_FULL = _both(ObjectStoreFull)
_REFUSED = _both(ObjectStoreError)
_NOT_NOW = _both(ObjectStoreUnavailable)
_SERVER_FAILED = Outcome(ObjectStoreUnavailable, ObjectStoreUncertain)
_NO_ANSWER = Outcome(ObjectStoreTimeout, ObjectStoreUncertain)

# S3 error codes of AWS and of compatible servers. The code takes precedence over the status.
BY_CODE: Final[dict[str, Outcome]] = {
    "NoSuchKey": Outcome(ObjectNotFound, ObjectStoreError),
    "NoSuchBucket": _MISCONFIGURED,
    "InvalidBucketName": _MISCONFIGURED,
    "PermanentRedirect": _MISCONFIGURED,
    "AuthorizationHeaderMalformed": _MISCONFIGURED,  # signed for another region
    "AccessDenied": _DENIED,
    "InvalidAccessKeyId": _DENIED,
    "SignatureDoesNotMatch": _DENIED,
    "ExpiredToken": _DENIED,
    "InvalidToken": _DENIED,
    "RequestTimeTooSkewed": _both(ObjectStoreClockSkew),
    "XAdminUserNotFound": _DENIED,  # versitygw, with status 404
    "InvalidRange": Outcome(ObjectRangeInvalid, ObjectStoreError),
    "PreconditionFailed": Outcome(ObjectStoreError, ObjectAlreadyExists),
    "ConditionalRequestConflict": _NOT_NOW,  # another conditional write of the same name is in flight
    "OperationAborted": _NOT_NOW,
    "ObjectParentIsFile": _REFUSED,  # versitygw: `a` is an object, so `a/b` cannot be
    "XMinioParentIsObject": _REFUSED,
    "SlowDown": _THROTTLED,
    "SlowDownRead": _THROTTLED,
    "SlowDownWrite": _THROTTLED,
    "ServiceUnavailable": _THROTTLED,
    "RequestLimitExceeded": _THROTTLED,
    "TooManyRequests": _THROTTLED,
    "RequestTimeout": _NO_ANSWER,
    "InternalError": _SERVER_FAILED,
    "QuotaExceeded": _FULL,
    "XMinioStorageFull": _FULL,
    "XMinioAdminBucketQuotaExceeded": _FULL,
}

BY_STATUS: Final[dict[int, Outcome]] = {
    400: _REFUSED,
    401: _DENIED,
    403: _DENIED,
    404: Outcome(ObjectNotFound, ObjectStoreMisconfigured),  # a write needs no object, so the bucket is missing
    405: _REFUSED,
    409: Outcome(ObjectStoreError, ObjectAlreadyExists),
    411: _REFUSED,
    412: Outcome(ObjectStoreError, ObjectAlreadyExists),
    413: _REFUSED,
    416: Outcome(ObjectRangeInvalid, ObjectStoreError),
    429: _THROTTLED,
    500: _SERVER_FAILED,
    501: _REFUSED,
    502: _SERVER_FAILED,
    # Without a code it may come from a proxy while the server carries on.
    503: Outcome(ObjectStoreThrottled, ObjectStoreUncertain),
    504: _NO_ANSWER,
    507: _FULL,
}

# Kinds of HTTP failure in obstore; `Redirect` and `NotPartial` are our names for two of its messages.
BY_TRANSPORT: Final[dict[str, Outcome]] = {
    "Connect": _NOT_NOW,
    "Request": _SERVER_FAILED,
    "Interrupted": _SERVER_FAILED,
    "Decode": _SERVER_FAILED,
    "Unknown": _SERVER_FAILED,
    "Timeout": _NO_ANSWER,
    "Redirect": _MISCONFIGURED,
    "NotPartial": Outcome(ObjectRangeInvalid, ObjectStoreError),
}

_UNKNOWN = Outcome(ObjectStoreError, ObjectStoreUncertain)

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]{1,80})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})</Message>")
_KIND = re.compile(r"HttpError \{\s*kind: (\w+)")


class S3Failure(NamedTuple):
    status: int | None
    code: str | None
    transport: str | None
    reason: str

    @property
    def outcome(self) -> Outcome:
        if self.code in BY_CODE:
            return BY_CODE[self.code]
        if self.status is not None:
            return BY_STATUS.get(self.status, _UNKNOWN)
        return BY_TRANSPORT.get(self.transport or "", _UNKNOWN)


def parse_failure(error: BaseException) -> S3Failure:
    """Read status, code and kind out of an obstore error."""
    if isinstance(error, TimeoutError):
        return S3Failure(None, None, "Timeout", "no answer in time")
    text = str(error)
    status, code, message, kind = (p.search(text) for p in (_STATUS, _CODE, _MESSAGE, _KIND))
    transport = kind.group(1) if kind else None
    if "redirect without LOCATION" in text:
        transport = "Redirect"
    elif "non-partial response" in text or "CONTENT_RANGE header" in text:
        transport = "NotPartial"
    reason = " ".join(m.group(1) for m in (status, code, message) if m) if status else text.partition("\n")[0]
    return S3Failure(int(status.group(1)) if status else None, code.group(1) if code else None, transport, reason[:500])


def translate(error: BaseException, operation: str, subject: str, *, writing: bool) -> ObjectStoreError:
    failure = parse_failure(error)
    ours = failure.outcome.writing if writing else failure.outcome.reading
    return ours(operation, subject, failure.reason)
