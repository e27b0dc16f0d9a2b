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
METADATA_STRICT_PROBE_INTERVAL_MS: Final = 50

# --- Oxia client -----------------------------------------------------------------------------------------------
# More requests in flight per shard only add latency: the server syncs its log one group at a time.
OXIA_REQUESTS_IN_FLIGHT_MAX: Final = 8
OXIA_WRITE_OPS_MAX: Final = 128
OXIA_READ_OPS_MAX: Final = 512
# What may wait per shard for a place in a request; beyond it callers wait for room, up to their deadline.
OXIA_QUEUED_OPS_MAX: Final = 65_536
# The server fills frames to about 2 MiB and lets the last value overshoot; it takes values up to 60 MiB from others.
OXIA_RECEIVE_BYTES_MAX: Final = 64 * MIB
OXIA_RETRY_DELAY_MS_MIN: Final = 20
OXIA_RETRY_DELAY_MS_MAX: Final = 1_000
# The first assignments of a discovery stream; a server that is silent for longer is left for the next one.
OXIA_DISCOVERY_TIMEOUT_MS: Final = 3_000
# A leader that leaves a request unanswered for so long is suspected: another server is asked who leads.
OXIA_STALL_MS: Final = 1_500
# How long a stream to a deposed leader may still bring answers before what it holds is called uncertain.
OXIA_DEPOSED_GRACE_MS: Final = 500
# One attempt at a read; the next goes to whoever leads by then.
OXIA_READ_ATTEMPT_MS_MIN: Final = 2_000
OXIA_CONNECT_TIMEOUT_MS: Final = 2_000
OXIA_KEEPALIVE_INTERVAL_MS: Final = 10_000
OXIA_KEEPALIVE_TIMEOUT_MS: Final = 5_000
OXIA_CLOSE_TIMEOUT_MS: Final = 2_000
# Servers keep notifications for an hour by default; a gap longer than this is answered with "read again".
OXIA_NOTIFICATIONS_RESUME_MS_MAX: Final = 60_000

# --- PostgreSQL ------------------------------------------------------------------------------------------------
POSTGRES_CONNECTIONS_MAX: Final = 8
POSTGRES_CONNECTION_WAITERS_MAX: Final = 4_096
# Between two attempts to connect, all within one request's deadline.
POSTGRES_CONNECT_PAUSE_MS: Final = 100
POSTGRES_READ_ATTEMPTS_MAX: Final = 3
# A write that the server rolled back because of a deadlock did not happen and may be asked for again.
POSTGRES_WRITE_ATTEMPTS_MAX: Final = 5
# All groups of one call are one statement; the protocol itself ends at 1 GiB, a server's patience earlier.
POSTGRES_WRITE_BYTES_MAX: Final = 64 * MIB
# Encoding more than this takes milliseconds and leaves the event loop.
POSTGRES_ENCODE_INLINE_GROUPS_MAX: Final = 2_048
# The server gives up this long before the client does, so that its word ("nothing happened") still arrives.
POSTGRES_ANSWER_MARGIN_MS: Final = 500
POSTGRES_SWEEP_INTERVAL_MS: Final = 1_000
POSTGRES_SWEEP_SESSIONS_MAX: Final = 100
POSTGRES_HEARTBEATS_PER_TIMEOUT: Final = 4
POSTGRES_HEARTBEAT_RETRIES_PER_TIMEOUT: Final = 16
# A listener proves this often that its connection still hears.
POSTGRES_WATCH_RENEW_INTERVAL_MS: Final = 5_000
POSTGRES_WATCH_LEASE_MS: Final = 60_000
POSTGRES_WATCH_RECONNECT_PAUSE_MS_MAX: Final = 2_000
# More different prefixes than this, over all stores, and every change is announced.
POSTGRES_WATCH_PREFIXES_MAX: Final = 64
# A notification holds less than 8,000 bytes; a chunk is cut behind the change that passes this size.
POSTGRES_NOTIFICATION_BYTES: Final = 7_000
POSTGRES_CLOSE_TIMEOUT_MS: Final = 5_000

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
# … unless the one request grew beyond this.
OBJECT_FETCH_BYTES_MAX: Final = 64 * MIB
OBJECT_FETCHES_IN_FLIGHT_MAX: Final = 10
# One request may take the request timeout, plus its bytes at this rate: slower is a stall.
OBJECT_TRANSFER_BYTES_PER_MS_MIN: Final = 4 * KIB
OBJECT_REQUEST_TIMEOUT_MS: Final = 10_000
# Handing a piece to the S3 client costs as much as copying this many bytes; smaller ones are joined first …
OBJECT_PIECE_BYTES_MIN: Final = 64 * KIB
# … unless the copy would hold the event loop for more than about two milliseconds.
OBJECT_JOIN_BYTES_MAX: Final = 16 * MIB
OBJECT_CONNECT_TIMEOUT_MS: Final = 3_000
OBJECT_IDLE_CONNECTIONS_MAX: Final = 64
# Shorter than servers keep an idle connection, so that a put seldom meets one that was just closed.
OBJECT_IDLE_CONNECTION_MS_MAX: Final = 15_000
OBJECT_FILE_THREADS: Final = 8
# Files this large are allocated before they are written.
OBJECT_FILE_RESERVE_BYTES_MIN: Final = MIB
# Directories whose entry in their parent is known to be on disk; forgotten all at once when full.
OBJECT_FILE_DIRECTORIES_MAX: Final = 65_536
# Temporary files untouched for this long belong to a process that is gone.
OBJECT_FILE_TEMPORARY_AGE_MS_MAX: Final = 3_600_000
OBJECT_RETRY_ATTEMPTS_MAX: Final = 8
OBJECT_RETRY_DEADLINE_MS: Final = 30_000
OBJECT_RETRY_BACKOFF_MS_FIRST: Final = 50
OBJECT_RETRY_BACKOFF_MS_MAX: Final = 5_000
# A store that says "slow down" is left alone this many times longer.
OBJECT_RETRY_THROTTLED_FACTOR: Final = 4

# --- stores in trouble -----------------------------------------------------------------------------------------
# A store that did nothing well for so long is in trouble: a broker says so, and accepts no records meanwhile …
STORE_TROUBLE_MS: Final = 5_000
# … and asks it this often whether it is well again.
STORE_PROBE_MS: Final = 1_000
# A broker that could not open its stores for so long listens already, to say what it waits for.
STARTING_SILENCE_MS: Final = 3_000

# --- formats ---------------------------------------------------------------------------------------------------
# What one compressed RecordBatch may inflate to; checked while inflating.
RECORD_BATCH_DECODED_BYTES_MAX: Final = 256 * MIB
RECORD_BATCH_BYTES_MAX: Final = 128 * MIB
SHARED_BLOB_HEADER_BYTES_MAX: Final = 16 * MIB
SHARED_BLOB_PARTITIONS_MAX: Final = 100_000
SEGMENT_EXTENSION_BYTES_MAX: Final = 16 * MIB
# Byte positions inside a segment are u32.
SEGMENT_DATA_BYTES_MAX: Final = 4 * GIB - 1
SEGMENT_FOOTER_PROBE_BYTES: Final = 64 * KIB

# --- settings, wiring and command line -------------------------------------------------------------------------
SETTINGS_TEXT_BYTES_MAX: Final = 4 * KIB
SETTINGS_URL_BYTES_MAX: Final = 2 * KIB
# A segment of the root must leave room for topic, partition and offset within METADATA_KEY_BYTES_MAX.
SETTINGS_ROOT_PREFIX_BYTES_MAX: Final = 100
SETTINGS_COMPACTOR_TARGETS_MAX: Final = 10_000
# Buckets and directories that index entries name, open at once. A cluster has two or three.
OBJECT_STORES_OPEN_MAX: Final = 64
# A store that nobody asked for this long has no request under way and may be closed to make room.
OBJECT_STORES_IDLE_MS_MIN: Final = 15 * 60 * 1_000
# Those that the settings do not name, with what counts and retries around them: as many as are open. Of more, the one
# that nobody asked for longest is forgotten, and wrapped anew when it is asked for again.
OBJECT_STORES_WRAPPED_MAX: Final = OBJECT_STORES_OPEN_MAX
# `llog stores check` waits this many request timeouts for one step before it calls the store silent.
STORES_CHECK_STEP_TIMEOUTS: Final = 3
# `llog produce`: how much of its input is read at a time, how many pieces wait, and how long one line may be.
CLI_INPUT_PIECE_BYTES: Final = 256 * KIB
CLI_INPUT_PIECES_MAX: Final = 4
CLI_INPUT_LINE_BYTES_MAX: Final = 64 * MIB
# Records that one append of `llog produce` takes at most; bytes are LLOG_BATCH_MAX_BYTES.
CLI_PRODUCE_RECORDS_MAX: Final = 50_000
# How often `llog tail` looks whether logs grew.
CLI_TAIL_POLL_MS: Final = 250
# How long `llog doctor` waits for each of its looks, in LLOG_REQUEST_TIMEOUT_MS.
CLI_DOCTOR_LOOK_TIMEOUTS: Final = 6
# What `llog doctor` names one by one; the rest is counted.
CLI_DOCTOR_NAMES_MAX: Final = 20

# --- record batches ----------------------------------------------------------------------------------------------
# Blocks of one snappy stream: as many as make a whole batch of the smallest block its Java writer allows (1 KiB).
SNAPPY_BLOCKS_MAX: Final = RECORD_BATCH_DECODED_BYTES_MAX // KIB
# What one step of reading a long buffer of batches record by record decodes, unless a single batch is larger.
RECORDS_CHUNK_BYTES: Final = 4 * MIB

# --- LMDB ----------------------------------------------------------------------------------------------------------
# The map starts small and doubles; it costs address space, not disk.
LMDB_MAP_BYTES_START: Final = 64 * MIB
# One step of growth at most: doubling a very large map would ask for more address space than it soon uses.
LMDB_MAP_GROWTH_BYTES_MAX: Final = 16 * GIB
# Reader slots of the lock file, for all processes together; a process needs one per reader thread and one more.
LMDB_READERS_MAX: Final = 1_024
LMDB_READER_THREADS: Final = 4
# Reads that wait for a reader thread; whoever comes later waits in the event loop.
LMDB_POOL_READS_MAX: Final = 64
# Up to so many records are read on the event loop itself: about 1 µs each when warm.
LMDB_INLINE_RECORDS_MAX: Final = 128
# A read on the event loop that took longer met cold pages: reads go to threads for a while.
LMDB_INLINE_SLOW_US: Final = 500
LMDB_INLINE_PAUSE_MS: Final = 100
# Write calls that wait for the writer thread; more are refused as unavailable.
LMDB_WRITE_QUEUE_MAX: Final = 4_096
# Calls are merged into one transaction up to here; one call alone may be larger.
LMDB_TRANSACTION_WRITES_MAX: Final = 16_384
LMDB_TRANSACTION_BYTES_MAX: Final = 64 * MIB
# How long a call waits for the machine's one write lock, or a reader for a change of the map, before it gives up.
LMDB_WAIT_MS_MAX: Final = 10_000
# Paths whose stored key is remembered, checked and encoded.
LMDB_KNOWN_KEYS_MAX: Final = 65_536
# Records whose version the writer remembers from its own last transactions.
LMDB_KNOWN_VERSIONS_MAX: Final = 65_536
# A read that met a session just run out settles it and reads again, so often at most.
LMDB_SETTLE_ROUNDS_MAX: Final = 5

# --- the log ---------------------------------------------------------------------------------------------------
# Rounds of compare-and-set before whoever changes a control record answers "busy, try again".
LOG_CAS_ROUNDS_MAX: Final = 64
# The same for an append, which waits less between them (LOG_CONFLICT_BACKOFF_MS_MAX): some seconds in all.
LOG_APPEND_ROUNDS_MAX: Final = 256
LOG_BACKOFF_MS_FIRST: Final = 2
LOG_BACKOFF_MS_MAX: Final = 500
# Who lost to another writer waits no longer than this: its log moves, and a long wait only lets the winner win again.
LOG_CONFLICT_BACKOFF_MS_MAX: Final = 32
# A writer that won this often in a row on a log that others want too, without a pause, lets them go first once …
LOG_YIELD_AFTER_COMMITS: Final = 8
# … for this long; also on trial, where it met no others: after twice as many commits each time, up to so many.
LOG_YIELD_MS: Final = 16
LOG_YIELD_TRIAL_COMMITS_MAX: Final = 64
# Commits further apart than this leave room enough by themselves.
LOG_YIELD_GAP_MS: Final = 50
LOG_CONTENDED_MS: Final = 10_000
# Logs whose checked and built key prefix is remembered, over all stores of a process.
KEYS_LOGS_MAX: Final = 65_536
# Rounds of finding out what became of an append without an answer, before it is reported uncertain.
LOG_RESOLVE_ROUNDS_MAX: Final = 16
# Uploads of one record group: again when the first blob turned out too old, or of another life of the topic.
LOG_UPLOADS_MAX: Final = 3
LOG_INITIALIZE_ROUNDS_MAX: Final = 32
LOG_SETTLE_ROUNDS_MAX: Final = 16
LOG_READ_ROUNDS_MAX: Final = 8
# The last rounds of a read ask strictly: what still does not fit then is inconsistent, not stale.
LOG_READ_STRICT_ROUNDS: Final = 4
LOG_KNOWN_MAX: Final = 100_000
# Flushes whose index entries are still being written, off the path of the acknowledgement.
LOG_SETTLEMENTS_MAX: Final = 64
# Every append rewrites the control record; with more claims of producers than that, a group is committed in several.
LOG_CONTROL_BYTES_MAX: Final = 64 * KIB
# A claim has at most 150 bytes there, and the rest of the record fits what is left over.
LOG_CLAIMS_PER_APPEND_MAX: Final = 400
# How long a log is left alone before its settled `pending` is taken away, and how often that is tried.
LOG_IDLE_CLEAR_MS: Final = 1_000
LOG_IDLE_CLEAR_ATTEMPTS_MAX: Final = 3
# Logs whose `pending` is taken away in one call.
LOG_IDLE_CLEAR_LOGS_MAX: Final = 1_000
# What one window of a reader fetches, unless a single entry is larger; segments come in pieces of one to two times it.
LOG_READ_COALESCE_BYTES_MAX: Final = 8 * MIB
# … and never in smaller ones, however small a budget a caller names: a request costs more than these bytes.
LOG_READ_PIECE_BYTES_MIN: Final = 64 * KIB
LOG_READ_GETS_IN_FLIGHT_MAX: Final = 8
# A segment up to this size is fetched whole for a single record: its footer would cost another round trip.
LOG_READ_WHOLE_BYTES_MAX: Final = MIB
# Index entries that a reader's first scan asks for; each further one asks for more, up to a page of the store.
LOG_READ_PAGE_ENTRIES_FIRST: Final = 32
LOG_READ_PAGE_GROWTH: Final = 4
# Segment footers that one reader keeps: whichever bound is met first.
LOG_FOOTERS_MAX: Final = 16
LOG_FOOTERS_BYTES_MAX: Final = 16 * MIB

# --- simulation ----------------------------------------------------------------------------------------------------
# Callbacks and store calls of one simulated run; an actor that retries for ever ends here.
SIM_STEPS_MAX: Final = 1_000_000
# How far back a stale read can look, in changes of one shard.
SIM_STALE_CHANGES_MAX: Final = 10_000
SIM_LIST_PAGE_NAMES: Final = 100
SIM_TRACE_VALUE_CHARS_MAX: Final = 120
# Lines of a red run's trace that are printed: the first few and, of the rest, the last.
SIM_TRACE_HEAD_LINES: Final = 20
SIM_TRACE_LINES_MAX: Final = 400
# A coroutine that is thrown away may refuse to end (an await in a `finally`); it is told again, so often at most.
SIM_COROUTINE_CLOSES_MAX: Final = 10
# Paths that were found to be valid keys, remembered over all runs of a process; forgotten all at once when full.
SIM_CHECKED_PATHS_MAX: Final = 65_536
# Random runs that one process plays before it tells of them.
SIM_JOB_SCHEDULES_MAX: Final = 100
SIM_EXPLORE_STATES_MAX: Final = 1_000_000
SIM_EXPLORE_RUNS_MAX: Final = 1_000_000
# Mutants of the protocol that are judged at the same time, and how long one may take.
MUTANTS_AT_ONCE: Final = 2
MUTANT_SECONDS_MAX: Final = 60
# Its segment's record names every source object: about 100 bytes each, and a value should stay well below 1 MiB.
LOG_COMPACT_ENTRIES_MAX: Final = 4_000
LOG_COMPACT_READS_IN_FLIGHT_MAX: Final = 8
LOG_COMPACT_ROUNDS_MAX: Final = 32
# Runs begun and lost to another compactor before `compact_once` answers "busy"; each may have written a segment.
LOG_COMPACT_RACES_MAX: Final = 4
# Index entries that a segment replaced, deleted together where the store can: a group is one write of the store.
LOG_DELETES_PER_GROUP_MAX: Final = 256
LOG_COMPACT_BYTES_DEFAULT: Final = 64 * MIB
# What a merge aims at; held in memory while it is written.
LOG_MERGE_BYTES_DEFAULT: Final = 256 * MIB
# Producers that a log remembers when its snapshot moves; beyond that, those that wrote longest ago are forgotten.
LOG_PRODUCERS_MAX: Final = 10_000
# Each state holds five batches of about 120 bytes.
LOG_PRODUCERS_PER_PAGE_MAX: Final = 500

# --- topics ----------------------------------------------------------------------------------------------------------
# Rounds of compare-and-set on a topic's record, or on the tombstone of one of its logs.
TOPIC_ROUNDS_MAX: Final = 32
# Partitions of one topic that are initialized or deleted at the same time.
TOPIC_PARTITIONS_IN_FLIGHT_MAX: Final = 16
# Passes over what is left of a deleted log, until one finds nothing; late writers may add a little meanwhile.
TOPIC_DELETE_PASSES_MAX: Final = 8
TOPIC_CONFIG_VALUE_CHARS_MAX: Final = 1_000
# A broker goes by a config it read so long ago before it looks again; changes made through itself it knows at once.
TOPIC_CONFIG_FRESH_MS: Final = 5_000
# Topics whose configs a broker remembers; beyond that, those it read longest ago are read again.
TOPIC_CONFIGS_KNOWN_MAX: Final = 10_000

# --- looking into a log, backup and restore ------------------------------------------------------------------------
# A finding counts once a strict look confirmed it; a log that keeps moving is looked at so often, then left unsettled.
LOG_CHECK_ROUNDS_MAX: Final = 6
LOG_CHECK_OBJECTS_IN_FLIGHT_MAX: Final = 8
LOG_CHECK_FAULTS_MAX: Final = 1_000
LOG_CHECK_READ_BYTES: Final = 8 * MIB
LOG_DESCRIBE_ENTRIES_MAX: Final = 10_000
# Lines are compressed in frames of about this size (before compression) …
BACKUP_FRAME_BYTES: Final = MIB
# … and a frame holds at least one line, which may be a whole value with everything escaped.
BACKUP_FRAME_BYTES_MAX: Final = 16 * MIB
# Parts of a backup in an object store.
BACKUP_PART_BYTES: Final = 16 * MIB
BACKUP_READ_BYTES: Final = 4 * MIB
# Copies of one log that may turn out torn, because the log moved on, before the backup gives up.
BACKUP_LOG_ROUNDS_MAX: Final = 32
# Logs copied ahead of the one being written, and the lines that each may have waiting.
BACKUP_LOGS_AHEAD_MAX: Final = 16
BACKUP_LINES_AHEAD_MAX: Final = 2_000
RESTORE_BATCH_RECORDS: Final = 500
RESTORE_BATCH_BYTES: Final = 4 * MIB
RESTORE_ROUNDS_MAX: Final = 16
# How far a restore raises versions and producer ids above those in the backup: more than were given since.
RESTORE_VERSION_LEAP: Final = 2**44
RESTORE_PRODUCER_ID_LEAP: Final = 2**32
# A blob that was committed after its log was copied may have been drawn this long before the backup began (upload,
# retries, commit rounds, and clocks that differ).
RESTORE_BLOB_SLACK_MS: Final = 600_000
# Slices that a recovery met too early by their producer's numbers, waiting for those before them.
RECOVER_POSTPONED_MAX: Final = 10_000

# --- vacuum --------------------------------------------------------------------------------------------------------
# Headers of candidates that are read at once, and logs that are checked at once.
VACUUM_READS_IN_FLIGHT_MAX: Final = 16
# Enough for the header of a blob of some 50 logs; a longer one takes a second request.
VACUUM_HEADER_PROBE_BYTES: Final = 8 * KIB
# Candidates judged together; their logs are checked once for all of them.
VACUUM_BATCH_OBJECTS_MAX: Final = 1_000
# Names of objects listed in a report; the counts are of all of them.
VACUUM_REPORT_NAMES_MAX: Final = 10_000
CLUSTER_ROUNDS_MAX: Final = 32

# --- the compactor service -----------------------------------------------------------------------------------------
# Logs that one service keeps in mind; of more, each discovery takes others by chance.
COMPACTOR_LOGS_MAX: Final = 100_000
# Logs whose records are read by one request, and whose index is scanned at the same time.
COMPACTOR_LOOK_LOGS_MAX: Final = 256
COMPACTOR_SCANS_IN_FLIGHT_MAX: Final = 16
COMPACTOR_SCAN_PAGE_ENTRIES: Final = 256
# Neighbouring segments of one level that are worth a merge: each byte is then rewritten once per eightfold growth.
COMPACTOR_MERGE_INPUTS_MIN: Final = 8
# A merge holds its inputs and its output in memory; LOG_MERGE_BYTES_DEFAULT each.
COMPACTOR_MERGES_AT_ONCE: Final = 1
# With so many merges missed, a log that always has fresh bytes is merged before it is compacted again.
COMPACTOR_MERGES_OVERDUE: Final = 4
COMPACTOR_RETENTION_INTERVAL_MS: Final = 300_000
# As often as objects outlive the grace, within these bounds: each vacuum lists the bucket and reads every index.
COMPACTOR_VACUUM_INTERVAL_MS_MIN: Final = 10_000
COMPACTOR_VACUUM_INTERVAL_MS_MAX: Final = 900_000
# Producers wait at LLOG_WAL_MAX_BYTES; the service hurries from this share of it on.
COMPACTOR_WAL_PRESSURE: Final = 0.75
# How often the WAL store is measured: where listing is free, and where each request is billed.
COMPACTOR_WAL_MEASURE_LOCAL_MS: Final = 10_000
COMPACTOR_WAL_MEASURE_REMOTE_MS: Final = 60_000
# Well within the vacuum grace, so that what the newest backup names is still there.
COMPACTOR_BACKUP_INTERVAL_MS_MIN: Final = 60_000
COMPACTOR_BACKUP_INTERVAL_MS_MAX: Final = 900_000
COMPACTOR_BACKUPS_KEPT: Final = 8
# A scheduled backup without a manifest that is older than this was given up by a process that is gone.
COMPACTOR_BACKUP_TORN_MS: Final = 3_600_000
# A pass never follows another sooner: the loop also answers pages and keeps sessions alive.
COMPACTOR_PASS_PAUSE_MS_MIN: Final = 5
# How long work under way may go on after a stop was asked for; what is cut off is resumed by whoever comes next.
COMPACTOR_STOP_MS_MAX: Final = 30_000
# Logs with an error that the health page names; it counts all of them.
COMPACTOR_TROUBLES_SHOWN_MAX: Final = 10
COMPACTOR_PAGES_BACKLOG: Final = 64
# Requests for pages that are answered at the same time; more get 503.
COMPACTOR_PAGES_AT_ONCE: Final = 64
COMPACTOR_PAGES_STOP_MS_MAX: Final = 2_000

# --- batching in a broker ----------------------------------------------------------------------------------------
# Blobs that one broker uploads at the same time …
BATCH_UPLOADS_MAX: Final = 4
# … and flushes that are uploaded, wait for their turn or are committed; what comes later stays buffered.
BATCH_FLUSHES_MAX: Final = 16
# How long an idle broker waits for company before it flushes: requests that come together go together.
BATCH_GATHER_MS: Final = 1
# The cost target where a put costs money: flushes that are not full start this often at most. Four puts a second are
# about 50 dollars a month at 0.005 dollars per thousand. LLOG_BATCH_MAX_DELAY_MS is the stronger promise.
BATCH_REMOTE_PUTS_PER_SECOND: Final = 4
# Groups of requests in one flush: each is a piece to be judged and answered.
BATCH_GROUPS_PER_FLUSH_MAX: Final = 8_192
# Logs of a flush whose requests are told its outcome before others get their turn: about two milliseconds.
BATCH_LOGS_TOLD_PER_TURN: Final = 128
# What a buffered group takes beside its bytes; counted, so that tiny requests are bounded too.
BATCH_GROUP_OVERHEAD_BYTES: Final = KIB
# From this share of LLOG_BATCH_MAX_BUFFER_BYTES on nothing waits for company any more.
BATCH_PRESSURE_FRACTION: Final = 0.75
# Logs that are met for the first time, looked up or created at the same time.
BATCH_NEW_LOGS_IN_FLIGHT_MAX: Final = 256
# How long the new logs of one request wait for each other, so as to share a blob.
BATCH_NEW_LOGS_TOGETHER_MS: Final = 500
# How long `close` waits for what is under way before it answers that nobody knows.
BATCH_CLOSE_WAIT_MS: Final = 30_000
# Logs of a flush that are committed at a time: each takes some 50 microseconds of the event loop; more would hold it.
BATCH_LOGS_PER_COMMIT: Final = 256

# --- a broker's process ----------------------------------------------------------------------------------------------
# Pieces up to this size come from memory that the process keeps; larger ones are the kernel's before and after.
PROCESS_POOLED_BYTES_MAX: Final = 4 * MIB
# So much free memory is kept, beyond what is in use.
PROCESS_FREE_BYTES_KEPT: Final = 64 * MIB
# Python looks for garbage in cycles after so many new objects; a flush alone makes thousands.
GC_YOUNG_OBJECTS: Final = 20_000

# --- HTTP ------------------------------------------------------------------------------------------------------------
# Decoding or encoding more than this leaves the event loop; below, handing it over costs more than it saves.
HTTP_INLINE_BYTES_MAX: Final = 256 * KIB
HTTP_WORKER_THREADS: Final = 2
# From this size on a produce request of plain form is read by a kernel, which costs some microseconds to call.
HTTP_SCAN_BYTES_MIN: Final = 16 * KIB
# Payload sizes whose record size is remembered; working it out takes longer than finding it.
HTTP_RECORD_SIZES_KNOWN: Final = 4_096
# A large body is decoded in pieces of this size, for one piece holds the interpreter until it is done.
HTTP_DECODE_PIECE_BYTES: Final = MIB
# Strings in one body: each costs some 160 bytes while it is decoded, whatever its length, and there are as many bodies
# being decoded as there are worker threads.
HTTP_BODY_STRINGS_MAX: Final = 400_000
# The same for a body of plain form, which is read without decoding it: a record costs some 40 bytes meanwhile.
HTTP_SCAN_ROWS_MAX: Final = 2_000_000
# Connections at once; whoever comes later is told 503. Each costs some kilobytes while it waits.
HTTP_CONNECTIONS_MAX: Final = 10_000
HTTP_KEEP_ALIVE_MS: Final = 75_000
# Request line and headers together.
HTTP_HEAD_BYTES_MAX: Final = 64 * KIB
# A body that comes slower than this, after the read timeout that it has for free, is given up.
HTTP_READ_BYTES_PER_MS_MIN: Final = 8
# A client that takes none of its answer for so long is cut off.
HTTP_SEND_TIMEOUT_MS: Final = 30_000
# … and so is one that takes it slower than this, beyond that time: 4 MiB have three minutes, 64 MiB have 40. Whoever is
# slower by nature asks for less at a time.
HTTP_SEND_BYTES_PER_MS_MIN: Final = 32
# How often a client that is about to be cut off is looked at.
HTTP_SEND_CHECK_MS_MIN: Final = 20
# How long the rest of a body that was refused is read and thrown away, so that its sender gets to see the answer.
HTTP_DISCARD_MS_MAX: Final = 2_000
# Bodies of requests that carry no records; a consume request that names all the logs it may has about a megabyte.
HTTP_SMALL_BODY_BYTES_MAX: Final = 4 * MIB
HTTP_TOPIC_PARTITIONS_MAX: Final = 10_000
HTTP_CONSUME_BYTES_DEFAULT: Final = 4 * MIB
HTTP_CONSUME_BYTES_MAX: Final = 64 * MIB
HTTP_CONSUME_WAIT_MS_MAX: Final = 60_000
# What all answers with records hold together, from the first byte found to the last one taken by its client; who finds
# no room is told to come again. One answer alone may be larger.
HTTP_ANSWERS_BYTES_MAX: Final = 256 * MIB
# Larger answers are handed to the connection in pieces, each when the client has taken those before it.
HTTP_SEND_PIECE_BYTES: Final = 256 * KIB
# Topics in one answer of `GET /topics`.
HTTP_TOPICS_PAGE_DEFAULT: Final = 1_000
HTTP_TOPICS_PAGE_MAX: Final = 10_000
# Streams of server-sent events at once, what each fetches at a time, and how often a silent one shows it is alive.
HTTP_TAILS_MAX: Final = 1_000
HTTP_TAIL_BYTES: Final = 256 * KIB
HTTP_TAIL_HEARTBEAT_MS: Final = 15_000
# Lines of a log wait so long for others, and so many of them.
LOG_LINES_DELAY_MS: Final = 50
LOG_LINES_WAITING_MAX: Final = 256
HTTP_REQUEST_ID_CHARS_MAX: Final = 64
HTTP_RETRY_AFTER_SECONDS: Final = 1

# --- positions of consumer groups -------------------------------------------------------------------------------
GROUP_OFFSETS_PER_CALL_MAX: Final = 1_000
# Kafka's own default for the text beside a position.
GROUP_OFFSET_METADATA_CHARS_MAX: Final = 4_096
# Rounds of compare-and-set on a position before the caller is told to try again.
GROUP_OFFSET_ROUNDS_MAX: Final = 16
# Positions that one call lists; a group with more names the logs it asks for.
GROUP_OFFSETS_LISTED_MAX: Final = 10_000

# --- metrics -------------------------------------------------------------------------------------------------------
# Combinations of label values that one family may have; what comes later is counted under "other".
METRICS_LABEL_SETS_MAX: Final = 200
METRICS_LABEL_CHARS_MAX: Final = 128
# Requests that are told to the counters together: so many take a millisecond.
METRICS_GATHERED_MAX: Final = 256
# Logs whose compaction lag is told one by one, the worst first; the others are one row, "other".
METRICS_LAG_ROWS_MAX: Final = 100
# Logs whose lag is known at all; the rest are only counted as not known.
METRICS_LAG_LOGS_MAX: Final = 100_000
METRICS_SCENARIO_BYTES_MAX: Final = 16 * KIB
METRICS_SCENARIO_PARAMETERS_MAX: Final = 64
# How long a count of the bucket's objects is good for: each costs a list request per thousand objects …
BILLING_LIST_INTERVAL_MS: Final = 300_000
# … and in a large bucket counting takes at most one part in so many of the time.
BILLING_LIST_TIME_SHARE: Final = 100
# How soon a store that is opened while the process runs is counted for the first time; looking costs no request.
BILLING_LOOK_MS: Final = 5_000

# --- tail cache and consume ------------------------------------------------------------------------------------------
# Logs whose end is remembered; beyond that, those that nobody touched longest are forgotten.
TAIL_CACHE_LOGS_MAX: Final = 100_000
# How long cached state counts without a look at the control record, unless told (LLOG_TAIL_REFRESH_MS).
TAIL_FRESH_MS_DEFAULT: Final = 100
# What a cached append costs besides its bytes: objects, columns of headers, its place in two lists.
TAIL_CACHE_BATCH_OVERHEAD_BYTES: Final = 768
# Partitions of one consume request.
CONSUME_PARTITIONS_MAX: Final = 10_000
# … of which so many are looked up before others get their turn: about a millisecond.
CONSUME_PARTITIONS_PER_TURN: Final = 128
# How long closing waits for requests that are being answered.
CONSUME_CLOSE_WAIT_MS: Final = 10_000
# What one answer holds at most, unless a single batch is larger; Kafka brokers draw the line near here too.
CONSUME_BYTES_MAX: Final = 64 * MIB
# Compressed batches inflate, and tiny records cost more than their bytes: an answer's decoding ends behind the run of
# records that passes this.
CONSUME_DECODED_BYTES_MAX: Final = 128 * MIB
# What a decoded record costs beside its bytes, until it is text again: its place in the columns, and its objects.
CONSUME_RECORD_BYTES: Final = 256
CONSUME_WAIT_MS_MAX: Final = 300_000
# Requests that wait for records at the same time; one more is answered with what there is.
CONSUME_WAITERS_MAX: Final = 100_000
# A request that was woken and found nothing new looks again after this long, not at once.
CONSUME_PAUSE_MS_MIN: Final = 5
# Logs whose index is scanned at the same time by one request, and entries that one answer takes of a log.
CONSUME_SCANS_IN_FLIGHT_MAX: Final = 16
CONSUME_ENTRIES_MAX: Final = 1_024
# Each makes LOG_READ_GETS_IN_FLIGHT_MAX requests at a time and keeps LOG_FOOTERS_MAX footers.
CONSUME_FETCHERS: Final = 8
# Ranges of one object are one request as long as it does not grow beyond this; blobs are smaller by default.
CONSUME_GET_BYTES_MAX: Final = 16 * MIB
# Bytes that all requests together have asked object stores for and not yet got.
CONSUME_BYTES_IN_FLIGHT_MAX: Final = 128 * MIB
# What was fetched beyond the answer, for whoever reads on: over all logs, and ahead of one reader.
READ_AHEAD_BYTES_MAX: Final = 64 * MIB
READ_AHEAD_WINDOW_BYTES: Final = 4 * MIB
READ_AHEAD_READERS_MAX: Final = 10_000
# More than this is decoded, checked or copied in a thread: it would hold the event loop for about a millisecond.
CONSUME_INLINE_BYTES_MAX: Final = 256 * KIB
CONSUME_THREADS: Final = 2
# The shared tail cache is written in files of a part of its size; whole files are dropped.
TAIL_FILES_PER_WRITER: Final = 8
TAIL_FILE_BYTES_MIN: Final = 4 * KIB
TAIL_FILE_BYTES_MAX: Final = 64 * MIB
# Bytes that wait for the thread that writes files; what comes on top is not shared.
TAIL_FILES_QUEUE_BYTES_MAX: Final = 64 * MIB
# How often a reader looks whether files grew, and how much it takes in at a time.
TAIL_FILES_POLL_MS: Final = 5
TAIL_FILES_READ_BYTES: Final = 4 * MIB
# A whole frame whose checksum does not fit is looked at again so often, then the file is left alone.
TAIL_FILES_TORN_LOOKS_MAX: Final = 20
TAIL_FILES_CLOSE_WAIT_MS: Final = 5_000
# Files of a process that is gone are read for so long, then removed by whoever finds them.
TAIL_FILES_STALE_MS: Final = 60_000

# --- a broker's registration -----------------------------------------------------------------------------------------
REGISTRATION_RETRY_MS: Final = 1_000

# --- a broker inside another program, or a stack of broker processes -------------------------------------------------
# How long the program that starts one waits until it listens, and until its thread has ended.
EMBEDDED_START_MS_MAX: Final = 60_000
EMBEDDED_STOP_MS_MAX: Final = 30_000
# What its own clients get to finish at a stop, where nobody says otherwise.
EMBEDDED_HTTP_STOP_MS: Final = 1_000
# `llog up --brokers`: more than a machine has use for.
STACK_BROKERS_MAX: Final = 64

# --- the data pipeline -----------------------------------------------------------------------------------------------
# Tasks that one process runs at a time on its event loop.
PIPELINE_TASKS_IN_PROCESS_MAX: Final = 4

# --- Spark: the session and the runner of tasks ----------------------------------------------------------------------
# `java -version` of a Java that is there answers in a tenth of a second.
SPARK_JAVA_TIMEOUT_MS: Final = 10_000
# One Arrow batch between Spark and a Python worker, either way.
SPARK_ARROW_BATCH_BYTES_MAX: Final = 4 * MIB
# Runs of a runner at the same time, each a Spark job watched by a thread; more wait.
SPARK_RUNS_AT_ONCE_MAX: Final = 8
# What one Spark job carries in its plan: more items make several jobs, one after the other.
SPARK_JOB_ITEMS_MAX: Final = 10_000
SPARK_JOB_BYTES_MAX: Final = 16 * MIB
# Sets of object stores that a Python worker keeps open, one per set of settings it was sent.
SPARK_WORKER_TOOLS_MAX: Final = 4
# Of an error that nobody foresaw: what is told of its words and of its traceback.
SPARK_ERROR_CHARS_MAX: Final = 2_000
SPARK_TRACE_CHARS_MAX: Final = 8_000
# How long a run that was given up waits until its Spark job has ended, and how often it is told to.
SPARK_CANCEL_WAIT_MS: Final = 30_000
SPARK_CANCEL_POLL_MS: Final = 200
# What follows an outcome, so that it does not wait in a buffer of 8 KiB.
SPARK_PUSH_BYTES: Final = 16 * KIB

# --- the segment catalogue -------------------------------------------------------------------------------------------
# Looks at a record that others move at the same time, or that gave no answer, before the caller is told.
CATALOGUE_ROUNDS_MAX: Final = 8

# --- reading with splits: the data source and llog.scan --------------------------------------------------------------
# What one split reads, unless told (`splitBytes`): long enough for a task, short enough to be in memory whole.
SPLIT_BYTES_DEFAULT: Final = 64 * MIB
SPLIT_BYTES_MIN: Final = 64 * KIB
SPLIT_BYTES_MAX: Final = GIB
# Pieces of one split: a log of tiny appends would make tasks of a few MiB of plan otherwise.
SPLIT_PIECES_MAX: Final = 4_096
# A plan with more splits is refused: each is a task. `splitBytes` says how many there are.
SPLITS_MAX: Final = 100_000
# Logs whose index is walked at the same time by one plan.
SPLIT_PLAN_LOGS_IN_FLIGHT_MAX: Final = 16
# A segment is fetched in ranges of this length, several at once.
SPLIT_GET_BYTES: Final = 8 * MIB
# Slices of one log that are decoded in one pass, and what an Arrow batch holds.
SPLIT_BATCH_BYTES_MAX: Final = 4 * MIB
# Smaller Arrow batches are put together until they have this much: each costs a message of its own.
SPLIT_BATCH_BYTES_MIN: Final = MIB
# How often a split is planned again because an object was gone (R10), each time further on or not at all.
SPLIT_PLANS_MAX: Final = 5
# `llog.scan`: splits read at the same time, and Arrow batches that wait for the caller, of each.
SCAN_THREADS_DEFAULT: Final = 2
SCAN_THREADS_MAX: Final = 32
SCAN_BATCHES_AHEAD_MAX: Final = 4
# Logs of one scan or subscription.
SCAN_LOGS_MAX: Final = 100_000
# Freed memory that a Spark worker which reads splits keeps, to use it again for the next bytes.
SPARK_SOURCE_KEPT_BYTES_MAX: Final = 256 * MIB

# --- compaction and merge as pipeline jobs ---------------------------------------------------------------------------
# Source bytes of one task: enough for about a second of work, and little enough to be held in memory. The larger, the
# fewer segments each log gets.
COMPACT_WINDOW_BYTES_MAX: Final = 256 * MIB
COMPACT_WINDOW_BYTES_MIN: Final = 128 * MIB
# The same in the compactor service, whose process may hold a broker too, and tasks of one job at a time there.
COMPACT_WINDOW_BYTES_IN_SERVICE: Final = 128 * MIB
COMPACT_TASKS_IN_PROCESS: Final = 1
# Of one round of a job: what is planned, written and published before it looks again.
COMPACT_TASKS_PER_CORE: Final = 3
# Where nobody tells how many there are.
COMPACT_CORES_UNKNOWN: Final = 4
# Inside one task: objects being read, segments being built or put, and the bytes of these.
COMPACT_TASK_READS_MAX: Final = 8
COMPACT_TASK_SEGMENTS_MAX: Final = 4
COMPACT_TASK_SEGMENT_BYTES_MAX: Final = 128 * MIB
# Of one round, too.
COMPACT_ROUND_ENTRIES_MAX: Final = 200_000
COMPACT_ROUND_LOGS_MAX: Final = 1_024
COMPACT_LOG_ENTRIES_MIN: Final = 128
# Logs that a driver looks at, claims or publishes at a time: each is a few requests one after the other.
COMPACT_LOGS_AT_ONCE: Final = 64
# Objects of one task: what names them travels with it.
COMPACT_WINDOW_OBJECTS_MAX: Final = 10_000
# The compactor service: visits that share a job, one after the other or several at a time, and how long a job waits
# for more of them: each log is claimed first, and a claim takes as long as a disk's or a server's sync.
COMPACT_LOGS_PER_WORKER: Final = 64
COMPACT_JOBS_AT_ONCE: Final = 2
COMPACT_GATHER_QUIET_MS: Final = 100
COMPACT_GATHER_MS_MAX: Final = 2_000
# A Spark that could not be had, or that went away, is tried again.
COMPACT_SPARK_REJOIN_MS: Final = 60_000
# How long the claims of a job outlive it when it dies, unless its caller says otherwise.
COMPACT_SESSION_TIMEOUT_MS: Final = 15_000
# Rounds in a row in which a log did not come further: others were faster, or its objects had gone.
COMPACT_REPLANS_MAX: Final = 4

# --- retain, vacuum and audit as jobs --------------------------------------------------------------------------------
# Logs whose limits are applied at the same time.
RETAIN_LOGS_IN_FLIGHT_MAX: Final = 16
# Parts that a listing of one store is cut into, and names that one task's answer carries; it goes on in another task.
SURVEY_SHARDS_MAX: Final = 64
SURVEY_PAGE_OBJECTS_MAX: Final = 5_000
# Blobs whose headers one task reads.
VACUUM_TASK_HEADERS_MAX: Final = 1_000
# Logs whose metadata is looked at at the same time, and entries held until their objects are looked at. A blob that is
# named in two such helpings is read twice.
AUDIT_LOGS_IN_FLIGHT_MAX: Final = 8
AUDIT_ENTRIES_HELD_MAX: Final = 500_000
# What one task of the audit reads, in bytes and in objects, how many entries it is told of (some 400 bytes each), and
# how many objects it reads at a time.
AUDIT_TASK_BYTES: Final = 128 * MIB
AUDIT_TASK_OBJECTS_MAX: Final = 1_000
AUDIT_TASK_CLAIMS_MAX: Final = 10_000
AUDIT_OBJECTS_IN_FLIGHT_MAX: Final = 4
# Larger objects are read in pieces: a segment in several, a blob slice by slice.
AUDIT_OBJECT_HELD_BYTES_MAX: Final = 32 * MIB
# Suspicions that one task's answer, and findings that one report carries; what comes on top is only counted.
AUDIT_TASK_SUSPECTS_MAX: Final = 1_000
AUDIT_FINDINGS_MAX: Final = 10_000

# --- the sink: rows of a Spark query into logs ------------------------------------------------------------------------
# Rows that a task gathers before it encodes and uploads them, and what one RecordBatch among them holds before it is
# compressed.
SINK_BLOB_BYTES: Final = 16 * MIB
# A column of them has 32 bits for its bytes.
SINK_BLOB_BYTES_MAX: Final = GIB
SINK_RECORD_BATCH_BYTES: Final = MIB
# Epochs of one producer id: Kafka counts them in 15 bits.
SINK_EPOCHS_MAX: Final = 2**15 - 1
# The first producer id that a cluster gives: far from those that clients make up for themselves.
PRODUCER_ID_FIRST: Final = 2**32
# Slices of a commit plan in one metadata value, and how many such values one plan may have.
SINK_PLAN_PAGE_BYTES: Final = 512 * KIB
SINK_PLAN_PAGES_MAX: Final = 1_000
# Rounds of compare-and-set on a query's own records before its driver gives up.
SINK_ROUNDS_MAX: Final = 64
# How often one slice is committed anew after a passing trouble: each time a repeat would be recognised.
SINK_ATTEMPTS_MAX: Final = 8
# Logs that are looked up or initialized at the same time.
SINK_LOGS_IN_FLIGHT_MAX: Final = 128
# Logs that a driver looks up for rows that name their topics themselves; slices of others are copied by the driver.
SINK_LOGS_LISTED_MAX: Final = 20_000
# Bytes of slices that a driver copies into one blob.
SINK_COPY_BYTES: Final = 16 * MIB

# --- key compaction --------------------------------------------------------------------------------------------------
# Levels from here on are of segments that key compaction wrote, or merges of such; compaction and merges of other
# segments never get so high.
KEY_COMPACT_LEVEL: Final = 64
# Reads of one pass, all tasks together, where nobody says otherwise; and the tasks that share it.
KEY_COMPACT_READ_BYTES_PER_SECOND: Final = 50_000_000
KEY_COMPACT_TASKS_AT_ONCE: Final = 4
# One request of a task, and what one task scans (unless one segment is larger).
KEY_COMPACT_READ_BYTES: Final = 8 * MIB
KEY_SCAN_TASK_BYTES: Final = 64 * MIB
# Distinct keys that a scan holds, in bytes, before it writes them out as one part.
KEY_SCAN_PART_BYTES_MAX: Final = 64 * MIB
# Logs that go through the passes together.
KEY_COMPACT_LOGS_AT_ONCE: Final = 64
# Distinct keys of one log, in bytes, that are aggregated without Spark.
KEY_AGGREGATE_BYTES_MAX: Final = 2 * GIB
# Segments that become one hold at most so many times the bytes that it should have. What stays of them is guessed by
# counting records, and a few large ones among many small ones may be nearly all of the bytes; it is held in memory.
KEY_COMPACT_GROUP_TARGETS_MAX: Final = 4
# How often a log is planned again when it changed under a pass, and how often publishing gives way to other runs.
KEY_COMPACT_ROUNDS_MAX: Final = 3
KEY_COMPACT_RACES_MAX: Final = 16
# Objects between the passes go with their job; what a crash left goes with a later job, once it is this old.
KEY_COMPACT_SCRATCH_AGE_MS_MAX: Final = 7 * 24 * 3_600_000
# Of these, what one task of the aggregation on Spark reads (unless one object is larger).
KEY_AGGREGATE_TASK_BYTES: Final = 16 * MIB
# Survivors that one object between the passes may name.
KEY_SURVIVORS_BYTES_MAX: Final = 4 * GIB

# --- export ----------------------------------------------------------------------------------------------------------
# What one task reads, and with it about how large the files become; what one commit holds.
EXPORT_SPLIT_BYTES_DEFAULT: Final = 128 * MIB
EXPORT_COMMIT_BYTES_DEFAULT: Final = 8 * GIB
# Of one file in memory before it is encoded as a row group; of all files of a task together.
EXPORT_ROW_GROUP_BYTES: Final = 16 * MIB
EXPORT_PENDING_BYTES_MAX: Final = 64 * MIB
# Partitions and dates that one task writes; clocks gone wild would make a file per record.
EXPORT_FILES_PER_TASK_MAX: Final = 16_384
# Of these, how many are on their way into the store at a time.
EXPORT_PUTS_IN_FLIGHT_MAX: Final = 8
# Rounds in which tasks whose objects were gone are planned again, and commits that others were faster with.
EXPORT_REPLANS_MAX: Final = 5
EXPORT_CONFLICTS_MAX: Final = 5
# What is kept of the reason why a value could not be decoded.
EXPORT_ERROR_CHARS_MAX: Final = 500
EXPORT_SCHEMA_BYTES_MAX: Final = MIB
EXPORT_SCHEMA_DEPTH_MAX: Final = 16

# --- the compactor service and its Spark -----------------------------------------------------------------------------
# How long a JVM that is told to end may take over it (removing its directories) before it is killed.
SPARK_END_MS_MAX: Final = 3_000
# Source bytes of a round that the service rewrites itself although it has Spark: one window, so one task, which Spark
# could not divide either. On two busy cores Spark's share of a round is 0.25 to 0.4 s whatever its size: 64 MB took
# 0.16 s here and 0.49 s there, 128 MB 0.30 and 0.61; the two met between 256 and 512 MB.
COMPACT_HERE_BYTES_MAX: Final = COMPACT_WINDOW_BYTES_IN_SERVICE
# One line from `llog up --brokers` to its brokers.
STACK_WORDS_BYTES_MAX: Final = 16 * KIB

# --- the sink and vacuum ----------------------------------------------------------------------------------------------
# How long vacuum keeps the blobs of a commit plan that nobody finishes. A driver that is this late is told that its
# plan is lost; nothing keeps blobs for ever.
SINK_PLAN_KEPT_MS_MAX: Final = 7 * 24 * 3_600_000
# A plan that is older when it is confirmed is made young first: so a driver has at least the rest to perform it.
SINK_PLAN_CONFIRM_MS_MAX: Final = 24 * 3_600_000
# Plans of one batch that turned out to be void, one after the other, before its driver gives up.
SINK_PLANS_ANEW_MAX: Final = 8
# Metadata records that could not be read, as far as one report names them.
VACUUM_UNREADABLE_NAMED_MAX: Final = 1_000

# --- the room of a compaction task -----------------------------------------------------------------------------------
# Memory that a process keeps for its next window, and for how long after the last one. A window is
# COMPACT_WINDOW_BYTES_MAX and half an object.
COMPACT_ROOM_KEPT_BYTES_MAX: Final = COMPACT_WINDOW_BYTES_MAX + 64 * MIB
COMPACT_ROOM_KEPT_MS: Final = 5_000
# Segments of a room on their way into the store; their bytes are COMPACT_TASK_SEGMENT_BYTES_MAX at most. A file store
# syncs as many at the same time as it has threads.
COMPACT_ROOM_PUTS_MAX: Final = OBJECT_FILE_THREADS

# --- the service's key compaction ------------------------------------------------------------------------------------
# How often topics that are compacted by key are looked at; how long a log that was not worth a pass is left alone if it
# does not change; how long one that failed is, at least and as a multiple of the time that the pass took: reading a
# large log in vain must stay the exception.
COMPACTOR_KEYS_INTERVAL_MS: Final = 15_000
COMPACTOR_KEYS_REST_MS: Final = 600_000
COMPACTOR_KEYS_RETRY_MS: Final = 60_000
COMPACTOR_KEYS_RETRY_TIMES: Final = 10
# Distinct keys of one log, in bytes, that the service aggregates in its own process, which may be a broker's too; more
# wait for Spark, or for a job by hand.
COMPACTOR_KEYS_BYTES_MAX: Final = 256 * MIB

# --- a Spark master that does not answer ------------------------------------------------------------------------------
# How long one address of it is tried before Spark is let loose on it.
SPARK_MASTER_TIMEOUT_MS: Final = 10_000

# --- a metadata store that is away ------------------------------------------------------------------------------------
# How often streams and writes of Spark's ask it, and how long they wait at most before they ask again: about half a
# minute together, in which a store restarts.
SPARK_ASKS_MAX: Final = 16
SPARK_ASK_BACKOFF_MS_MAX: Final = 10_000

# --- fencing ---------------------------------------------------------------------------------------------------------
# What an operator may say about why a log is closed (HTTP takes as much).
FENCE_REASON_CHARS_MAX: Final = 1_000

# --- closed logs on a broker's health page ----------------------------------------------------------------------------
# How many of those that it met are shown, and how often it looks whether they are still closed.
BROKER_FENCED_LOGS_MAX: Final = 100
BROKER_FENCED_LOOK_MS: Final = 2_000

# --- empty directories -----------------------------------------------------------------------------------------------
# How often a put makes its directory again that somebody removed, because it was empty, right before.
OBJECT_FILE_PLACE_TRIES_MAX: Final = 8

# --- a cluster without executors --------------------------------------------------------------------------------------
# How often a job that waits looks whether there is one, when it tells that there is none, and when it gives up. A
# scheduler that makes machines first needs minutes.
SPARK_STARVED_LOOK_MS: Final = 5_000
SPARK_STARVED_TOLD_MS: Final = 20_000
SPARK_STARVED_MS_MAX: Final = 300_000

# --- a cluster's Python -----------------------------------------------------------------------------------------------
# How long the look at it may take; one that is slower is taken as it is.
SPARK_PYTHON_TIMEOUT_MS: Final = 30_000
