"""What everybody was told, and what the logs and the export may hold after it.

plain logs      every record that landed and is not below the log's start is at its offset, none is missing between
logs by key     what is there was written, at its offset; of every key the last record is there, or was a tombstone
                that had its time, and then nothing older of its key is
the export      every record once, and all that the logs still hold
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from llog.log.keys import Log
from llog.log.read.records import LogRecord
from llog.testing.sim import Event
from tests.unit.pipeline.everything import (
    BATCHES,
    ORDERS,
    ROWS,
    SALES,
    VISITS,
    Asked,
    DeleteAsked,
    Deleted,
    Landed,
    Refused,
    Row,
)


class Held(NamedTuple):
    """A log as it was read."""

    log_start_offset: int
    next_offset: int
    records: tuple[LogRecord, ...]

    def rows(self) -> dict[int, Row]:
        return {one.offset: row_of(one) for one in self.records}


def row_of(record: LogRecord) -> Row:
    [(name, token)] = record.headers
    assert name == "token"
    assert token is not None
    return Row(token.decode(), record.key, record.payload)


@dataclass
class Model:
    """Of one log."""

    asked: dict[str, Row] = field(default_factory=dict)
    """By token."""
    offsets: dict[str, int] = field(default_factory=dict)
    """Of those that landed."""
    refused: set[str] = field(default_factory=set)
    must: set[str] = field(default_factory=set)
    """Appends that landed in the present incarnation, for every possible outcome of deletions."""

    def check_written(self, held: Held) -> None:
        rows = held.rows()
        tokens = Counter(row.token for row in rows.values())
        assert not [token for token, count in tokens.items() if count > 1], tokens
        assert len(rows) == len(held.records)
        for offset, row in rows.items():
            assert self.asked.get(row.token) == row, (offset, row)
            assert row.token not in self.refused, (offset, row)
            assert self.offsets.get(row.token, offset) == offset, (offset, row, self.offsets[row.token])

    def check_plain(self, held: Held) -> None:
        rows = held.rows()
        assert sorted(rows) == list(range(held.log_start_offset, held.next_offset)), sorted(rows)
        for token in self.must:
            offset = self.offsets[token]
            assert offset < held.next_offset, (token, offset)
            assert offset < held.log_start_offset or rows[offset].token == token, (token, offset)

    def check_by_key(self, held: Held) -> None:
        rows = held.rows()
        landed = {self.offsets[token]: self.asked[token] for token in self.must}
        known = {offset: row for offset, row in landed.items() if offset >= held.log_start_offset} | rows
        for offset, row in known.items():
            if row.key is None:
                assert offset in rows, (offset, row)
        last = {row.key: offset for offset, row in sorted(known.items()) if row.key is not None}
        # A tombstone without an answer, or with one in another incarnation, may have come and gone in this one.
        doubtful = {row.key for token, row in self.asked.items() if token not in self.must and row.value is None}
        for key, offset in last.items():
            if offset in rows:
                continue
            row = known[offset]
            assert row.value is None or key in doubtful, f"the last record of {key!r} is gone: {offset} {row}"
            older = [there for there, one in rows.items() if one.key == key]
            assert not older, f"{key!r} at {older} came back: its tombstone at {offset} is gone"


def models_of(history: Iterable[Event]) -> dict[Log, Model]:
    models: dict[Log, Model] = {}
    asked: dict[tuple[str, int], tuple[int, Asked]] = {}
    deletions: dict[tuple[str, int], int | None] = {}  # of the topic that writers write to
    for at, (_, actor, event) in enumerate(history):
        if isinstance(event, Asked):
            asked[actor, event.op] = at, event
            models.setdefault(event.log, Model()).asked |= {row.token: row for row in event.rows}
        elif isinstance(event, DeleteAsked):
            if event.topic == VISITS:
                deletions[actor, event.op] = None
        elif isinstance(event, Deleted):
            if (actor, event.op) in deletions:
                deletions[actor, event.op] = at
        elif isinstance(event, Landed | Refused):
            tokens = [row.token for row in asked[actor, event.op][1].rows]
            model = models[asked[actor, event.op][1].log]
            if isinstance(event, Refused):
                model.refused |= set(tokens)
            else:
                model.offsets |= {token: event.start_offset + number for number, token in enumerate(tokens)}
    for at, one in asked.values():
        lives_on = one.log.topic != VISITS or all(over is not None and over < at for over in deletions.values())
        if lives_on:
            model = models[one.log]
            model.must |= {row.token for row in one.rows if row.token in model.offsets}
    return models


def check_logs(models: Mapping[Log, Model], held: Mapping[Log, Held | None]) -> None:
    for log, there in held.items():
        if log.topic == SALES:
            continue  # `check_sink`
        model = models.get(log, Model())
        if there is None:
            assert not model.must, (log, sorted(model.must))
            continue
        try:
            model.check_written(there)
            (model.check_plain if log.topic == ORDERS else model.check_by_key)(there)
        except AssertionError as error:
            raise AssertionError(f"{log}: {error}") from error


def check_sink(history: Iterable[Event], held: Held | None) -> None:
    """Each row of each batch once; of a topic that was deleted on the way, at most once."""
    deleted = any(isinstance(noted.event, DeleteAsked) and noted.event.topic == SALES for noted in history)
    rows = {} if held is None else held.rows()
    tokens = Counter(row.token for row in rows.values())
    wanted = Counter(f"{batch}-{row}" for batch in range(BATCHES) for row in range(ROWS))
    assert tokens <= wanted if deleted else tokens == wanted, tokens
    assert held is None or sorted(rows) == list(range(held.log_start_offset, held.next_offset)), sorted(rows)


def check_export(
    models: Mapping[Log, Model], held: Mapping[Log, Held | None], exported: Sequence[tuple[int, int, Row]]
) -> None:
    places = Counter((partition, offset) for partition, offset, _ in exported)
    assert not [place for place, count in places.items() if count > 1], "exported twice"
    for partition, offset, row in exported:
        model = models[Log(ORDERS, partition)]
        assert model.asked.get(row.token) == row, (partition, offset, row)
        assert model.offsets.get(row.token, offset) == offset, (partition, offset, row)
    for log, there in held.items():
        if log.topic == ORDERS and there is not None:
            missing = [offset for offset in there.rows() if (log.partition, offset) not in places]
            assert not missing, (log, missing)
