"""The metrics of a broker or of the compaction service: one registry, two pages.

    metrics = BrokerMetrics()
    metrics.observe_http("/produce", "POST", 200, 0.004, 1_024, 96)
    metrics.snapshot()      # JSON of GET /metrics
    metrics.prometheus()    # text of GET /metrics/prometheus

Callers report events by methods with typed arguments; names, labels and places on the pages are in the table
(`families`).

- Both pages are made from the same families.
- A method costs microseconds: series are bound beforehand or remembered, and the counts of every request are gathered.
- The number of series is bounded, whatever clients send.
- No label holds an address, a credential or a record; stores are named by their kind.

The pages take milliseconds where there are many series; they may be made in another thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from llog import __version__
from llog.log.metrics import AppendCounters
from llog.stores.metering import MetadataStoreStats
from llog.telemetry.billing import BilledStore
from llog.telemetry.collectors import AppendCollector, CompactionLag, MetadataCollector, ObjectCollector, kind_of
from llog.telemetry.families import RUN_STATES, UNKNOWN
from llog.telemetry.registry import Families, json_page
from llog.telemetry.scenario import LoadTestScenario

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Of `prometheus()`."""

METRICS_GATHERED_MAX: Final = 256
"""Requests that are counted together; counting them takes about a millisecond."""
HttpRow = tuple[str, str, int]
"""Route, method and status."""
KafkaRow = tuple[str, str]
"""API and the first error of the answer."""
GatheredRow = tuple[list[float], list[int]]
"""Seconds of each request; bytes of all requests and of their answers."""
R = TypeVar("R", HttpRow, KafkaRow)


class BrokerMetrics:
    def __init__(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._families = Families()
        self._metadata, self._objects, self._appends = MetadataCollector(), ObjectCollector(), AppendCollector()
        self._lag = CompactionLag(self._families.overflow_of("llog_compaction_lag_offsets"), now_ms)
        self._families.register(self._metadata, self._objects, self._appends, self._lag)
        self._gathered = GatheredCounts(self._count_http, self._count_kafka, self._count_appends)
        self._bind_http()
        self._bind_kafka()
        self._bind_batching()
        self._bind_consume()
        self._bind_compaction()
        self._bind_the_rest()
        self.set_loadtest(None)

    # -- pages ------------------------------------------------------------------------------------------------------
    def snapshot(self) -> dict[str, Any]:
        """The JSON page: numbers, texts and objects of them."""
        self._gathered.count()
        page = json_page(self._families.collect())
        if self._metadata.is_oxia:
            page["oxia"] = page["metadata"]
        return page

    def prometheus(self) -> bytes:
        self._gathered.count()
        return self._families.prometheus()

    # -- about the process ------------------------------------------------------------------------------------------
    def set_broker(
        self,
        *,
        broker_id: str,
        host: str,
        port: int,
        role: str,
        started_at_ms: int,
        metadata_url: str,
        wal_url: str,
        objects_url: str,
    ) -> None:
        about = {"broker_id": broker_id, "host": host, "port": str(port), "role": role, "version": __version__}
        self._families.info("llog_broker_info").info(about | _stores(metadata_url, wal_url, objects_url))
        self._families.gauge("llog_broker_started_timestamp_seconds").set(started_at_ms / 1_000)

    def set_batch_settings(
        self, *, max_bytes: int, max_delay_ms: int, max_buffer_bytes: int, tail_cache_max_bytes: int
    ) -> None:
        self._families.gauge("llog_batch_max_bytes").set(max_bytes)
        self._families.gauge("llog_batch_max_delay_seconds").set(max_delay_ms / 1_000)
        self._families.gauge("llog_batch_max_buffer_bytes").set(max_buffer_bytes)
        self._families.gauge("llog_tail_cache_max_bytes").set(tail_cache_max_bytes)

    def attach_wal_usage(self, used_bytes: Callable[[], int], max_bytes: int) -> None:
        self._families.gauge("llog_wal_bytes").set_function(used_bytes)
        self._families.gauge("llog_wal_max_bytes").set(max_bytes)

    def set_compactor(
        self,
        *,
        compactor_id: str,
        host: str,
        port: int,
        started_at_ms: int,
        metadata_url: str,
        wal_url: str,
        objects_url: str,
    ) -> None:
        about = {"compactor_id": compactor_id, "host": host, "port": str(port), "version": __version__}
        self._families.info("llog_compactor_info").info(about | _stores(metadata_url, wal_url, objects_url))
        self._families.gauge("llog_compactor_started_timestamp_seconds").set(started_at_ms / 1_000)

    def set_loadtest(self, scenario: LoadTestScenario | None) -> None:
        """The load test that this process serves (`scenario_from_env`)."""
        shown = LoadTestScenario("") if scenario is None else scenario
        self._families.info("llog_loadtest_info").info({"scenario": shown.name, "run_id": shown.run_id})
        parameters = self._families.gauge("llog_loadtest_parameter")
        parameters.clear()
        for name, value in shown.parameters.items():
            parameters.labels(name).set(value)

    # -- collected from the numbers of others -----------------------------------------------------------------------
    def attach_metadata(self, url: str, stats: MetadataStoreStats) -> None:
        self._metadata.attach(url, stats)

    def attach_objects(self, stores: Iterable[BilledStore]) -> None:
        """The object stores with their billing (`Billing.stores`); each tier once."""
        self._objects.attach(stores)

    def attach_appender(self, counters: AppendCounters) -> None:
        self._appends.attach(counters)

    # -- HTTP -------------------------------------------------------------------------------------------------------
    def _bind_http(self) -> None:
        self._http_requests = self._families.counters("llog_http_requests_total")
        self._http_seconds = self._families.histograms("llog_http_request_seconds")
        self._http_request_bytes = self._families.counters("llog_http_request_bytes_total")
        self._http_response_bytes = self._families.counters("llog_http_response_bytes_total")
        self._http_validation = self._families.counters("llog_http_validation_failures_total")

    def observe_http(
        self, route: str, method: str, status: int, seconds: float, request_bytes: int, response_bytes: int
    ) -> None:
        """`route` is the path's pattern, not the path that was asked for."""
        self._gathered.http((route, method, status), seconds, request_bytes, response_bytes)

    def _count_http(self, row: HttpRow, seconds: Sequence[float], request_bytes: int, response_bytes: int) -> None:
        route = row[0]
        self._http_requests[row].inc(len(seconds))
        observe = self._http_seconds[route,].observe
        for each in seconds:
            observe(each)
        self._http_request_bytes[route,].inc(request_bytes)
        self._http_response_bytes[route,].inc(response_bytes)

    def http_validation_failure(self, route: str, field: str) -> None:
        self._http_validation[route, field].inc()

    # -- Kafka ------------------------------------------------------------------------------------------------------
    def _bind_kafka(self) -> None:
        self._kafka_requests = self._families.counters("llog_kafka_requests_total")
        self._kafka_seconds = self._families.histograms("llog_kafka_request_seconds")
        self._kafka_request_bytes = self._families.counters("llog_kafka_request_bytes_total")
        self._kafka_response_bytes = self._families.counters("llog_kafka_response_bytes_total")
        self._kafka_refused = self._families.counters("llog_kafka_refused_total")
        self._kafka_connections = 0
        self._families.gauge("llog_kafka_connections").set_function(lambda: self._kafka_connections)

    def observe_kafka(self, api: str, error: str, seconds: float, request_bytes: int, response_bytes: int) -> None:
        self._gathered.kafka((api, error), seconds, request_bytes, response_bytes)

    def _count_kafka(self, row: KafkaRow, seconds: Sequence[float], request_bytes: int, response_bytes: int) -> None:
        api = row[0]
        self._kafka_requests[row].inc(len(seconds))
        observe = self._kafka_seconds[api,].observe
        for each in seconds:
            observe(each)
        self._kafka_request_bytes[api,].inc(request_bytes)
        self._kafka_response_bytes[api,].inc(response_bytes)

    def kafka_refused(self, reason: str) -> None:
        self._kafka_refused[reason,].inc()

    def kafka_connected(self, change: int) -> None:
        """A connection was opened (1) or closed (-1)."""
        self._kafka_connections += change

    # -- batching ---------------------------------------------------------------------------------------------------
    def _bind_batching(self) -> None:
        self._flushes = self._families.counters("llog_batch_flushes_total")
        self._flush_records = self._families.counter("llog_batch_records_total")
        self._flush_groups = self._families.histogram("llog_batch_flush_groups")
        self._blob_bytes = self._families.histogram("llog_batch_blob_bytes")
        self._queue_wait = self._families.histogram("llog_batch_queue_wait_seconds")
        self._upload = self._families.histogram("llog_batch_upload_seconds")
        self._commit = self._families.histogram("llog_batch_commit_seconds")
        self._append_groups = self._families.counter("llog_log_append_groups_total")
        self._append_records = self._families.counter("llog_log_append_records_total")
        self._append_bytes = self._families.counter("llog_log_append_bytes_total")
        self._append_payload_bytes = self._families.counter("llog_log_append_payload_bytes_total")
        self._append_failures = self._families.counters("llog_append_failures_total")
        self._append_failures_all = self._families.counter("llog_log_append_failures_total")
        # Set twice per request and shown every few seconds, so the gauges read them when a page is made.
        self._buffered = 0, 0
        self._families.gauge("llog_batch_buffered_bytes").set_function(lambda: self._buffered[0])
        self._families.gauge("llog_batch_buffered_requests").set_function(lambda: self._buffered[1])

    def observe_flush(
        self,
        reason: str,
        groups: int,
        records: int,
        byte_length: int,
        queue_wait_ms: float,
        upload_ms: float,
        commit_ms: float,
    ) -> None:
        self._flushes[reason,].inc()
        self._flush_records.inc(records)
        self._flush_groups.observe(groups)
        self._blob_bytes.observe(byte_length)
        self._queue_wait.observe(queue_wait_ms / 1_000)
        self._upload.observe(upload_ms / 1_000)
        self._commit.observe(commit_ms / 1_000)

    def observe_appends(
        self, groups: int, records: int, byte_length: int, failures: Mapping[str, int], payload_bytes: int = 0
    ) -> None:
        """The outcomes of one call's record groups; `failures` by the name of the error."""
        if groups:
            self._gathered.appends(groups, records, byte_length, payload_bytes)
        for error, count in failures.items():
            self._append_failures[error,].inc(count)
            self._append_failures_all.inc(count)

    def _count_appends(self, groups: int, records: int, byte_length: int, payload_bytes: int) -> None:
        self._append_groups.inc(groups)
        self._append_records.inc(records)
        self._append_bytes.inc(byte_length)
        self._append_payload_bytes.inc(payload_bytes)

    def set_buffered(self, byte_length: int, requests: int) -> None:
        self._buffered = byte_length, requests

    # -- consume ----------------------------------------------------------------------------------------------------
    def _bind_consume(self) -> None:
        self._consumes = self._families.counters("llog_consume_requests_total")
        self._consume_partitions = self._families.counter("llog_consume_partitions_total")
        self._consume_records = self._families.counters("llog_consume_records_total")
        self._consume_bytes = self._families.counters("llog_consume_bytes_total")
        self._consume_payload_bytes = self._families.counters("llog_consume_payload_bytes_total")
        self._consume_wait = self._families.histogram("llog_consume_wait_seconds")
        self._append_to_consume = self._families.histogram("llog_append_to_consume_seconds")
        self._tail_cache = self._families.counters("llog_tail_cache_events_total")
        self._tail_cached = 0, 0
        self._families.gauge("llog_tail_cache_bytes").set_function(lambda: self._tail_cached[0])
        self._families.gauge("llog_tail_cache_logs").set_function(lambda: self._tail_cached[1])

    def observe_consume(
        self, partitions: int, records: int, byte_length: int, wait_ms: float, source: str, payload_bytes: int = 0
    ) -> None:
        self._consumes[source,].inc()
        self._consume_partitions.inc(partitions)
        self._consume_records[source,].inc(records)
        self._consume_bytes[source,].inc(byte_length)
        self._consume_payload_bytes[source,].inc(payload_bytes)
        self._consume_wait.observe(wait_ms / 1_000)

    def observe_append_to_consume(self, ms: float) -> None:
        self._append_to_consume.observe(ms / 1_000)

    def tail_cache_event(self, kind: str, count: int = 1) -> None:
        self._tail_cache[kind,].inc(count)

    def set_tail_cache(self, byte_length: int, logs: int) -> None:
        self._tail_cached = byte_length, logs

    # -- compaction -------------------------------------------------------------------------------------------------
    def _bind_compaction(self) -> None:
        self._compactions = self._families.counters("llog_compaction_runs_total")
        self._candidate_entries = self._families.histograms("llog_compaction_candidate_entries")
        self._candidate_bytes = self._families.histograms("llog_compaction_candidate_bytes")
        self._stages = self._families.histograms("llog_compaction_stage_seconds")
        self._claims = self._families.counters("llog_compactor_claims_total")
        self._recoveries = self._families.counters("llog_recovery_events_total")

    def observe_compaction(
        self, outcome: str, kind: str, entries: int, byte_length: int, stages_ms: Mapping[str, float]
    ) -> None:
        """A visit to a log; a visit that found nothing to rewrite has no entries and no candidate sizes."""
        self._compactions[outcome, kind].inc()
        if entries:
            self._candidate_entries[kind,].observe(entries)
        if byte_length:
            self._candidate_bytes[kind,].observe(byte_length)
        for stage, ms in stages_ms.items():
            self._stages[stage,].observe(ms / 1_000)

    def set_compaction_lag(
        self, topic: str, partition: int, offsets: int, byte_length: int, oldest_ms: int | None = None
    ) -> None:
        """Zero and zero: nothing left to compact, or the log is gone."""
        self._lag.set(topic, partition, offsets, byte_length, oldest_ms)

    def set_compaction_pending(self, runs: Mapping[str, int], appends: int) -> None:
        """`runs` by their state."""
        pending = self._families.gauge("llog_compaction_pending_runs")
        for state in RUN_STATES:
            pending.labels(state).set(runs.get(state, 0))
        self._families.gauge("llog_compaction_pending_appends").set(appends)

    def set_workers(self, busy: int, total: int) -> None:
        self._families.gauge("llog_compactor_workers_busy").set(busy)
        self._families.gauge("llog_compactor_workers").set(total)

    def set_discovery(self, targets: int, at_ms: int) -> None:
        self._families.gauge("llog_compactor_targets").set(targets)
        self._families.gauge("llog_compactor_discovery_timestamp_seconds").set(at_ms / 1_000)
        self._families.counter("llog_compactor_discoveries_total").inc()

    def claim_event(self, kind: str) -> None:
        self._claims[kind,].inc()

    def recovery_event(self, kind: str) -> None:
        self._recoveries[kind,].inc()

    # -- logs, vacuum, clocks, and what the log counts by name ------------------------------------------------------
    def _bind_the_rest(self) -> None:
        self._vacuum = self._families.counters("llog_vacuum_events_total")
        self._vacuum_bytes = self._families.counter("llog_vacuum_deleted_bytes_total")
        self._by_name = self._families.counters_by_name()
        self._count_unknown = self._families.overflow_of(UNKNOWN)

    def vacuum_event(self, kind: str, count: int = 1) -> None:
        """By the names of `VacuumReport`'s fields, `run`, `refused` and `failed`; bytes are a family of their own."""
        if kind == "bytes_deleted":
            self._vacuum_bytes.inc(count)
        else:
            self._vacuum[kind,].inc(count)

    def fenced_logs(self, count: int) -> None:
        self._families.gauge("llog_fenced_logs").set(count)

    def clock_skew(self, ms: float) -> None:
        self._families.gauge("llog_clock_skew_seconds").set(ms / 1_000)

    def count(self, name: str, value: int = 1) -> None:
        """By name: `x` is the family `llog_x_total` (`llog.log.metrics` has most of them). A name without a family does
        not fail the caller; it is counted as an overflow of `unknown`."""
        counter = self._by_name.get(name)
        if counter is None:
            self._count_unknown()
        else:
            counter.inc(value)


def _stores(metadata_url: str, wal_url: str, objects_url: str) -> dict[str, str]:
    kinds = {"metadata_store": metadata_url, "wal_store": wal_url, "object_store": objects_url}
    return {label: kind_of(url) for label, url in kinds.items()}


class GatheredCounts:
    """Counts that every request makes, gathered and passed to the registry together.

    A counter of the registry costs a microsecond and a histogram several, and every request moves eight of them.
    Nothing is lost or counted twice, also when a page is made in another thread.
    """

    def __init__(
        self,
        http: Callable[[HttpRow, list[float], int, int], None],
        kafka: Callable[[KafkaRow, list[float], int, int], None],
        appends: Callable[[int, int, int, int], None],
    ) -> None:
        """`http` and `kafka` count requests of one kind: the seconds of each, their bytes. `appends`: groups, records,
        bytes, bytes of values."""
        self._count_http, self._count_kafka, self._count_appends = http, kafka, appends
        self._lock = threading.Lock()
        self._http: dict[HttpRow, GatheredRow] = {}
        self._kafka: dict[KafkaRow, GatheredRow] = {}
        self._appended = [0, 0, 0, 0]
        self._waiting = 0

    def http(self, row: HttpRow, seconds: float, request_bytes: int, response_bytes: int) -> None:
        with self._lock:
            self._add(self._http, row, seconds, request_bytes, response_bytes)

    def kafka(self, row: KafkaRow, seconds: float, request_bytes: int, response_bytes: int) -> None:
        with self._lock:
            self._add(self._kafka, row, seconds, request_bytes, response_bytes)

    def _add(self, rows: dict[R, GatheredRow], row: R, seconds: float, request_bytes: int, response_bytes: int) -> None:
        known = rows.get(row)
        if known is None:
            known = rows[row] = [], [0, 0]
        known[0].append(seconds)
        known[1][0] += request_bytes
        known[1][1] += response_bytes
        self._waiting += 1
        if self._waiting >= METRICS_GATHERED_MAX:
            self._count()

    def appends(self, groups: int, records: int, byte_length: int, payload_bytes: int) -> None:
        with self._lock:
            appended = self._appended
            appended[0] += groups
            appended[1] += records
            appended[2] += byte_length
            appended[3] += payload_bytes

    def count(self) -> None:
        """Pass everything gathered so far to the registry."""
        with self._lock:
            self._count()

    def _count(self) -> None:
        for row, (seconds, sizes) in self._http.items():
            self._count_http(row, seconds, *sizes)
        for api, (seconds, sizes) in self._kafka.items():
            self._count_kafka(api, seconds, *sizes)
        self._count_appends(*self._appended)
        self._http, self._kafka, self._appended, self._waiting = {}, {}, [0, 0, 0, 0], 0
