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
