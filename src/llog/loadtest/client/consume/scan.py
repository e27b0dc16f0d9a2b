"""Stamps in the answers of brokers, with no Python work per record.

A `Scanner` gathers what it finds in one answer after another until `take` folds it: into runs of consecutive sequences
for the ledger, and into end-to-end latencies.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from llog.errors import InvalidField
from llog.formats.buffers import Buffer
from llog.formats.records.compression import decompress
from llog.formats.records.record_batch import HEADER_BYTES, Codec
from llog.loadtest.client.consume import scan_kernels as kernels
from llog.loadtest.client.consume.places import Longs, Place, Places
from llog.loadtest.client.histograms import Latencies
from llog.loadtest.client.ledger import ReceivedLedger

Octets = npt.NDArray[np.uint8]


_SOURCE: Final = "Fetch answer"
_FAULTS: Final = {
    kernels.ENDS_EARLY: "ends inside a field",
    kernels.TOO_MANY: "names more partitions or batches than were asked for",
    kernels.UNKNOWN_TOPIC: "names a topic that was not asked for",
}
_OTHERS: Final = [kernels.FOREIGN, kernels.UNSTAMPED, kernels.MISPLACED]


class Fetched(NamedTuple):
    """What a Fetch answer says of its partitions, a value per partition."""

    error: int
    """Of the whole answer."""
    rows: Longs
    errors: Longs
    high_watermarks: Longs
    log_starts: Longs
    next_offsets: Longs


class Scanner:
    def __init__(self, run: str, value_bytes: int) -> None:
        """`run` is a `run_hash`; `value_bytes` the length of every record's value."""
        self._run = _octets(run.encode())
        self._value_bytes = value_bytes
        self._found: Longs = np.empty((kernels.FOUND_ROWS, 1_024), np.int64)
        self._runs: Longs = np.empty((kernels.RUN_ROWS, 1_024), np.int64)
        self._count = 0
        self._batches: Longs = np.empty((kernels.BATCH_ROWS, 1_024), np.int64)
        self.sums: Longs = np.zeros(kernels.SUMS, np.int64)
        """Since the beginning; rows of `scan_kernels`."""

    def warm_up(self) -> None:
        """Load the kernels, or compile them, before there is anything to measure."""
        places = Places([Place(0, 0, (0,))], [1])
        self.fetched(memoryview(b"\0" * 10 + b"\1\0"), 0, places, b"\0" * 16)
        self._scan(memoryview(b""), self._batches, 0, 0, places)
        self.text(b"", 0, 0, 0)
        kernels.fold_runs(self._found, 0, self._runs)

    def fetched(self, frame: memoryview, at: int, places: Places, topic_ids: bytes) -> Fetched:
        """Scan a Fetch answer of version 13 whose body begins at `at`. `topic_ids` has the ids of all topics."""
        data = _octets(frame)
        self._batches = _with_room(self._batches, 0, data.size // HEADER_BYTES + 1)
        partitions: Longs = np.empty((kernels.PARTITION_ROWS, len(places)), np.int64)
        ids = _octets(topic_ids)
        fault, error, filled, listed = kernels.list_fetched(
            data, at, ids, places.bases, places.rows, places.offsets, partitions, self._batches, self.sums
        )
        if fault != kernels.SOUND:
            raise InvalidField(_SOURCE, _FAULTS[fault])
        partitions = partitions[:, :filled]
        partitions = partitions[:, partitions[kernels.PLACE] >= 0]
        self._scan_listed(frame, listed, places)
        return Fetched(
            error,
            partitions[kernels.PLACE],
            partitions[kernels.ERROR],
            partitions[kernels.HIGH_WATERMARK],
            partitions[kernels.LOG_START],
            partitions[kernels.NEXT_OFFSET],
        )

    def _scan_listed(self, frame: memoryview, listed: int, places: Places) -> None:
        """In the order of the answer: runs of plain batches at once, compressed ones one by one."""
        batches = self._batches
        first = 0
        for stop in (*np.flatnonzero(batches[kernels.CODEC, :listed]).tolist(), listed):
            if stop > first:
                self._scan(frame, batches, first, stop, places)
            if stop < listed:
                self._scan_packed(frame, batches[:, stop : stop + 1].copy(), places)
            first = stop + 1

    def _scan_packed(self, frame: memoryview, batch: Longs, places: Places) -> None:
        _, begin, end, _, codec, _ = batch[:, 0].tolist()
        if codec > max(Codec):
            raise InvalidField(_SOURCE, f"a batch has the unknown codec {codec}")
        records = decompress(Codec(codec), frame[begin:end], _SOURCE)
        batch[kernels.BEGIN], batch[kernels.END] = 0, len(records)
        self._scan(records, batch, 0, 1, places)

    def _scan(self, data: memoryview, batches: Longs, first: int, stop: int, places: Places) -> None:
        byte_length = int((batches[kernels.END, first:stop] - batches[kernels.BEGIN, first:stop]).sum())
        self._make_room(byte_length)
        self._count = kernels.scan_batches(
            _octets(data),
            batches,
            first,
            stop,
            places.topics,
            places.numbers,
            places.offsets,
            self._run,
            self._found,
            self._count,
            self.sums,
        )
        if self._count < 0:
            self._count = 0
            raise InvalidField(_SOURCE, "a batch ends inside a record")

    def text(self, records: Buffer, topic: int, partition: int, passed: int) -> None:
        """Scan the JSON of one partition's records, which hold `passed` offsets."""
        data = _octets(records)
        self._make_room(data.size)
        others, before = int(self.sums[_OTHERS].sum()), self._count
        self._count = kernels.scan_text(
            data, topic, partition, self._value_bytes, self._run, self._found, before, self.sums
        )
        stamped = self._count - before + int(self.sums[_OTHERS].sum()) - others
        self.sums[kernels.OFFSET_GAPS] += max(passed - stamped, 0)

    def take(self, ledger: ReceivedLedger, latencies: Latencies, received_us: int) -> int:
        """Hand all that was found to the ledger and to the histogram, as received at a Unix time; how many records."""
        count, self._count = self._count, 0
        if not count:
            return 0
        latencies.add_many(received_us - self._found[kernels.DUE, :count])
        self._runs = _with_room(self._runs, 0, count)
        folded = kernels.fold_runs(self._found, count, self._runs)
        for producer, topic, partition, first, length in self._runs[:, :folded].T.tolist():
            ledger.receive_run((producer, topic, partition), first, length)
        return count

    def _make_room(self, byte_length: int) -> None:
        """A stamp takes `STAMP_BYTES` at least, so bytes limit the number of records."""
        self._found = _with_room(self._found, self._count, byte_length // kernels.STAMP_BYTES + 1)


def _octets(data: Buffer) -> Octets:
    """Read-only, as all input of the kernels is: they are compiled for one kind of array."""
    octets: Octets = np.frombuffer(memoryview(data).toreadonly(), np.uint8)
    return octets


def _with_room(columns: Longs, used: int, more: int) -> Longs:
    if used + more <= columns.shape[1]:
        return columns
    larger: Longs = np.empty((columns.shape[0], 2 * (used + more)), np.int64)
    larger[:, :used] = columns[:, :used]
    return larger
