"""Batches of a request that name no partition, divided by the keys of their records into a batch for each partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np
from msgspec import UNSET

from llog.errors import InvalidArgument
from llog.formats.partitioner import partitions_of_keys
from llog.http.json.produce_rows import Rows, rows_of
from llog.http.json.schemas import ProduceBatch
from llog.log.keys import Log


class Origin(NamedTuple):
    """Where a batch comes from in a request with batches that name no partition."""

    number: int
    """Of the batch in the request."""
    records: list[int] | None = None
    """The numbers of its records in a batch that was divided."""


class PlannedBatch(NamedTuple):
    """A batch for one log, to be encoded."""

    log: Log
    batch: ProduceBatch
    number: int
    """Of the batch in the request."""
    rows: Rows | None = None
    """The records, if they are rows already; else they are those of the batch."""
    origin: Origin | None = None

    @property
    def path(self) -> str:
        return f"topic_partitions[{self.number}]"


def keyed_rows(batch: ProduceBatch, path: str, now_ms: int) -> Rows:
    """The records of a batch without a partition; `InvalidArgument` if it needs one."""
    if not (batch.producer_id is batch.epoch is batch.sequence is UNSET):
        reason = "missing: the sequence of a producer counts the records of one log, so the batch has to name it"
        raise InvalidArgument(f"{path}.partition", reason)
    rows = rows_of(batch.records, f"{path}.records", now_ms)
    keys: Sequence[bytes | None] = [None] if rows.keys is None else rows.keys
    if None in keys:
        reason = "missing: without a partition the key chooses it; give the batch a partition or every record a key"
        raise InvalidArgument(f"{path}.records[{keys.index(None)}].key", reason)
    return rows


def divided(batch: ProduceBatch, number: int, rows: Rows, partition_count: int) -> Iterator[PlannedBatch]:
    """The records of each partition, in order."""
    partitions = partitions_of_keys(cast(list[bytes], rows.keys), partition_count)
    order = np.argsort(partitions, kind="stable")
    ends = [*(np.flatnonzero(np.diff(partitions[order])) + 1).tolist(), len(order)]
    for begin, end in pairwise([0, *ends]):
        records = order[begin:end].tolist()
        log = Log(batch.topic, int(partitions[records[0]]))
        yield PlannedBatch(log, batch, number, rows.only(records), Origin(number, records))
