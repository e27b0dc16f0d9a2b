"""A small log at rest, made by hand: the store and the history that a checker gets, for planting faults in both."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import replace

from llog.formats.records.bytes_batch import encode_bytes_batch
from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import BatchRule, patch_offsets, walk
from llog.formats.segment import SegmentBuilder
from llog.formats.shared_blob import BlobGroup, build_shared_blob
from llog.formats.values import (
    CompactionRecord,
    ControlRecord,
    IndexEntry,
    Pending,
    ProducerBatch,
    ProducerPage,
    ProducerSnapshot,
    ProducerState,
    TopicRecord,
    Value,
    decode_value,
    encode_value,
)
from llog.log.ids import new_object_id
from llog.log.keys import Keys, Log
from llog.log.producers import ProducerClaim
from llog.testing.history import Checker, Dump, DumpedObject, Noted, Phase, Violation
from llog.testing.history.events import (
    Act,
    ActAnswered,
    ActAsked,
    AnyEvent,
    AppendAnswered,
    AppendAsked,
    Observed,
    Outcome,
    ReadAnswered,
    ReadAsked,
    ReadOutcome,
)

V = TypeVar("V", bound=Value)
LOG = Log("orders", 0)
KEYS = Keys()
NOW_MS = 1_700_000_000_000
Producer = tuple[int, int, int]
"""Producer id, epoch, first sequence."""


class SmallStore:
    """One topic with one log; its offsets begin at 1."""

    def __init__(self) -> None:
        self.records: dict[str, bytes] = {}
        self.objects: dict[str, DumpedObject] = {}
        self.history: list[Noted] = []
        self._ops, self._ids = itertools.count(), itertools.count(1)
        self.put(KEYS.topic(LOG.topic).path, TopicRecord(topic_id="t", incarnation=1, state="LIVE", partition_count=1))
        self.control = ControlRecord(log_state="OPEN", sequence_counter=1, log_start_offset=1)
        self.compaction = CompactionRecord(offset=1)
        self.head = ProducerSnapshot(as_of=1, pages=0)

    # -- values -------------------------------------------------------------------------------------------------------
    def put(self, path: str, value: Value) -> None:
        self.records[path] = encode_value(value)

    def _get(self, path: str, kind: type[V]) -> V:
        return decode_value(kind, self.records[path], path)

    @property
    def control(self) -> ControlRecord:
        return self._get(KEYS.control(LOG).path, ControlRecord)

    @control.setter
    def control(self, value: ControlRecord) -> None:
        self.put(KEYS.control(LOG).path, value)

    @property
    def compaction(self) -> CompactionRecord:
        return self._get(KEYS.compaction(LOG).path, CompactionRecord)

    @compaction.setter
    def compaction(self, value: CompactionRecord) -> None:
        self.put(KEYS.compaction(LOG).path, value)

    @property
    def head(self) -> ProducerSnapshot:
        return self._get(KEYS.producers(LOG).path, ProducerSnapshot)

    @head.setter
    def head(self, value: ProducerSnapshot) -> None:
        self.put(KEYS.producers(LOG).path, value)

    def entry_key(self, end_offset: int) -> str:
        return KEYS.index_entry(LOG, end_offset).path

    def entry(self, end_offset: int) -> IndexEntry:
        return self._get(self.entry_key(end_offset), IndexEntry)

    def change_entry(self, end_offset: int, **changes: object) -> None:
        self.put(self.entry_key(end_offset), replace(self.entry(end_offset), **changes))

    # -- what the log does --------------------------------------------------------------------------------------------
    def store(self, tokens: Sequence[str], producer: Producer | None = None, *, pending: bool = False) -> int:
        """Records of one append, as the log would leave them; their first offset."""
        control = self.control
        start = control.sequence_counter
        object_id = new_object_id(NOW_MS, lambda bits: next(self._ids))
        group = BlobGroup(*LOG, len(tokens), "bytes-batch-v1", encode_bytes_batch([t.encode() for t in tokens]))
        blob = build_shared_blob([group], created_at_ms=NOW_MS, writer_id="w")
        uri = f"memory://small/{KEYS.blob_object(object_id)}"
        self.objects[uri] = DumpedObject(b"".join(bytes(part) for part in blob.buffers))
        [part] = blob.slices
        batches: tuple[ProducerBatch, ...] = ()
        if producer is not None:
            last = producer[2] + len(tokens) - 1
            batches = (
                ProducerBatch(
                    producer_id=producer[0],
                    epoch=producer[1],
                    first_sequence=producer[2],
                    last_sequence=last,
                    start_offset=start,
                ),
            )
        made = Pending(
            append_id=object_id,
            epoch=control.epoch,
            start_offset=start,
            end_offset=start + len(tokens) - 1,
            msg_count=len(tokens),
            data_key=uri,
            encoding="bytes-batch-v1",
            byte_offset=part.byte_offset,
            byte_length=part.byte_length,
            producers=batches,
            created_at_ms=NOW_MS,
        )
        counter = start + len(tokens)
        self.control = replace(control, sequence_counter=counter, pending=made if pending else None)
        if not pending:
            self.put(self.entry_key(counter - 1), _entry_of(made))
        return start

    def compact(self, start: int, end: int, tokens: Sequence[str]) -> str:
        """One segment over these offsets, finished; its URI."""
        builder = SegmentBuilder(topic=LOG.topic, partition=LOG.partition, incarnation=1)
        batch = bytearray(encode_records([t.encode() for t in tokens], timestamps_ms=NOW_MS))
        patch_offsets(batch, walk(batch, "test"), start, 0)
        builder.add(batch, walk(batch, "test", rule=BatchRule.COMPACTED))
        segment = builder.finish(start_offset=start, end_offset=end, level=1, created_at_ms=NOW_MS)
        uri = f"memory://small/{KEYS.segment_object(LOG, new_object_id(NOW_MS, lambda bits: next(self._ids)))}"
        self.objects[uri] = DumpedObject(b"".join(bytes(part) for part in segment.buffers))
        for path in [self.entry_key(offset) for offset in range(start, end)]:
            self.records.pop(path, None)
        entry = IndexEntry(
            type="COMPACTED",
            level=1,
            msg_count=end - start + 1,
            record_count=len(tokens),
            data_key=uri,
            encoding="kafka-v2",
            byte_offset=0,
            byte_length=segment.byte_length,
            footer_length=segment.footer_length,
            created_at_ms=NOW_MS,
        )
        self.put(self.entry_key(end), entry)
        self.compaction = replace(self.compaction, offset=end + 1)
        self.snapshot(end + 1)
        return uri

    def snapshot(self, as_of: int, *states: ProducerState) -> None:
        self.head = ProducerSnapshot(as_of=as_of, pages=1)
        self.put(KEYS.producer_page(LOG, as_of, 0).path, ProducerPage(producers=states))

    # -- what clients saw ---------------------------------------------------------------------------------------------
    def record(self, event: AnyEvent, actor: str = "w") -> None:
        self.history.append(Noted(len(self.history), actor, event))

    def answered(
        self,
        tokens: Sequence[str],
        outcome: Outcome | None,
        start_offset: int = -1,
        *,
        producer: Producer | None = None,
        actor: str = "w",
        reason: str = "",
    ) -> None:
        """An append as its writer saw it; None: no answer came."""
        op = next(self._ops)
        claim = None if producer is None else ProducerClaim(*producer, producer[2] + len(tokens) - 1)
        self.record(AppendAsked(op=op, log=LOG, tokens=tuple(tokens), claim=claim), actor)
        if outcome is not None:
            answer = AppendAnswered(op=op, outcome=outcome, start_offset=start_offset, reason=reason)
            self.record(answer, actor)

    def append(self, *tokens: str, producer: Producer | None = None, actor: str = "w") -> int:
        """Stored and acknowledged."""
        start = self.store(tokens, producer)
        self.answered(tokens, "landed", start, producer=producer, actor=actor)
        return start

    def read(
        self, offset: int, outcome: ReadOutcome, *records: tuple[int, str], bounds: tuple[int, int] = (-1, -1)
    ) -> None:
        op = next(self._ops)
        self.record(ReadAsked(op=op, log=LOG, offset=offset), "r")
        answer = ReadAnswered(
            op=op,
            outcome=outcome,
            records=records,
            log_start_offset=bounds[0],
            next_offset=bounds[1],
        )
        self.record(answer, "r")

    def act(self, what: Act, *, offset: int = -1, done: bool = True) -> None:
        op = next(self._ops)
        self.record(ActAsked(op=op, log=LOG, act=what, offset=offset), "o")
        self.record(ActAnswered(op=op, done=done), "o")

    def observed(self, *, counter: int, cursor: int, incarnation: int = 1, epoch: int = 0, start: int = 1) -> None:
        seen = Observed(
            op=next(self._ops),
            log=LOG,
            incarnation=incarnation,
            epoch=epoch,
            counter=counter,
            log_start_offset=start,
            cursor=cursor,
        )
        self.record(seen, "r")

    # -- judgement ----------------------------------------------------------------------------------------------------
    def violations(self, phase: Phase = Phase.RECOVERED) -> list[Violation]:
        checker = Checker(KEYS, grace_ms=1_000)
        return checker.violations(self.history, Dump(self.records, self.objects, NOW_MS + 10_000), phase)


def _entry_of(made: Pending) -> IndexEntry:
    return IndexEntry(
        type="WAL",
        msg_count=made.msg_count,
        record_count=made.msg_count,
        data_key=made.data_key,
        encoding=made.encoding,
        byte_offset=made.byte_offset,
        byte_length=made.byte_length,
        append_id=made.append_id,
        epoch=made.epoch,
        producers=made.producers,
        created_at_ms=made.created_at_ms,
    )
