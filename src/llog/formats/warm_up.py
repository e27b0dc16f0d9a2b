"""Load the kernels of this package before they are needed."""

from __future__ import annotations

from llog.formats.body_checksum import BATCH_COMBINED_BYTES_MIN, body_crc32c
from llog.formats.records.cut import sum_records
from llog.formats.records.decode import decode_records
from llog.formats.records.encode import encode_records
from llog.formats.records.plain_batches import PLAIN_KERNEL_RECORDS_MIN, encode_plain_batches
from llog.formats.records.produced import check_batches
from llog.formats.records.record_batch import patch_offsets, verify_crcs, walk

_SOURCE = "warm-up"


def warm_up() -> None:
    """Load every kernel, or compile it where no cache holds it, which takes about 10 seconds (`kernel` logs that).

    A process with an event loop calls this in a thread, before it serves.
    """
    batch = encode_records([b"v", None], keys=[b"k", None], headers=[[("h", b"")], None], timestamps_ms=0)
    check_batches([(batch, batch.nbytes)])
    decode_records(batch, _SOURCE)
    headers = walk(batch, _SOURCE)
    verify_crcs(batch, headers, _SOURCE)
    patch_offsets(batch, headers, 0, 0)
    sum_records(batch, headers)
    body_crc32c([bytes(BATCH_COMBINED_BYTES_MIN)])
    encode_plain_batches([["v"] * PLAIN_KERNEL_RECORDS_MIN], timestamp_ms=0)
