"""Limits that several modules share.

Every queue, batch, retry, wait and cache has a limit with a name and a unit. A limit that one module uses is defined in
that module. An operator cannot change a limit; what an operator may change is a setting (`llog.settings`).
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# --- metadata stores --------------------------------------------------------------------------------------------------
# LMDB accepts keys of up to 511 bytes, of which we use one for the depth. Every store has the same limit.
METADATA_KEY_BYTES_MAX: Final = 480
METADATA_KEY_DEPTH_MAX: Final = 32
# Requests of 70 MiB made an Oxia shard unusable for good; much smaller ones already delay all others.
METADATA_REQUEST_BYTES_MAX: Final = MIB
METADATA_VALUE_BYTES_MAX: Final = 960 * KIB
METADATA_SCAN_PAGE_RECORDS_MAX: Final = 1_000
METADATA_WRITE_GROUPS_MAX: Final = 16_384
METADATA_GET_MANY_MAX: Final = 16_384
# Half of the 63-bit range, so that many versions are left after any number of raises.
METADATA_VERSION_FLOOR_MAX: Final = 2**62
METADATA_SESSION_TIMEOUT_MS_MIN: Final = 2_000
METADATA_SESSION_TIMEOUT_MS_MAX: Final = 300_000
# Unread changes of a slow watcher; beyond this it gets RESYNC and must read everything again.
METADATA_WATCH_QUEUE_MAX: Final = 10_000

# --- nodes ------------------------------------------------------------------------------------------------------------
# Kafka's node ids are signed 32-bit numbers.
NODE_ID_MAX: Final = 2**31 - 1

# --- Oxia client ------------------------------------------------------------------------------------------------------
# More requests in flight per shard only add latency, because the server syncs its log one group at a time.
OXIA_REQUESTS_IN_FLIGHT_MAX: Final = 8
OXIA_RETRY_DELAY_MS_MIN: Final = 20
OXIA_RETRY_DELAY_MS_MAX: Final = 1_000
# After a leader left a request unanswered for this long, the client asks another server which server leads.
OXIA_STALL_MS: Final = 1_500
OXIA_CONNECT_TIMEOUT_MS: Final = 2_000
OXIA_KEEPALIVE_INTERVAL_MS: Final = 10_000
OXIA_KEEPALIVE_TIMEOUT_MS: Final = 5_000
OXIA_CLOSE_TIMEOUT_MS: Final = 2_000

# --- other stores -----------------------------------------------------------------------------------------------------
# Pause between two attempts to connect, within the deadline of one request.
POSTGRES_CONNECT_PAUSE_MS: Final = 100
# How long a call waits for LMDB's single write lock, or a reader for a change of the map size.
LMDB_WAIT_MS_MAX: Final = 10_000
OBJECT_NAME_BYTES_MAX: Final = 1_000
# S3 accepts a PUT of up to 5 GiB; our objects are far smaller, and a put is never multipart.
OBJECT_BYTES_MAX: Final = GIB
OBJECT_DELETE_MANY_MAX: Final = 1_000
OBJECT_RANGES_MAX: Final = 1_024
# Buffers per call of preadv and pwritev (IOV_MAX on Linux).
OBJECT_WRITE_VECTOR_MAX: Final = 1_024
# Names per list request; S3 returns no more, and the other stores use the same page size.
OBJECT_LIST_PAGE_MAX: Final = 1_000
OBJECT_FILE_THREADS: Final = 8
# How often a process checks whether a failing store has recovered.
STORE_PROBE_MS: Final = 1_000

# --- formats ----------------------------------------------------------------------------------------------------------
RECORD_BATCH_BYTES_MAX: Final = 128 * MIB
# Decompressed size of one RecordBatch, enforced while decompressing.
RECORD_BATCH_DECODED_BYTES_MAX: Final = 256 * MIB
# Bytes that one step of a chunked decode takes, unless a single batch is larger.
RECORDS_CHUNK_BYTES: Final = 4 * MIB
SHARED_BLOB_HEADER_BYTES_MAX: Final = 16 * MIB
SEGMENT_FOOTER_PROBE_BYTES: Final = 64 * KIB

# --- the log ----------------------------------------------------------------------------------------------------------
# Compare-and-set rounds on a control record before the caller gets "busy, try again".
LOG_CAS_ROUNDS_MAX: Final = 64
LOG_BACKOFF_MS_MAX: Final = 500
LOG_READ_ROUNDS_MAX: Final = 8
# The last rounds of a read are strict: state that still does not fit is inconsistent, not stale.
LOG_READ_STRICT_ROUNDS: Final = 4
# Every append rewrites the control record. A record group with more producer claims is committed in several appends.
LOG_CONTROL_BYTES_MAX: Final = 64 * KIB
LOG_CLAIMS_PER_APPEND_MAX: Final = 400
# How long a log is idle before its settled `pending` is removed, and how often removal is tried.
LOG_IDLE_CLEAR_MS: Final = 1_000
# Bytes that one window of a reader fetches, unless a single entry is larger.
LOG_READ_COALESCE_BYTES_MAX: Final = 8 * MIB
# Entries of one compaction run: its segment record names each source object with about 100 bytes.
LOG_COMPACT_ENTRIES_MAX: Final = 4_000
LOG_COMPACT_ROUNDS_MAX: Final = 32
LOG_COMPACT_BYTES_DEFAULT: Final = 64 * MIB
# Target size of a merge, which is held in memory while it is written.
LOG_MERGE_BYTES_DEFAULT: Final = 256 * MIB
# Compare-and-set rounds on a topic record, or on the tombstone of one of its logs.
TOPIC_ROUNDS_MAX: Final = 32
# Looks at a log that keeps changing before a check leaves its findings unconfirmed.
LOG_CHECK_ROUNDS_MAX: Final = 6
LOG_CHECK_FAULTS_MAX: Final = 1_000
LOG_CHECK_READ_BYTES: Final = 8 * MIB
RESTORE_ROUNDS_MAX: Final = 16
# A blob committed after its log was copied may carry an id this much older than the start of the backup: upload,
# retries, commit rounds and clock differences.
RESTORE_BLOB_SLACK_MS: Final = 600_000
# Headers of candidates read at once, and logs checked at once.
VACUUM_READS_IN_FLIGHT_MAX: Final = 16
# Object names in a report; its counts cover all objects.
VACUUM_REPORT_NAMES_MAX: Final = 10_000
# Unreadable metadata records that a report names.
VACUUM_UNREADABLE_NAMED_MAX: Final = 1_000

# --- pipeline jobs ----------------------------------------------------------------------------------------------------
# Bytes of one split unless the `splitBytes` option sets another size.
SPLIT_BYTES_DEFAULT: Final = 64 * MIB
SPLIT_BYTES_MIN: Final = 64 * KIB
SPLIT_BYTES_MAX: Final = GIB
# Splits of one plan, each of which is a task; a plan with more is refused.
SPLITS_MAX: Final = 100_000
SPLIT_PLAN_LOGS_IN_FLIGHT_MAX: Final = 16
# Bytes of one log decoded in one pass, and bytes of an Arrow batch.
SPLIT_BATCH_BYTES_MAX: Final = 4 * MIB
# Source bytes of one compaction task: about a second of work, held in memory. Larger windows give each log fewer
# segments.
COMPACT_WINDOW_BYTES_MAX: Final = 256 * MIB
# The same in the compactor service, which may share its process with a broker.
COMPACT_WINDOW_BYTES_IN_SERVICE: Final = 128 * MIB
# Source bytes of a round that the service rewrites itself although it has Spark: one window, so one task, which Spark
# could not divide. On two busy cores Spark adds 0.25 to 0.4 s to a round of any size: 64 MB took 0.16 s in process and
# 0.49 s on Spark, 128 MB 0.30 s and 0.61 s; they were equal between 256 and 512 MB.
COMPACT_HERE_BYTES_MAX: Final = COMPACT_WINDOW_BYTES_IN_SERVICE
# One round of a job is planned, written and published before the job reads metadata again.
COMPACT_TASKS_PER_CORE: Final = 3
COMPACT_ROUND_LOGS_MAX: Final = 1_024
# Logs that a driver reads, claims or publishes at a time; each takes several requests in sequence.
COMPACT_LOGS_AT_ONCE: Final = 64
# Consecutive rounds without progress of a log, because others were faster or its objects were gone.
COMPACT_REPLANS_MAX: Final = 4
SURVEY_PAGE_OBJECTS_MAX: Final = 5_000
# Blobs whose headers one task reads.
VACUUM_TASK_HEADERS_MAX: Final = 1_000
# Row bytes that a sink task collects before it encodes and uploads them; also the uncompressed size of a RecordBatch.
SINK_BLOB_BYTES: Final = 16 * MIB
# Compare-and-set rounds on the records of a query before its driver gives up.
SINK_ROUNDS_MAX: Final = 64
# Logs that are looked up or initialized at the same time.
SINK_LOGS_IN_FLIGHT_MAX: Final = 128
# Segment levels from here on come from key compaction, or from merges of such segments; others never get so high.
KEY_COMPACT_LEVEL: Final = 64
# Default read rate of one pass of key compaction, over all its tasks.
KEY_COMPACT_READ_BYTES_PER_SECOND: Final = 50_000_000
# Bytes of distinct keys that a scan holds before it writes them out as one part.
KEY_SCAN_PART_BYTES_MAX: Final = 64 * MIB
EXPORT_CONFLICTS_MAX: Final = 5
EXPORT_SCHEMA_BYTES_MAX: Final = MIB
EXPORT_SCHEMA_DEPTH_MAX: Final = 16
# Sets of object stores that a Python worker of Spark keeps open, one for each set of settings it receives.
SPARK_WORKER_TOOLS_MAX: Final = 4

# --- the compactor service --------------------------------------------------------------------------------------------
# Logs whose records one request reads, and whose indexes are scanned at the same time.
COMPACTOR_INSPECT_LOGS_MAX: Final = 256
# A merge holds its inputs and its output in memory, LOG_MERGE_BYTES_DEFAULT each.
COMPACTOR_MERGES_AT_ONCE: Final = 1
# Scheduled backups: by default a quarter of the vacuum grace within these bounds, so that objects named by the newest
# backup still exist.
COMPACTOR_BACKUP_INTERVAL_MS_MIN: Final = 60_000
COMPACTOR_BACKUP_INTERVAL_MS_MAX: Final = 900_000
# Failing logs named on the health page; its count covers all of them.
COMPACTOR_TROUBLES_SHOWN_MAX: Final = 10
# Bytes of distinct keys of one log that the service aggregates in its own process; more wait for Spark or a manual job.
COMPACTOR_KEYS_BYTES_MAX: Final = 256 * MIB

# --- brokers ----------------------------------------------------------------------------------------------------------
# Logs that are looked up or created for the first time at the same time.
BATCH_NEW_LOGS_IN_FLIGHT_MAX: Final = 256
HTTP_TOPIC_PARTITIONS_MAX: Final = 10_000
GROUP_POSITIONS_PER_CALL_MAX: Final = 1_000
# Parts into which consumer groups are divided by the hash of their names; each has one coordinator.
GROUP_SLOTS: Final = 64
# Length of the text stored with a position; Kafka has the same default.
GROUP_POSITION_METADATA_CHARS_MAX: Final = 4_096
METRICS_LABEL_CHARS_MAX: Final = 128

# --- simulation -------------------------------------------------------------------------------------------------------
# Callbacks and store calls of one simulated run, so that an actor that retries for ever ends.
SIM_STEPS_MAX: Final = 1_000_000
SIM_EXPLORE_STATES_MAX: Final = 1_000_000
SIM_EXPLORE_RUNS_MAX: Final = 1_000_000

# --- relations --------------------------------------------------------------------------------------------------------
# A value and its key fit one request; records with many parts fit one value.
assert METADATA_KEY_BYTES_MAX + METADATA_VALUE_BYTES_MAX < METADATA_REQUEST_BYTES_MAX
assert 150 * LOG_CLAIMS_PER_APPEND_MAX < LOG_CONTROL_BYTES_MAX < METADATA_VALUE_BYTES_MAX  # a claim has up to 150 bytes
assert 100 * LOG_COMPACT_ENTRIES_MAX < METADATA_VALUE_BYTES_MAX
assert METADATA_SESSION_TIMEOUT_MS_MIN < METADATA_SESSION_TIMEOUT_MS_MAX
assert OXIA_RETRY_DELAY_MS_MIN < OXIA_RETRY_DELAY_MS_MAX < OXIA_STALL_MS < METADATA_SESSION_TIMEOUT_MS_MIN
# A batch, a split and a segment fit one object.
assert RECORD_BATCH_BYTES_MAX <= RECORD_BATCH_DECODED_BYTES_MAX <= OBJECT_BYTES_MAX
assert SHARED_BLOB_HEADER_BYTES_MAX < OBJECT_BYTES_MAX
assert LOG_COMPACT_BYTES_DEFAULT <= LOG_MERGE_BYTES_DEFAULT <= OBJECT_BYTES_MAX
assert COMPACT_WINDOW_BYTES_IN_SERVICE <= COMPACT_WINDOW_BYTES_MAX <= OBJECT_BYTES_MAX
assert SPLIT_BYTES_MIN <= SPLIT_BATCH_BYTES_MAX <= SPLIT_BYTES_DEFAULT <= SPLIT_BYTES_MAX <= OBJECT_BYTES_MAX
assert LOG_READ_STRICT_ROUNDS < LOG_READ_ROUNDS_MAX
