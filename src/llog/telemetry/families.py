"""Every metric of a broker and of the compaction service: one table.

The Prometheus page, the JSON page, docs/reference/metrics.md and the check of the dashboard's queries all come from
these rows, so they cannot disagree about a name.

- Names follow Prometheus: `llog_` in front, the unit last (`_seconds`, `_bytes`), `_total` behind counters.
- A row's JSON paths are written with dots; `{label}` stands for that label's value. A label that a path does not name
  is summed away there: `s3.operations.put.requests` holds the requests of all tiers.
- No path is a prefix of another, so the JSON page is a tree with numbers (or histograms) at its leaves. The labels of
  an info family become texts beside the other leaves of its path.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram", "info"]

OTHER: Final = "other"
"""The label value of observations beyond the limit of label values."""
UNKNOWN: Final = "unknown"
"""Stands for the family of counts by a name that no family has."""

SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
STAGE_SECONDS: Final = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)
BYTES: Final = tuple(float(1 << power) for power in range(10, 31, 2))
COUNTS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0)

APPEND_TROUBLES: Final = ("AppendNotCommitted", "AppendUncertain", "LogBusy", "InconsistentReadState")
"""Errors that are not the producer's fault."""
APPEND_REFUSALS: Final = (
    "BackPressureRejected", "DuplicateSequence", "LogDeleted", "LogFenced", "OutOfOrderSequence",
    "PartitionNotInitialized", "PartitionOutOfRange", "ProducerEpochFenced", "RecordTooLarge", "TimestampOutOfWindow",
    "UnknownProducer",
)  # fmt: skip
"""Errors that are the producer's fault; alerts leave these out."""
KAFKA_REFUSALS: Final = (
    "connections", "size", "malformed", "unsupported", "overload", "stalled", "request", "unauthenticated",
)  # fmt: skip
FLUSH_REASONS: Final = ("size", "delay", "idle", "pressure", "call", "close")
CONSUME_SOURCES: Final = ("cache", "store", "empty")
TAIL_CACHE_EVENTS: Final = ("hit", "empty", "miss", "evicted")
COMPACTION_OUTCOMES: Final = ("compacted", "resumed", "idle", "busy", "claimed_elsewhere", "failed")
COMPACTION_KINDS: Final = ("compact", "key_compact", "merge", "retain", "resume")
RUN_STATES: Final = ("WRITING_COMPACTED_INDEX", "UPDATING_CURSOR", "DELETING_OLD")
CLAIM_EVENTS: Final = (
    "acquired", "claimed_elsewhere", "released", "release_failed", "session_opened", "session_lost", "session_closed",
)  # fmt: skip
RECOVERY_EVENTS: Final = ("run_resumed", "pending_settled", "deletion_finished")
VACUUM_EVENTS: Final = (
    "run", "refused", "failed", "blobs_deleted", "segments_marked", "segments_deleted", "phantoms_removed",
    "kept_unreadable", "kept_unknown_log", "kept_unchecked", "kept_planned", "kept_unread",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    """The exported name; a histogram's samples add `_bucket`, `_sum` and `_count`."""
    kind: Kind
    doc: str
    at: tuple[str, ...]
    """Paths on the JSON page."""
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    starts: tuple[tuple[str, ...], ...] = ()
    """Label values that start at zero, because an increase from nothing is invisible to Prometheus."""
    collected: bool = False
    """Read from plain numbers when a page is made (`collectors`), instead of written as things happen."""


def _row(
    kind: Kind,
    name: str,
    at: str | tuple[str, ...],
    doc: str,
    labels: str = "",
    *,
    buckets: tuple[float, ...] = (),
    starts: tuple[tuple[str, ...], ...] = (),
    collected: bool = False,
) -> Family:
    """`labels` are separated by spaces; `starts` lists the known values of each, and all combinations start at zero."""
    paths = (at,) if isinstance(at, str) else at
    begin = tuple(product(*starts)) if starts else ()
    return Family(name, kind, doc, paths, tuple(labels.split()), buckets, begin, collected)


_info, _gauge = partial(_row, "info"), partial(_row, "gauge")
_counter, _histogram = partial(_row, "counter"), partial(_row, "histogram")

# fmt: off
SECTIONS: Final[dict[str, tuple[Family, ...]]] = {
    "Process": (
        _counter("process_cpu_seconds_total", "process.cpu_seconds", "CPU time, user and system.", collected=True),
        _gauge("process_resident_memory_bytes", "process.resident_memory_bytes", "Memory in RAM.", collected=True),
        _gauge("process_virtual_memory_bytes", "process.virtual_memory_bytes", "Address space.", collected=True),
        _gauge("process_open_fds", "process.open_fds", "Open file descriptors.", collected=True),
        _gauge("process_max_fds", "process.max_fds", "Most file descriptors it may open.", collected=True),
        _gauge("process_start_time_seconds", "process.start_time_seconds", "When it started (Unix time).",
            collected=True),
    ),
    "Broker": (
        _info("llog_broker_info", "broker",
            "About this broker: `broker_id`, `host`, `port`, `role`, `version`, and the kinds of its stores."),
        _gauge("llog_broker_started_timestamp_seconds", "broker.started_at_seconds",
            "When the process started (Unix time)."),
        _gauge("llog_batch_max_bytes", "broker.batch.max_bytes", "`LLOG_BATCH_MAX_BYTES`."),
        _gauge("llog_batch_max_delay_seconds", "broker.batch.max_delay_seconds", "`LLOG_BATCH_MAX_DELAY_MS`."),
        _gauge("llog_batch_max_buffer_bytes", "broker.batch.max_buffer_bytes", "`LLOG_BATCH_MAX_BUFFER_BYTES`."),
        _gauge("llog_tail_cache_max_bytes", "broker.tail_cache.max_bytes", "`LLOG_TAIL_CACHE_MAX_BYTES`."),
    ),
    "Load test": (
        _info("llog_loadtest_info", "loadtest",
            "`scenario` and `run_id` of the load test this process serves; absent without one."),
        _gauge("llog_loadtest_parameter", "loadtest.parameters.{parameter}",
            "The shape of the run, as its scenario states it: brokers, partitions, bytes of a record, …", "parameter"),
    ),
    "HTTP": (
        _counter("llog_http_requests_total", "http.requests.{route}.{method}.{status}", "Requests answered.",
            "route method status"),
        _histogram("llog_http_request_seconds", "http.request_seconds.{route}",
            "Time from a request's head to the end of its answer.", "route", buckets=SECONDS),
        _counter("llog_http_request_bytes_total", "http.request_bytes.{route}", "Bytes of request bodies.", "route"),
        _counter("llog_http_response_bytes_total", "http.response_bytes.{route}", "Bytes of answers.", "route"),
        _counter("llog_http_validation_failures_total", "http.validation_failures.{route}.{field}",
            "Requests refused because of one field.", "route field"),
    ),
    "Kafka": (
        _gauge("llog_kafka_connections", "kafka.connections", "Open connections."),
        _counter("llog_kafka_requests_total", "kafka.requests.{api}.{error}",
            "Requests, by the first error in their answers; `NONE` without one, `NO_ANSWER` when the connection ended"
            " first.", "api error"),
        _histogram("llog_kafka_request_seconds", "kafka.request_seconds.{api}",
            "Time from a request's last byte to the beginning of its answer, long polls included.", "api",
            buckets=SECONDS),
        _counter("llog_kafka_request_bytes_total", "kafka.request_bytes.{api}", "Bytes of requests.", "api"),
        _counter("llog_kafka_response_bytes_total", "kafka.response_bytes.{api}", "Bytes of answers.", "api"),
        _counter("llog_kafka_refused_total", "kafka.refused.{reason}",
            "Connections that were ended: too many at once, a frame too large or not a request, an API or version that"
            " is not served, no memory for a frame, a frame that arrived too slowly, a request that was refused and"
            " wanted no answer, a request before authentication or behind its end.", "reason",
            starts=(KAFKA_REFUSALS,)),
        _counter("llog_kafka_handler_failures_total", "kafka.handler_failures",
            "Requests that ended their connection because of a fault of the broker, which its log explains."),
    ),
    "Security": (
        _counter("llog_authorization_refusals_total", "security.authorization_refusals",
            "Resources that a principal was refused by access control lists."),
        _counter("llog_authentication_failures_total", "security.authentication_failures",
            "Kafka clients that failed to authenticate."),
    ),
    "Batching": (
        _gauge("llog_wal_bytes", "wal.bytes",
            "Bytes of blobs in a separate WAL store, as this broker knows; 0 without one."),
        _gauge("llog_wal_max_bytes", "wal.max_bytes",
            "`LLOG_WAL_MAX_BYTES`: records are refused while the WAL store holds as much; 0 without one."),
        _gauge("llog_batch_buffered_bytes", "batching.buffered_bytes", "Bytes between socket and commit."),
        _gauge("llog_batch_buffered_requests", "batching.buffered_requests", "Requests that wait for their commit."),
        _counter("llog_batch_flushes_total", "batching.flushes.{reason}", "Flushes, by what triggered them.", "reason",
            starts=(FLUSH_REASONS,)),
        _counter("llog_batch_records_total", "batching.records", "Records in flushes."),
        _counter("llog_batching_rejections_total", "batching.rejections",
            "Requests refused because their body or their records did not fit into the buffer."),
        _counter("llog_batching_flush_failures_total", "batching.flush_failures",
            "Flushes that ended without an outcome for each of their logs."),
        _counter("llog_batching_listener_failures_total", "batching.listener_failures",
            "Commits that could not be added to the tail cache."),
        _histogram("llog_batch_flush_groups", "batching.flush_groups", "Logs in one flush.", buckets=COUNTS),
        _histogram("llog_batch_blob_bytes", "batching.blob_bytes", "Sizes of shared WAL blobs.", buckets=BYTES),
        _histogram("llog_batch_queue_wait_seconds", "batching.queue_wait_seconds",
            "Time from a flush's first record to its upload.", buckets=SECONDS),
        _histogram("llog_batch_upload_seconds", "batching.upload_seconds", "Upload of a blob.", buckets=SECONDS),
        _histogram("llog_batch_commit_seconds", "batching.commit_seconds", "Commit of a blob's record groups.",
            buckets=SECONDS),
    ),
    "Append": (
        _counter("llog_append_runs_total", "append.runs",
            "Runs of pieces committed: one per log and flush, more when a record group had to be split.",
            collected=True),
        _counter("llog_append_cas_rounds_total", "append.cas_rounds", "Attempts to move a control record.",
            collected=True),
        _counter("llog_append_conflicts_total", "append.conflicts", "Attempts that lost against another writer.",
            collected=True),
        _counter("llog_append_uncertain_total", "append.uncertain",
            "Attempts with an unknown outcome, because the answer was lost.", collected=True),
        _counter("llog_append_resolved_total", "append.resolved",
            "Attempts with an unknown outcome that were resolved afterwards.", collected=True),
        _counter("llog_append_settles_total", "append.settles", "Index entries written for pending appends.",
            collected=True),
        _counter("llog_append_cleared_total", "append.cleared",
            "Control records of idle logs from which a settled `pending` was removed.", collected=True),
        _counter("llog_append_yields_total", "append.yields",
            "Times a writer that kept winning let other writers of the log go first.", collected=True),
        _counter("llog_append_failures_total", "append.failures.{error}",
            "Record groups that were not committed, by the error that their producer got.", "error",
            starts=(APPEND_TROUBLES,)),
        _counter("llog_log_append_groups_total", "log.append_groups", "Record groups committed."),
        _counter("llog_log_append_records_total", "log.append_records", "Records committed."),
        _counter("llog_log_append_bytes_total", "log.append_bytes", "Encoded bytes committed."),
        _counter("llog_log_append_payload_bytes_total", "log.append_payload_bytes",
            "Bytes of the values of the records committed, without keys, headers and framing. A compressed Kafka batch"
            " counts with its compressed bytes behind the batch header, except in a topic that is compacted by key,"
            " where the broker decompresses it."),
        _counter("llog_log_append_failures_total", "log.append_failures",
            "All failures by error, added up: refused, or with an unknown outcome."),
    ),
    "Consume": (
        _counter("llog_consume_requests_total", "consume.requests.{source}",
            "Consume requests, by the source of their records.", "source", starts=(CONSUME_SOURCES,)),
        _counter("llog_consume_partitions_total", "consume.partitions", "Partitions requested."),
        _counter("llog_consume_records_total", "consume.records.{source}", "Records returned.", "source",
            starts=(CONSUME_SOURCES,)),
        _counter("llog_consume_bytes_total", "consume.bytes.{source}",
            "Bytes of the batches whose records were returned, not compressed.", "source", starts=(CONSUME_SOURCES,)),
        _counter("llog_consume_payload_bytes_total", "consume.payload_bytes.{source}",
            "Bytes of the values of the records returned, as `llog_log_append_payload_bytes_total` counts them. Exact"
            " over HTTP. A Kafka Fetch returns whole batches, which the broker does not look into: exact for appends"
            " that are still cached whole by the broker that took them; otherwise the bytes behind the batch headers,"
            " which are 7 to 24 more per record, and its key and headers.", "source", starts=(CONSUME_SOURCES,)),
        _histogram("llog_consume_wait_seconds", "consume.wait_seconds",
            "Time that a consume waited at the ends of its logs for an append (`max_wait_ms`, `min_bytes`); 0 when it"
            " was answered at once. Reading, encoding and sending are not in it: `llog_http_request_seconds` has them.",
            buckets=SECONDS),
        _histogram("llog_append_to_consume_seconds", "consume.append_to_consume_seconds",
            "Time from the commit of an append by this broker to its first delivery to a consumer.", buckets=SECONDS),
        _counter("llog_tail_cache_events_total", "tail_cache.events.{kind}", "Lookups by their result, and evictions.",
            "kind", starts=(TAIL_CACHE_EVENTS,)),
        _gauge("llog_tail_cache_bytes", "tail_cache.bytes", "Bytes in the tail cache."),
        _gauge("llog_tail_cache_logs", "tail_cache.logs", "Logs with records in the tail cache."),
        _counter("llog_log_read_gets_total", "log.read_gets", "Requests to object stores made by readers."),
        _counter("llog_log_read_bytes_total", "log.read_bytes", "Bytes fetched by readers."),
        _counter("llog_log_read_records_total", "log.read_records", "Records fetched by readers."),
        _counter("llog_log_read_restarts_total", "log.read_restarts", "Reads that started again with fresh metadata."),
    ),
    "Compaction service": (
        _info("llog_compactor_info", "compactor",
            "About this compactor: `compactor_id`, `host`, `port`, `version`, and the kinds of its stores."),
        _gauge("llog_compactor_started_timestamp_seconds", "compactor.started_at_seconds",
            "When the process started (Unix time)."),
        _gauge("llog_compactor_workers", "compactor.workers.total", "Number of workers."),
        _gauge("llog_compactor_workers_busy", "compactor.workers.busy", "Workers that process a log."),
        _gauge("llog_compactor_targets", "compactor.discovery.targets", "Logs known to the service."),
        _counter("llog_compactor_discoveries_total", "compactor.discovery.count", "Discoveries finished."),
        _gauge("llog_compactor_discovery_timestamp_seconds", "compactor.discovery.at_seconds",
            "When the last discovery finished (Unix time)."),
        _counter("llog_compactor_claims_total", "compactor.claims.{kind}", "Events of claims on logs.", "kind",
            starts=(CLAIM_EVENTS,)),
    ),
    "Compaction": (
        _counter("llog_compaction_runs_total", "compaction.runs.{kind}.{outcome}",
            "Visits to logs, by outcome.", "outcome kind", starts=(COMPACTION_OUTCOMES, COMPACTION_KINDS)),
        _histogram("llog_compaction_candidate_entries", "compaction.candidate.{kind}.entries",
            "Index entries that one run rewrote, or retention removed.", "kind", buckets=COUNTS),
        _histogram("llog_compaction_candidate_bytes", "compaction.candidate.{kind}.bytes",
            "Bytes that one run wrote.", "kind", buckets=BYTES),
        _histogram("llog_compaction_stage_seconds", "compaction.stages.{stage}", "Stages of a run.", "stage",
            buckets=STAGE_SECONDS),
        _gauge("llog_compaction_lag_offsets", "compaction.lag.offsets.{topic}.{partition}",
            "Offsets not compacted yet: the logs furthest behind by name, all others together as `other`.",
            "topic partition", collected=True),
        _gauge("llog_compaction_lag_bytes", "compaction.lag.bytes.{topic}.{partition}",
            "Bytes not compacted yet, at most as many as one run takes.", "topic partition",
            collected=True),
        _gauge("llog_compaction_lag_seconds", "compaction.lag.seconds.{topic}.{partition}",
            "Age of the oldest append not compacted yet.", "topic partition", collected=True),
        _gauge("llog_compaction_lagging_logs", "compaction.lag.logs", "Logs with appends left to compact.",
            collected=True),
        _gauge("llog_compaction_pending_runs", ("compaction.pending.runs", "compaction.pending.states.{state}"),
            "Runs found started and not finished, by state.", "state", starts=(RUN_STATES,)),
        _gauge("llog_compaction_pending_appends", "compaction.pending.appends",
            "Logs found with an append that is reserved and not settled."),
        _counter("llog_recovery_events_total", "compaction.recovery.{kind}",
            "Work left by a process that ended, finished by this one.", "kind", starts=(RECOVERY_EVENTS,)),
        _counter("llog_log_compact_runs_total", "log.compact_runs", "Runs published."),
        _counter("llog_log_compact_bytes_total", "log.compact_bytes", "Bytes written into segments, merges included."),
    ),
    "Logs, vacuum and clocks": (
        _gauge("llog_fenced_logs", "logs.fenced", "Logs in state FENCED, closed to appends."),
        _counter("llog_vacuum_events_total", "vacuum.events.{kind}",
            "Runs and refusals of vacuum, what it removed, and what it kept because it was not certain.", "kind",
            starts=(VACUUM_EVENTS,)),
        _counter("llog_vacuum_deleted_bytes_total", "vacuum.deleted_bytes", "Bytes of objects that vacuum removed."),
        _gauge("llog_clock_skew_seconds", "clock.skew_seconds",
            "Difference between the clocks of this machine and of its stores."),
    ),
    "Metadata store": (
        _info("llog_metadata_info", "metadata",
            "`store` is the kind of the store. For Oxia, the JSON page shows this section as `oxia` too.",
            collected=True),
        _counter("llog_metadata_calls_total", "metadata.operations.{operation}.calls", "Calls.", "store operation",
            collected=True),
        _counter("llog_metadata_items_total", "metadata.operations.{operation}.items",
            "Keys requested, records found, writes requested, changes reported.", "store operation", collected=True),
        _counter("llog_metadata_errors_total", "metadata.operations.{operation}.errors.{kind}",
            "Calls, or groups of a write, that failed; `conflict` means that another writer was faster.",
            "store operation kind", collected=True),
        _histogram("llog_metadata_call_seconds", "metadata.operations.{operation}.latency_seconds", "Latency.",
            "store operation", collected=True),
        _counter("llog_metadata_sessions_lost_total", "metadata.sessions_lost", "Sessions the store dropped.", "store",
            collected=True),
    ),
    "S3 (object stores)": (
        _info("llog_s3_info", "s3.tiers.{tier}",
            "The object stores; `store` is the actual kind of each (`s3`, `file`, `memory`).", "tier store",
            collected=True),
        _counter("llog_s3_calls_total",
            ("s3.operations.{operation}.calls", "s3.operations.{operation}.outcomes.{outcome}"), "Calls by outcome.",
            "tier store operation outcome", collected=True),
        _counter("llog_s3_requests_total", "s3.operations.{operation}.requests",
            "Requests as a bill counts them: pages of a listing, ranges after merging, attempts. Spark tasks included.",
            "tier store operation", collected=True),
        _counter("llog_s3_bytes_total", "s3.operations.{operation}.bytes", "Bytes transferred.", "tier store operation",
            collected=True),
        _histogram("llog_s3_call_seconds", "s3.operations.{operation}.latency_seconds", "Latency.",
            "tier store operation", collected=True),
    ),
    "S3 billing estimate": (
        _info("llog_s3_billing_info", "s3.billing",
            "`store` is the actual kind of the stores; if it is not `s3`, the figures are what S3 would charge.",
            "store assumptions", collected=True),
        _gauge("llog_s3_billing_price_usd", "s3.billing.prices_usd.{item}", "Prices of the estimate.", "item",
            collected=True),
        _counter("llog_s3_billing_requests_usd_total",
            ("s3.billing.request_cost_usd", "s3.billing.tiers.{tier}.request_cost_usd"),
            "Cost of this process's requests and of its Spark tasks so far. Sum it over processes.", "tier store",
            collected=True),
        _gauge("llog_s3_billing_objects", ("s3.billing.object_count", "s3.billing.tiers.{tier}.object_count"),
            "Objects under `LLOG_ROOT_PREFIX` at the last listing. All processes see the same: take the largest.",
            "tier store", collected=True),
        _gauge("llog_s3_billing_stored_bytes", ("s3.billing.stored_bytes", "s3.billing.tiers.{tier}.stored_bytes"),
            "Bytes of those objects. Take the largest.", "tier store", collected=True),
        _gauge("llog_s3_billing_stored_gb", ("s3.billing.stored_gb", "s3.billing.tiers.{tier}.stored_gb"),
            "The same in GB of 2^30 bytes, as S3 counts. Take the largest.", "tier store", collected=True),
        _gauge("llog_s3_billing_storage_usd_per_month",
            ("s3.billing.storage_cost_usd_per_month", "s3.billing.tiers.{tier}.storage_cost_usd_per_month"),
            "Storage cost of those objects per month. Take the largest.", "tier store", collected=True),
        _gauge("llog_s3_billing_listed_timestamp_seconds", "s3.billing.tiers.{tier}.listed_at_seconds",
            "When the objects were last listed (Unix time); 0: never.", "tier store", collected=True),
        _counter("llog_s3_billing_list_failures_total", "s3.billing.tiers.{tier}.list_failures",
            "Listings that failed; the figures of the last good listing stay.", "tier store", collected=True),
    ),
    "Metrics themselves": (
        _counter("llog_metrics_overflow_total", "metrics.overflow.{family}",
            "Observations counted as `other` because a family had too many label values; as family `unknown`, counts"
            " by a name that no family has.", "family"),
    ),
}
# fmt: on

FAMILIES: Final = tuple(row for rows in SECTIONS.values() for row in rows)
_BY_NAME: Final = {row.name: row for row in FAMILIES}


def family(name: str) -> Family:
    return _BY_NAME[name]


def sample_names(row: Family) -> tuple[str, ...]:
    """The names that queries may use."""
    if row.kind == "histogram":
        return tuple(row.name + suffix for suffix in ("_bucket", "_sum", "_count"))
    return (row.name,)


_INTRODUCTION: Final = (
    "Written by `make docs` from the table in `llog/telemetry/families.py`. A broker and the compaction service"
    " show the same families: as JSON at `GET /metrics`, as Prometheus text at `GET /metrics/prometheus`.",
    "In JSON a family is at the path in the third column; `{label}` is a label's value, and labels that the path"
    " does not name are summed away. A histogram is `{count, sum, buckets}`, the buckets by their upper bound and"
    " cumulative. The labels of an info family become texts at its path.",
    "Each process counts for itself. Counters add up over processes. Object counts, stored bytes and"
    " storage costs describe the shared bucket: aggregate them with `max`, not `sum`. The billing estimate leaves out"
    " data transfer, replication, lifecycle transitions, key management, taxes and discounts;"
    " and, because Spark's workers have no metrics page, the requests of tasks on Spark: large rounds of compaction,"
    " key compaction and `llog pipeline`.",
    "A load test describes itself to the processes it starts in `LLOG_LOADTEST_SCENARIO`, as JSON:"
    ' `{"name": "steady", "run_id": "2026-01-31-a", "parameters": {"brokers": 3, "partitions": 64}}`.',
    "`grafana/leaderless-log-observability.json` is a dashboard of all of them, `grafana/alerts.yml` has alert rules.",
)


def markdown() -> str:
    """The reference page."""
    parts = ["# Metrics", *_INTRODUCTION]
    for section, rows in SECTIONS.items():
        table = ["| metric | kind | JSON | labels | meaning |", "|---|---|---|---|---|"]
        for row in rows:
            at, labels = (", ".join(f"`{text}`" for text in texts) for texts in (row.at, row.labels))
            table.append(f"| `{row.name}` | {row.kind} | {at} | {labels} | {row.doc} |")
        parts += [f"## {section}", "\n".join(table)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
