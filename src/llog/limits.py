"""Every bound of llog, by name.

A queue, batch, retry, wait or cache without a limit here is a bug. Limits are facts of the formats and of the
stores behind us; what an operator may change is a setting (`settings.py`) whose default is often one of these.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# --- metadata stores -------------------------------------------------------------------------------------------
# LMDB cannot hold a longer key than 511 bytes, one of which we use for the depth; one limit for every store.
METADATA_KEY_BYTES_MAX: Final = 480
METADATA_KEY_DEPTH_MAX: Final = 32
# A larger request wedges an Oxia shard for good (seen at 70 MiB); far below that, one slow request delays all others.
METADATA_REQUEST_BYTES_MAX: Final = MIB
# One value and its key must fit one request.
METADATA_VALUE_BYTES_MAX: Final = 960 * KIB
METADATA_SCAN_PAGE_RECORDS_MAX: Final = 1_000
METADATA_WRITE_GROUPS_MAX: Final = 16_384
METADATA_GET_MANY_MAX: Final = 16_384
# Half of what 63 bits hold: however often versions are raised, as many are left to be given.
METADATA_VERSION_FLOOR_MAX: Final = 2**62
METADATA_SESSION_TIMEOUT_MS_MIN: Final = 2_000
METADATA_SESSION_TIMEOUT_MS_MAX: Final = 300_000
# Changes a slow watcher may leave unread before it is told to read everything again.
METADATA_WATCH_QUEUE_MAX: Final = 10_000

# --- Oxia client -----------------------------------------------------------------------------------------------
# More requests in flight per shard only add latency: the server syncs its log one group at a time.
OXIA_REQUESTS_IN_FLIGHT_MAX: Final = 8
OXIA_RETRY_DELAY_MS_MIN: Final = 20
OXIA_RETRY_DELAY_MS_MAX: Final = 1_000
# A leader that leaves a request unanswered for so long is suspected: another server is asked who leads.
OXIA_STALL_MS: Final = 1_500
OXIA_CONNECT_TIMEOUT_MS: Final = 2_000
OXIA_KEEPALIVE_INTERVAL_MS: Final = 10_000
OXIA_KEEPALIVE_TIMEOUT_MS: Final = 5_000
OXIA_CLOSE_TIMEOUT_MS: Final = 2_000

# --- PostgreSQL ------------------------------------------------------------------------------------------------
# Between two attempts to connect, all within one request's deadline.
POSTGRES_CONNECT_PAUSE_MS: Final = 100

# --- object stores ---------------------------------------------------------------------------------------------
OBJECT_NAME_BYTES_MAX: Final = 1_000
# S3 takes one PUT of at most 5 GiB; ours are far smaller, and a put is never multipart.
OBJECT_BYTES_MAX: Final = GIB
OBJECT_DELETE_MANY_MAX: Final = 1_000
OBJECT_RANGES_MAX: Final = 1_024
# preadv and pwritev take at most this many buffers per call (IOV_MAX on Linux).
OBJECT_WRITE_VECTOR_MAX: Final = 1_024
# S3 answers at most this many names per list request; other stores page alike.
OBJECT_LIST_PAGE_MAX: Final = 1_000
# Ranges nearer than this are fetched by one request: reading the gap takes less time than another round trip.
OBJECT_RANGE_GAP_BYTES_MAX: Final = 128 * KIB
OBJECT_FILE_THREADS: Final = 8

# --- stores in trouble -----------------------------------------------------------------------------------------
# … and asks it this often whether it is well again.
STORE_PROBE_MS: Final = 1_000

# --- formats ---------------------------------------------------------------------------------------------------
# What one compressed RecordBatch may inflate to; checked while inflating.
RECORD_BATCH_DECODED_BYTES_MAX: Final = 256 * MIB
RECORD_BATCH_BYTES_MAX: Final = 128 * MIB
SHARED_BLOB_HEADER_BYTES_MAX: Final = 16 * MIB
SEGMENT_FOOTER_PROBE_BYTES: Final = 64 * KIB

# --- settings, wiring and command line -------------------------------------------------------------------------
# Buckets and directories that index entries name, open at once. A cluster has two or three.
OBJECT_STORES_OPEN_MAX: Final = 64

# --- record batches ----------------------------------------------------------------------------------------------
# What one step of reading a long buffer of batches record by record decodes, unless a single batch is larger.
RECORDS_CHUNK_BYTES: Final = 4 * MIB

# --- LMDB ----------------------------------------------------------------------------------------------------------
# How long a call waits for the machine's one write lock, or a reader for a change of the map, before it gives up.
LMDB_WAIT_MS_MAX: Final = 10_000

# --- the log ---------------------------------------------------------------------------------------------------
# Rounds of compare-and-set before whoever changes a control record answers "busy, try again".
LOG_CAS_ROUNDS_MAX: Final = 64
LOG_BACKOFF_MS_MAX: Final = 500
LOG_READ_ROUNDS_MAX: Final = 8
# The last rounds of a read ask strictly: what still does not fit then is inconsistent, not stale.
LOG_READ_STRICT_ROUNDS: Final = 4
# Every append rewrites the control record; with more claims of producers than that, a group is committed in several.
LOG_CONTROL_BYTES_MAX: Final = 64 * KIB
# A claim has at most 150 bytes there, and the rest of the record fits what is left over.
LOG_CLAIMS_PER_APPEND_MAX: Final = 400
# How long a log is left alone before its settled `pending` is taken away, and how often that is tried.
LOG_IDLE_CLEAR_MS: Final = 1_000
# What one window of a reader fetches, unless a single entry is larger; segments come in pieces of one to two times it.
LOG_READ_COALESCE_BYTES_MAX: Final = 8 * MIB

# --- simulation ----------------------------------------------------------------------------------------------------
# Callbacks and store calls of one simulated run; an actor that retries for ever ends here.
SIM_STEPS_MAX: Final = 1_000_000
SIM_EXPLORE_STATES_MAX: Final = 1_000_000
SIM_EXPLORE_RUNS_MAX: Final = 1_000_000
# Its segment's record names every source object: about 100 bytes each, and a value should stay well below 1 MiB.
LOG_COMPACT_ENTRIES_MAX: Final = 4_000
LOG_COMPACT_ROUNDS_MAX: Final = 32
LOG_COMPACT_BYTES_DEFAULT: Final = 64 * MIB
# What a merge aims at; held in memory while it is written.
LOG_MERGE_BYTES_DEFAULT: Final = 256 * MIB

# --- topics ----------------------------------------------------------------------------------------------------------
# Rounds of compare-and-set on a topic's record, or on the tombstone of one of its logs.
TOPIC_ROUNDS_MAX: Final = 32

# --- looking into a log, backup and restore ------------------------------------------------------------------------
# A finding counts once a strict look confirmed it; a log that keeps moving is looked at so often, then left unsettled.
LOG_CHECK_ROUNDS_MAX: Final = 6
LOG_CHECK_FAULTS_MAX: Final = 1_000
LOG_CHECK_READ_BYTES: Final = 8 * MIB
RESTORE_ROUNDS_MAX: Final = 16
# A blob that was committed after its log was copied may have been drawn this long before the backup began (upload,
# retries, commit rounds, and clocks that differ).
RESTORE_BLOB_SLACK_MS: Final = 600_000

# --- vacuum --------------------------------------------------------------------------------------------------------
# Headers of candidates that are read at once, and logs that are checked at once.
VACUUM_READS_IN_FLIGHT_MAX: Final = 16
# Names of objects listed in a report; the counts are of all of them.
VACUUM_REPORT_NAMES_MAX: Final = 10_000

# --- the compactor service -----------------------------------------------------------------------------------------
# Logs whose records are read by one request, and whose index is scanned at the same time.
COMPACTOR_LOOK_LOGS_MAX: Final = 256
# A merge holds its inputs and its output in memory; LOG_MERGE_BYTES_DEFAULT each.
COMPACTOR_MERGES_AT_ONCE: Final = 1
# Well within the vacuum grace, so that what the newest backup names is still there.
COMPACTOR_BACKUP_INTERVAL_MS_MIN: Final = 60_000
# Logs with an error that the health page names; it counts all of them.
COMPACTOR_TROUBLES_SHOWN_MAX: Final = 10

# --- batching in a broker ----------------------------------------------------------------------------------------
# Logs that are met for the first time, looked up or created at the same time.
BATCH_NEW_LOGS_IN_FLIGHT_MAX: Final = 256

# --- a broker's process ----------------------------------------------------------------------------------------------

# --- HTTP ------------------------------------------------------------------------------------------------------------
HTTP_TOPIC_PARTITIONS_MAX: Final = 10_000

# --- positions of consumer groups -------------------------------------------------------------------------------
GROUP_OFFSETS_PER_CALL_MAX: Final = 1_000
# Kafka's own default for the text beside a position.
GROUP_OFFSET_METADATA_CHARS_MAX: Final = 4_096

# --- metrics -------------------------------------------------------------------------------------------------------
METRICS_LABEL_CHARS_MAX: Final = 128

# --- tail cache and consume ------------------------------------------------------------------------------------------
# How long cached state counts without a look at the control record, unless told (LLOG_TAIL_REFRESH_MS).
TAIL_FRESH_MS_DEFAULT: Final = 100
# Compressed batches inflate, and tiny records cost more than their bytes: an answer's decoding ends behind the run of
# records that passes this.
CONSUME_DECODED_BYTES_MAX: Final = 128 * MIB
# What a decoded record costs beside its bytes, until it is text again: its place in the columns, and its objects.
CONSUME_RECORD_BYTES: Final = 256
# What was fetched beyond the answer, for whoever reads on: over all logs, and ahead of one reader.
READ_AHEAD_BYTES_MAX: Final = 64 * MIB
# Files of a process that is gone are read for so long, then removed by whoever finds them.
TAIL_FILES_STALE_MS: Final = 60_000

# --- a broker's registration -----------------------------------------------------------------------------------------

# --- a broker inside another program, or a stack of broker processes -------------------------------------------------

# --- the data pipeline -----------------------------------------------------------------------------------------------

# --- Spark: the session and the runner of tasks ----------------------------------------------------------------------
# Sets of object stores that a Python worker keeps open, one per set of settings it was sent.
SPARK_WORKER_TOOLS_MAX: Final = 4

# --- the segment catalogue -------------------------------------------------------------------------------------------

# --- reading with splits: the data source and llog.scan --------------------------------------------------------------
# What one split reads, unless told (`splitBytes`): long enough for a task, short enough to be in memory whole.
SPLIT_BYTES_DEFAULT: Final = 64 * MIB
SPLIT_BYTES_MIN: Final = 64 * KIB
SPLIT_BYTES_MAX: Final = GIB
# A plan with more splits is refused: each is a task. `splitBytes` says how many there are.
SPLITS_MAX: Final = 100_000
# Logs whose index is walked at the same time by one plan.
SPLIT_PLAN_LOGS_IN_FLIGHT_MAX: Final = 16
# Slices of one log that are decoded in one pass, and what an Arrow batch holds.
SPLIT_BATCH_BYTES_MAX: Final = 4 * MIB

# --- compaction and merge as pipeline jobs ---------------------------------------------------------------------------
# Source bytes of one task: enough for about a second of work, and little enough to be held in memory. The larger, the
# fewer segments each log gets.
COMPACT_WINDOW_BYTES_MAX: Final = 256 * MIB
# The same in the compactor service, whose process may hold a broker too, and tasks of one job at a time there.
COMPACT_WINDOW_BYTES_IN_SERVICE: Final = 128 * MIB
# Of one round of a job: what is planned, written and published before it looks again.
COMPACT_TASKS_PER_CORE: Final = 3
COMPACT_ROUND_LOGS_MAX: Final = 1_024
# Logs that a driver looks at, claims or publishes at a time: each is a few requests one after the other.
COMPACT_LOGS_AT_ONCE: Final = 64
# Rounds in a row in which a log did not come further: others were faster, or its objects had gone.
COMPACT_REPLANS_MAX: Final = 4

# --- retain, vacuum and audit as jobs --------------------------------------------------------------------------------
SURVEY_PAGE_OBJECTS_MAX: Final = 5_000
# Blobs whose headers one task reads.
VACUUM_TASK_HEADERS_MAX: Final = 1_000

# --- the sink: rows of a Spark query into logs ------------------------------------------------------------------------
# Rows that a task gathers before it encodes and uploads them, and what one RecordBatch among them holds before it is
# compressed.
SINK_BLOB_BYTES: Final = 16 * MIB
# Rounds of compare-and-set on a query's own records before its driver gives up.
SINK_ROUNDS_MAX: Final = 64
# Logs that are looked up or initialized at the same time.
SINK_LOGS_IN_FLIGHT_MAX: Final = 128

# --- key compaction --------------------------------------------------------------------------------------------------
# Levels from here on are of segments that key compaction wrote, or merges of such; compaction and merges of other
# segments never get so high.
KEY_COMPACT_LEVEL: Final = 64
# Reads of one pass, all tasks together, where nobody says otherwise; and the tasks that share it.
KEY_COMPACT_READ_BYTES_PER_SECOND: Final = 50_000_000
# Distinct keys that a scan holds, in bytes, before it writes them out as one part.
KEY_SCAN_PART_BYTES_MAX: Final = 64 * MIB

# --- export ----------------------------------------------------------------------------------------------------------
EXPORT_CONFLICTS_MAX: Final = 5
EXPORT_SCHEMA_BYTES_MAX: Final = MIB
EXPORT_SCHEMA_DEPTH_MAX: Final = 16

# --- the compactor service and its Spark -----------------------------------------------------------------------------
# Source bytes of a round that the service rewrites itself although it has Spark: one window, so one task, which Spark
# could not divide either. On two busy cores Spark's share of a round is 0.25 to 0.4 s whatever its size: 64 MB took
# 0.16 s here and 0.49 s there, 128 MB 0.30 and 0.61; the two met between 256 and 512 MB.
COMPACT_HERE_BYTES_MAX: Final = COMPACT_WINDOW_BYTES_IN_SERVICE

# --- the sink and vacuum ----------------------------------------------------------------------------------------------
# Metadata records that could not be read, as far as one report names them.
VACUUM_UNREADABLE_NAMED_MAX: Final = 1_000

# --- the room of a compaction task -----------------------------------------------------------------------------------

# --- the service's key compaction ------------------------------------------------------------------------------------
# Distinct keys of one log, in bytes, that the service aggregates in its own process, which may be a broker's too; more
# wait for Spark, or for a job by hand.
COMPACTOR_KEYS_BYTES_MAX: Final = 256 * MIB

# --- a Spark master that does not answer ------------------------------------------------------------------------------

# --- a metadata store that is away ------------------------------------------------------------------------------------

# --- fencing ---------------------------------------------------------------------------------------------------------

# --- closed logs on a broker's health page ----------------------------------------------------------------------------

# --- empty directories -----------------------------------------------------------------------------------------------

# --- a cluster without executors --------------------------------------------------------------------------------------

# --- a cluster's Python -----------------------------------------------------------------------------------------------
