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
METADATA_SESSION_TIMEOUT_MS_MIN: Final = 2_000
METADATA_SESSION_TIMEOUT_MS_MAX: Final = 300_000
# Changes a slow watcher may leave unread before it is told to read everything again.
METADATA_WATCH_QUEUE_MAX: Final = 10_000
METADATA_STRICT_PROBE_INTERVAL_MS: Final = 50

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
OBJECT_CONNECT_TIMEOUT_MS: Final = 3_000
OBJECT_IDLE_CONNECTIONS_MAX: Final = 64
# Shorter than servers keep an idle connection, so that a put seldom meets one that was just closed.
OBJECT_IDLE_CONNECTION_MS_MAX: Final = 15_000
OBJECT_FILE_THREADS: Final = 8
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
# `llog stores check` waits this many request timeouts for one step before it calls the store silent.
STORES_CHECK_STEP_TIMEOUTS: Final = 3

# --- record batches ----------------------------------------------------------------------------------------------
# Blocks of one snappy stream: as many as make a whole batch of the smallest block its Java writer allows (1 KiB).
SNAPPY_BLOCKS_MAX: Final = RECORD_BATCH_DECODED_BYTES_MAX // KIB
