"""Which sequences of which producer were acknowledged, uncertain or received, and what follows from comparing them.

A ledger holds ranges of sequences per (producer, topic, partition). Sequences arrive nearly in order, so a run of any
length is a few ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from llog.errors import LoadTestError
from llog.loadtest.artifacts import Loss
from llog.loadtest.client.ranges import Ranges
from llog.loadtest.client.stamp import Stamps

Key = tuple[int, int, int]
"""Producer, topic, partition."""


class _Rows(msgspec.Struct, frozen=True):
    """Ledgers in files: little-endian 64-bit columns."""

    run_id: str
    columns: Mapping[str, bytes]


_RANGE_COLUMNS: Final = ("producer", "topic", "partition", "first", "end")
_TRIPLE_COLUMNS: Final = ("topic", "partition", "count")


class ProducedLedger:
    """Of one producer process, or of several, merged."""

    def __init__(self) -> None:
        self.acknowledged: dict[Key, Ranges] = {}
        self.uncertain: dict[Key, Ranges] = {}

    def acknowledge(self, key: Key, first: int, count: int) -> None:
        _ranges(self.acknowledged, key).add(first, first + count)

    def leave_uncertain(self, key: Key, first: int, count: int) -> None:
        _ranges(self.uncertain, key).add(first, first + count)

    @property
    def records_acknowledged(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    @property
    def records_uncertain(self) -> int:
        return sum(map(len, self.uncertain.values()))

    def merge(self, other: ProducedLedger) -> None:
        _merge_ranges(self.acknowledged, other.acknowledged)
        _merge_ranges(self.uncertain, other.uncertain)

    def save(self, path: Path, run_id: str) -> None:
        _save(path, run_id, {**_packed("acknowledged", self.acknowledged), **_packed("uncertain", self.uncertain)})

    @classmethod
    def load(cls, path: Path, run_id: str) -> ProducedLedger:
        columns = _load(path, run_id)
        ledger = cls()
        ledger.acknowledged, ledger.uncertain = _unpacked("acknowledged", columns), _unpacked("uncertain", columns)
        return ledger


class ReceivedLedger:
    """Of one consumer process, or of several, merged."""

    def __init__(self) -> None:
        self.received: dict[Key, Ranges] = {}
        self.duplicates: dict[tuple[int, int], int] = {}
        """By topic and partition."""
        self.reordered: dict[tuple[int, int], int] = {}
        self.ended: set[tuple[int, int]] = set()
        """Topics and partitions that were read to the end after the producers had ended."""

    def receive(self, stamps: Stamps) -> None:
        """Records in the order in which a consumer received them."""
        for key, first, count in runs(stamps):
            self.receive_run(key, first, count)

    def receive_run(self, key: Key, first: int, count: int) -> None:
        """Records with successive sequences."""
        ranges = _ranges(self.received, key)
        late = max(0, min(first + count, ranges.last_end) - first)
        duplicates = ranges.add(first, first + count)
        if late:
            place = key[1:]
            _count(self.duplicates, place, duplicates)
            _count(self.reordered, place, late - duplicates)

    def end(self, topic: int, partition: int) -> None:
        self.ended.add((topic, partition))

    @property
    def records_received(self) -> int:
        return sum(map(len, self.received.values())) + sum(self.duplicates.values())

    def merge(self, other: ReceivedLedger) -> None:
        """Records that both have are duplicates."""
        for place, number in _merge_ranges(self.received, other.received).items():
            _count(self.duplicates, place, number)
        for mine, theirs in ((self.duplicates, other.duplicates), (self.reordered, other.reordered)):
            for place, number in theirs.items():
                _count(mine, place, number)
        self.ended |= other.ended

    def save(self, path: Path, run_id: str) -> None:
        _save(
            path,
            run_id,
            {
                **_packed("received", self.received),
                **_packed_counts("duplicates", self.duplicates),
                **_packed_counts("reordered", self.reordered),
                **_packed_counts("ended", dict.fromkeys(self.ended, 1)),
            },
        )

    @classmethod
    def load(cls, path: Path, run_id: str) -> ReceivedLedger:
        columns = _load(path, run_id)
        ledger = cls()
        ledger.received = _unpacked("received", columns)
        ledger.duplicates = _unpacked_counts("duplicates", columns)
        ledger.reordered = _unpacked_counts("reordered", columns)
        ledger.ended = set(_unpacked_counts("ended", columns))
        return ledger


def runs(stamps: Stamps) -> Iterator[tuple[Key, int, int]]:
    """Key, first sequence and length of each run of successive sequences, in order."""
    count = len(stamps.sequence)
    if not count:
        return
    same = (
        (stamps.producer[1:] == stamps.producer[:-1])
        & (stamps.partition[1:] == stamps.partition[:-1])
        & (stamps.topic[1:] == stamps.topic[:-1])
        & (stamps.sequence[1:] == stamps.sequence[:-1] + 1)
    )
    begins = np.concatenate(([0], np.flatnonzero(~same) + 1))
    lengths = np.diff(begins, append=count)
    columns = (stamps.producer, stamps.topic, stamps.partition, stamps.sequence)
    for *key, first, length in zip(*(column[begins].tolist() for column in columns), lengths.tolist(), strict=True):
        yield (key[0], key[1], key[2]), first, length


def compare(produced: ProducedLedger, received: ReceivedLedger, topics: Sequence[str]) -> dict[str, Loss]:
    """Losses by `topic:partition`, only where there are any.

    An acknowledged record is missing when its partition was read to the end without it, or when a later record of its
    producer was received: a log keeps the order of a producer.
    """
    missing: dict[tuple[int, int], int] = {}
    unacknowledged: dict[tuple[int, int], int] = {}
    for key, acknowledged in produced.acknowledged.items():
        found = received.received.get(key, Ranges())
        wanted = acknowledged if key[1:] in received.ended else acknowledged.below(found.last_end)
        _count(missing, key[1:], len(wanted) - wanted.common(found))
    for key, found in received.received.items():
        acknowledged = produced.acknowledged.get(key, Ranges())
        _count(unacknowledged, key[1:], len(found) - found.common(acknowledged))
    places = sorted({*missing, *unacknowledged, *received.duplicates, *received.reordered})
    return {
        f"{topics[topic]}:{partition}": Loss(
            missing.get((topic, partition), 0),
            received.duplicates.get((topic, partition), 0),
            received.reordered.get((topic, partition), 0),
            unacknowledged.get((topic, partition), 0),
        )
        for topic, partition in places
    }


def total_loss(losses: Iterable[Loss]) -> Loss:
    every = list(losses)
    return Loss(
        sum(loss.missing for loss in every),
        sum(loss.duplicates for loss in every),
        sum(loss.reordered for loss in every),
        sum(loss.unacknowledged for loss in every),
    )


def _ranges(of: dict[Key, Ranges], key: Key) -> Ranges:
    found = of.get(key)
    if found is None:
        found = of[key] = Ranges()
    return found


def _count(counts: dict[tuple[int, int], int], place: tuple[int, int], number: int) -> None:
    if number:
        counts[place] = counts.get(place, 0) + number


def _merge_ranges(into: dict[Key, Ranges], other: Mapping[Key, Ranges]) -> dict[tuple[int, int], int]:
    """How many sequences both had, by topic and partition."""
    common: dict[tuple[int, int], int] = {}
    for key, ranges in other.items():
        mine = _ranges(into, key)
        for first, end in zip(ranges.starts, ranges.ends, strict=True):
            _count(common, key[1:], mine.add(first, end))
    return common


# -- files -------------------------------------------------------------------------------------------------------------


def _save(path: Path, run_id: str, columns: Mapping[str, bytes]) -> None:
    scratch = path.with_name(f".{path.name}")
    scratch.write_bytes(msgspec.msgpack.encode(_Rows(run_id, columns)))
    scratch.replace(path)


def _load(path: Path, run_id: str) -> Mapping[str, bytes]:
    try:
        rows = msgspec.msgpack.decode(path.read_bytes(), type=_Rows)
    except FileNotFoundError:
        raise LoadTestError(f"{path}: the process wrote no ledger") from None
    except msgspec.DecodeError as error:
        raise LoadTestError(f"{path}: the ledger is damaged: {error}") from None
    if rows.run_id != run_id:
        raise LoadTestError(f"{path}: the ledger is of another run, {rows.run_id}")
    return rows.columns


def _packed(name: str, of: Mapping[Key, Ranges]) -> dict[str, bytes]:
    rows = [
        (*key, first, end) for key, ranges in of.items() for first, end in zip(ranges.starts, ranges.ends, strict=True)
    ]
    return {name: np.array(rows, "<i8").tobytes()}


def _unpacked(name: str, columns: Mapping[str, bytes]) -> dict[Key, Ranges]:
    of: dict[Key, Ranges] = {}
    for producer, topic, partition, first, end in _rows(columns[name], len(_RANGE_COLUMNS)):
        _ranges(of, (producer, topic, partition)).add(first, end)
    return of


def _packed_counts(name: str, counts: Mapping[tuple[int, int], int]) -> dict[str, bytes]:
    return {name: np.array([(*place, number) for place, number in counts.items()], "<i8").tobytes()}


def _unpacked_counts(name: str, columns: Mapping[str, bytes]) -> dict[tuple[int, int], int]:
    return {(topic, partition): number for topic, partition, number in _rows(columns[name], len(_TRIPLE_COLUMNS))}


def _rows(data: bytes, width: int) -> Any:
    return np.frombuffer(data, "<i8").reshape(-1, width).tolist()
