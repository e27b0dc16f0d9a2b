"""Which segments hold transactions, by their custom metadata: a JSON object with `"transactions": true`.

Segments of this release never do, for no front end accepts transactions; so compaction writes no such mark, and the
question is answered "none". It is asked and answered all the same, from what the records say: whoever writes a segment
with aborted transactions in it says so there. Other custom metadata (a note, another object) means no transactions.
"""

from __future__ import annotations

import msgspec

from llog.formats.values import SegmentRecord


class _Marks(msgspec.Struct):
    transactions: bool = False


_DECODER = msgspec.json.Decoder(_Marks)


def has_transactions(record: SegmentRecord) -> bool:
    if not record.custom_metadata.startswith("{"):
        return False
    try:
        return _DECODER.decode(record.custom_metadata).transactions
    except msgspec.DecodeError:
        return False
