"""From errors to answers: the one table of statuses, and the body of an error.

Every class of `llog.errors` stands in the table (a test walks them). `Retry-After` is sent only where nothing happened.
An unexpected error is logged with its traceback and answered without it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from litestar.exceptions import HTTPException, ValidationException

from llog import errors as e
from llog.http.json.decode import field_label
from llog.http.routes.runtime import Runtime
from llog.listener.http1 import RETRY_AFTER, ErrorAnswer, Reply, json_reply
from llog.telemetry.request_log import RequestRecord
from llog.telemetry.status_pages import AUTHENTICATE

_log: Final = logging.getLogger("llog.http")
_UNEXPECTED: Final = "the request failed unexpectedly: the broker logged the traceback under this request id"

STATUSES: Final[Mapping[int, tuple[type[e.LlogError], ...]]] = {
    400: (e.InvalidArgument, e.ScenarioInvalid, e.RequestRefused, e.TimestampOutOfWindow),
    401: (e.RequestUnauthenticated,),
    403: (e.RequestForbidden,),
    404: (
        e.PartitionNotInitialized,
        e.LogDeleted,
        e.PartitionOutOfRange,
        e.SegmentNotFound,
        e.TopicNotFound,
        e.ObjectNotFound,
    ),
    408: (e.RequestTooSlow,),
    409: (
        e.LogFenced,
        e.OutOfOrderSequence,
        e.DuplicateSequence,
        e.ProducerEpochFenced,
        e.UnknownProducer,
        e.TopicAlreadyExists,
        e.TopicBeingDeleted,
        e.IllegalSegmentState,
        e.VersionConflict,
        e.ObjectAlreadyExists,
        e.VacuumRefused,
        e.GroupHasMembers,
        e.RestoreRefused,
        e.ExportRefused,
        e.ClusterMismatch,
        e.SinkBatchOver,
        e.SinkQueryTaken,
    ),
    413: (e.ValueTooLarge, e.RequestTooLarge, e.RecordTooLarge),
    416: (e.OffsetOutOfRange, e.RecordsLost),
    499: (e.ClientDisconnected,),  # in logs and metrics only: nobody is there to read it
    500: (
        e.LlogError,
        e.SettingsError,
        e.SettingsErrors,
        e.ExposureRefused,
        e.UnknownStoreScheme,
        e.StoreNotInstalled,
        e.StoreSchemeConflict,
        e.FormatError,
        # Of Kafka messages; no HTTP route raises them.
        e.Malformed,
        e.NotEncodable,
        e.TruncatedInput,
        e.BadMagic,
        e.ChecksumMismatch,
        e.InvalidField,
        e.UnsupportedFormat,
        e.DecodedTooLarge,
        e.InconsistentReadState,
        e.CompactionFailed,
        e.LogError,
        e.TopicError,
        e.ObjectRangeInvalid,
        e.SinkError,
        e.SinkPlanLost,
        e.SinkUploadLost,
        e.ExportError,
        e.ExportFailed,
        e.ExportNotInstalled,
        e.SimulationError,
        e.SimulationStuck,
        e.SimulationTooLong,
        e.SimulationForbidden,
        e.SimulationActorFailed,
        e.SimulationNotRepeatable,
        e.ReplayDiverged,
        e.LoadTestError,
        e.RunNotFound,
        e.RunStateWrong,
        e.StackFailed,
        e.LoadTestNotInstalled,
        e.SparkError,
        e.SparkNotInstalled,
        e.JavaUnusable,
        e.SparkSessionFailed,
        e.SparkTaskFailed,
        e.SparkJobFailed,
    ),
    # Trouble with the stores is not the caller's fault; it passes, or /health reports it.
    503: (
        e.RequestOverload,
        e.BackPressureRejected,
        e.AppendNotCommitted,
        e.AppendUncertain,
        e.LogBusy,
        e.TopicBusy,
        e.SinkBusy,
        e.UncertainOutcome,
        e.ExportUncertain,
        e.StoreError,
        e.ObjectStoreError,
        e.ObjectStoreThrottled,
        e.ObjectStoreTimeout,
        e.ObjectStoreUnavailable,
        e.ObjectStoreUncertain,
        e.ObjectStoreDenied,
        e.ObjectStoreClockSkew,
        e.ObjectStoreMisconfigured,
        e.ObjectStoreFull,
        e.StoreClosed,
        e.MetadataStoreError,
        e.MetadataTimeout,
        e.MetadataUnavailable,
        e.MetadataUncertain,
        e.MetadataDenied,
        e.MetadataMisconfigured,
        e.MetadataFull,
        e.SessionLost,
    ),
}
STATUS_OF: Final[Mapping[type[e.LlogError], int]] = {
    kind: status for status, kinds in STATUSES.items() for kind in kinds
}


def status_of(error: e.LlogError) -> int:
    """By the nearest class that stands in the table."""
    return next(STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF)


def error_reply(runtime: Runtime, record: RequestRecord, error: Exception) -> Reply:
    """The answer to any error that a route raised."""
    if isinstance(error, e.LlogError):
        return _of_ours(runtime, record, error)
    if isinstance(error, HTTPException):
        return _of_framework(runtime, record, error)
    _log_unexpected(record, error)
    return _reply(record, 500, "InternalError", _UNEXPECTED)


def _of_ours(runtime: Runtime, record: RequestRecord, error: e.LlogError) -> Reply:
    status = status_of(error)
    field = error.argument if isinstance(error, e.InvalidArgument) else ""
    if field and status in (400, 413):
        runtime.services.metrics.http_validation_failure(record.route, field_label(field))
    if status == 500:
        _log_unexpected(record, error)
    return _reply(record, status, type(error).__name__, str(error), field=field, headers=_headers(status, error))


def _of_framework(runtime: Runtime, record: RequestRecord, error: HTTPException) -> Reply:
    """Unknown paths, wrong methods, and parameters that the router itself refuses."""
    field, reason = "", error.detail
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        named = [item for item in error.extra if isinstance(item, dict) and item.get("key")]
        if named:
            field, reason = str(named[0]["key"]), f"{named[0]['key']}: {named[0].get('message', error.detail)}"
            runtime.services.metrics.http_validation_failure(record.route, field_label(field))
    if error.status_code >= 500:
        _log_unexpected(record, error)
        reason = _UNEXPECTED
    return _reply(record, error.status_code, type(error).__name__, reason, field=field, headers=error.headers or {})


def _headers(status: int, error: e.LlogError) -> Mapping[str, str]:
    if status == 401:
        return AUTHENTICATE
    retriable = getattr(error, "retriable", True) and not isinstance(error, e.UncertainOutcome)
    return RETRY_AFTER if status == 503 and retriable else {}


def _reply(
    record: RequestRecord,
    status: int,
    error_type: str,
    reason: str,
    *,
    field: str = "",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    record.error_type, record.error = error_type, reason
    return json_reply(ErrorAnswer(error_type, reason, record.request_id, field), status, headers)


def _log_unexpected(record: RequestRecord, error: Exception) -> None:
    fields = {"request_id": record.request_id, "error_type": type(error).__name__}
    _log.error("request failed", exc_info=error, extra={"llog": fields})
