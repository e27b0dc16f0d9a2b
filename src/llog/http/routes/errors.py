"""From errors to answers: the one table of statuses, and what an answer says.

What must stay true: every class of `llog.errors` stands in the table (a test walks them); "try again" (`Retry-After`)
is only said where nothing happened; what nobody foresaw is logged with its traceback and answered without it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException

from llog import errors as e
from llog.http.json.decode import field_label
from llog.http.json.replies import RETRY_AFTER, json_reply
from llog.http.json.schemas import ErrorAnswer
from llog.http.listener.runtime import request_record, runtime_of
from llog.http.routes.request_log import route_of

_log: Final = logging.getLogger("llog.http")

STATUSES: Final[Mapping[int, tuple[type[e.LlogError], ...]]] = {
    400: (e.InvalidArgument, e.RequestRefused),
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
        e.ProducerEpochFenced,
        e.AppendUncertain,
        e.TopicAlreadyExists,
        e.TopicBeingDeleted,
        e.IllegalSegmentState,
        e.VersionConflict,
        e.ObjectAlreadyExists,
        e.VacuumRefused,
        e.RestoreRefused,
        e.ExportRefused,
        e.ClusterMismatch,
        e.SinkBatchOver,
        e.SinkQueryTaken,
    ),
    413: (e.ValueTooLarge, e.RequestTooLarge, e.RecordTooLarge),
    416: (e.OffsetOutOfRange, e.RecordsLost),
    500: (
        e.LlogError,
        e.SettingsError,
        e.SettingsErrors,
        e.ExposureRefused,
        e.UnknownStoreScheme,
        e.StoreNotInstalled,
        e.StoreSchemeConflict,
        e.FormatError,
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
        e.SparkError,
        e.SparkNotInstalled,
        e.JavaUnusable,
        e.SparkSessionFailed,
        e.SparkTaskFailed,
        e.SparkJobFailed,
    ),
    # The stores' troubles are not the caller's fault, and pass (or are told in /health).
    503: (
        e.RequestOverload,
        e.BackPressureRejected,
        e.AppendNotCommitted,
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


def answer_error(request: Request[Any, Any, Any], error: e.LlogError) -> Response[bytes]:
    status = status_of(error)
    field = error.argument if isinstance(error, e.InvalidArgument) else ""
    if field and status in (400, 413):
        _count_field(request, field)
    if status == 500:
        _log_unforeseen(request, error)
    return _answer(request, status, type(error).__name__, str(error), field=field, headers=_headers(status, error))


def answer_http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Unknown paths, wrong methods, and parameters that the router itself refuses."""
    field, words = "", error.detail
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        told = [item for item in error.extra if isinstance(item, dict) and item.get("key")]
        if told:
            field, words = str(told[0]["key"]), f"{told[0]['key']}: {told[0].get('message', error.detail)}"
            _count_field(request, field)
    if error.status_code >= 500:
        _log_unforeseen(request, error)
        words = "an error that nobody foresaw: its traceback is in the broker's log, under the request id"
    return _answer(request, error.status_code, type(error).__name__, words, field=field, headers=error.headers or {})


def answer_unforeseen(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    _log_unforeseen(request, error)
    words = "an error that nobody foresaw: its traceback is in the broker's log, under the request id"
    return _answer(request, 500, "InternalError", words)


def _headers(status: int, error: e.LlogError) -> Mapping[str, str]:
    if status == 401:
        return {"www-authenticate": 'Bearer realm="llog"'}
    retriable = getattr(error, "retriable", True) and not isinstance(error, e.UncertainOutcome)
    return RETRY_AFTER if status == 503 and retriable else {}


def _answer(
    request: Request[Any, Any, Any],
    status: int,
    error_type: str,
    words: str,
    *,
    field: str = "",
    headers: Mapping[str, str] | None = None,
) -> Response[bytes]:
    record = request_record(request)
    record.error_type = error_type
    return json_reply(ErrorAnswer(error_type, words, record.request_id, field), status, headers=headers)


def _count_field(request: Request[Any, Any, Any], field: str) -> None:
    metrics = runtime_of(request).services.metrics
    metrics.http_validation_failure(route_of(dict(request.scope)), field_label(field))


def _log_unforeseen(request: Request[Any, Any, Any], error: Exception) -> None:
    record = request_record(request)
    fields = {"request_id": record.request_id, "error_type": type(error).__name__}
    _log.error("request failed", exc_info=error, extra={"llog": fields})
