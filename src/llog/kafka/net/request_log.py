"""For every Kafka request its place in the metrics and its line in the log; for refused connections a count and a line.

`LLOG_LOG_REQUESTS` and `LLOG_LOG_SLOW_MS` choose the lines, as for HTTP. A correlation id means something only on its
connection, so a request is found by `client`, `client_port` and `correlation_id`, and by the `client_id` of its client.
No request or answer is ever logged, so no
record is; the client's id is logged only when it is short and plain.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Final, Protocol

from llog.errors import LlogError, RequestRefused
from llog.kafka.apis.handler import Client
from llog.kafka.error_codes import ErrorCode
from llog.kafka.net.slot import Slot
from llog.settings import Settings
from llog.telemetry.request_log import ALL, ERROR_CHARS_MAX, ERRORS, SLOW, request_line, stage_fields

NO_ANSWER: Final = "NO_ANSWER"
"""The error of a request whose connection ended before it was answered."""
HANDLER_FAILURES: Final = "kafka_handler_failures"
_SANE_ID: Final = re.compile(r"[A-Za-z0-9._:@/-]{1,64}")
_ERROR_NAMES: Final[dict[int, str]] = {int(code): code.name for code in ErrorCode}
_log: Final = logging.getLogger("llog.kafka")


class KafkaMetrics(Protocol):
    def observe_kafka(self, api: str, error: str, seconds: float, request_bytes: int, response_bytes: int) -> None: ...

    def kafka_refused(self, reason: str) -> None: ...

    def kafka_connected(self, change: int) -> None: ...

    def count(self, name: str, value: int = 1) -> None: ...


class KafkaRequestLog:
    def __init__(self, metrics: KafkaMetrics, settings: Settings, now: Callable[[], float]) -> None:
        self._metrics, self._now = metrics, now
        self._lines, self._slow_ms = settings.log_requests, settings.log_slow_ms
        self.connected: Final = metrics.kafka_connected

    def finished(self, slot: Slot, client: Client) -> None:
        """A request left its slot: its answer is about to be written, or never will be."""
        request = slot.request
        if request is None:
            return  # counted as refused
        seconds, code = self._now() - slot.started, slot.error_code
        error = NO_ANSWER if slot.buffers is None else _ERROR_NAMES.get(code) or str(code)
        self._metrics.observe_kafka(request.api.name, error, seconds, slot.frame_bytes, slot.answer_bytes)
        if not self._is_logged(bool(code) or slot.buffers is None, seconds * 1_000 - request.call.wait_ms):
            return
        if _log.isEnabledFor(logging.INFO):
            _log.handle(request_line(_log.name, logging.INFO, _fields(slot, client, error, seconds)))

    def _is_logged(self, failed: bool, busy_ms: float) -> bool:
        if self._lines == ALL:
            return True
        if self._lines == SLOW:
            return failed or busy_ms >= self._slow_ms
        return failed and self._lines == ERRORS

    def refused(self, reason: str, client: Client, error: str) -> None:
        """The connection ends because of what its client sent, or did not send."""
        self._metrics.kafka_refused(reason)
        fields = {"client": client.host, "reason": reason, "error": error[:ERROR_CHARS_MAX]}
        _log.info("ended a Kafka connection", extra={"llog": fields})

    def failed(self, slot: Slot, client: Client, error: BaseException) -> None:
        """The handler raised, or its answer could not be encoded."""
        if isinstance(error, RequestRefused):
            self.refused("request", client, str(error))
            return
        self._metrics.count(HANDLER_FAILURES)
        fields = {"api": "" if slot.request is None else slot.request.api.name, "client": client.host}
        if isinstance(error, LlogError):
            _log.warning("a Kafka request failed: %s", error, extra={"llog": fields})
        else:
            _log.error("a Kafka handler failed", exc_info=error, extra={"llog": fields})


def _fields(slot: Slot, client: Client, error: str, seconds: float) -> dict[str, object]:
    request = slot.request
    assert request is not None
    fields: dict[str, object] = {
        "api": request.api.name,
        "version": request.call.version,
        "correlation_id": request.correlation_id,
        "error": error,
        "duration_ms": round(seconds * 1_000, 3),
        "request_bytes": slot.frame_bytes,
        "response_bytes": slot.answer_bytes,
        "client": client.host,
        "client_port": client.port,
    }
    if request.call.timings is not None:
        fields |= stage_fields(request.call.timings)
    if request.call.wait_ms:
        fields["max_wait_ms"] = round(request.call.wait_ms, 3)
    client_id = request.call.client_id
    if client_id and _SANE_ID.fullmatch(client_id):
        fields["client_id"] = client_id
    return fields
