"""Compares clients' answers with the store: acknowledged records stay, in order, once; refused ones are not stored.

I1, I2, I3, I7, and the observations of I6. Only what no legal run can show is a violation: an operation without an
answer may have happened at any time, and records may be gone where a topic was deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from llog.log.keys import Log
from llog.testing.history.contents import Tokens
from llog.testing.history.image import LogImage
from llog.testing.history.operations import Action, Append, Operations, Read
from llog.testing.history.verdict import Violation

REFUSALS_OF_NUMBERS: Final = ("DuplicateSequence", "OutOfOrderSequence", "ProducerEpochFenced", "UnknownProducer")
"""Answers that no producer gets which numbers its batches from 0 on and waits for each answer. Only a topic that was
created again does not know it."""


class AppendedBatch(NamedTuple):
    """A batch of records: one attempt, or several of an idempotent producer."""

    tokens: tuple[str, ...]
    attempts: list[Append]

    @property
    def refused(self) -> bool:
        return all(attempt.outcome == "refused" for attempt in self.attempts)

    @property
    def landed(self) -> list[Append]:
        return [attempt for attempt in self.attempts if attempt.outcome == "landed"]


class LogCase:
    """One log: its clients' operations, and what it holds. `stored` is None when the log does not exist (any more)."""

    def __init__(self, log: Log, operations: Operations, image: LogImage | None, stored: Tokens | None) -> None:
        self.log, self.operations, self.image, self.stored = log, operations, image, stored
        self.deletions = [act for act in operations.acts if act.act == "delete_topic"]
        self.batches: dict[tuple[str, ...], AppendedBatch] = {}
        for attempt in operations.appends:
            tokens = attempt.asked.tokens
            self.batches.setdefault(tokens, AppendedBatch(tokens, [])).attempts.append(attempt)
        self.batch_of = {token: batch for batch in self.batches.values() for token in batch.tokens}
        control = image.control if image is not None else None
        self.start = control.log_start_offset if stored is not None and control is not None else 0
        self.may_start = _highest_start(operations.acts)

    def violation(self, invariant: str, offset: int, text: str) -> Violation:
        return Violation(invariant, self.log, offset, "", text)

    def may_be_gone(self, asked_at: int) -> bool:
        """Could a record appended at that time have been deleted with its topic?"""
        return any(deletion.over_at > asked_at for deletion in self.deletions)


def judge_clients(case: LogCase) -> list[Violation]:
    return [
        *_acknowledged(case),
        *_stored_once(case),
        *_in_order(case),
        *_one_owner(case),
        *_start(case),
        *_reads(case),
        *_fences(case),
        *_observations(case),
    ]


def _acknowledged(case: LogCase) -> Iterator[Violation]:
    """I1: every acknowledged record is at its offset until retention passes it."""
    for batch in case.batches.values():
        for attempt in batch.landed:
            if case.may_be_gone(attempt.asked_at):
                continue
            if case.stored is None:
                yield case.violation("I1", attempt.start_offset, f"{batch.tokens} landed, and the log does not exist")
                continue
            for offset, token in enumerate(batch.tokens, attempt.start_offset):
                if offset >= case.start and case.stored.get(offset) != token:
                    text = f"{token!r} was acknowledged here, found {case.stored.get(offset)!r}"
                    yield case.violation("I1", offset, text)


def _stored_once(case: LogCase) -> Iterator[Violation]:
    """I3: nothing is stored twice, nothing that was refused or never asked for is stored, batches are whole."""
    places: dict[str, list[int]] = {}
    for offset, token in (case.stored or {}).items():
        places.setdefault(token, []).append(offset)
    for token, offsets in places.items():
        if len(offsets) > 1:
            yield case.violation("I3", offsets[1], f"{token!r} is stored twice, at {offsets}")
        yield from _legitimate(case, offsets[0], token, f"{token!r} is stored")
    for batch in case.batches.values():
        yield from _whole(case, batch, places)
        offsets = sorted({attempt.start_offset for attempt in batch.landed})
        if len(offsets) > 1 and not case.deletions:
            yield case.violation("I3", offsets[1], f"the same batch {batch.tokens} landed at {offsets}")
        for attempt in batch.attempts:
            if attempt.answer is not None and attempt.answer.reason in REFUSALS_OF_NUMBERS:
                if attempt.answer.reason == "UnknownProducer" and case.deletions:
                    continue
                text = f"{batch.tokens} follow the rules and were refused with {attempt.answer.reason}"
                yield case.violation("I3", -1, text)


def _legitimate(case: LogCase, offset: int, token: str, sighting: str) -> Iterator[Violation]:
    """I3, I2: a client appended the record, it was not refused, and it lies where it was acknowledged."""
    batch = case.batch_of.get(token)
    if batch is None:
        yield case.violation("I3", offset, f"{sighting}, which no client appended")
    elif batch.refused:
        yield case.violation("I3", offset, f"{sighting}, which was refused")
    elif len(batch.attempts) == 1 and batch.landed:
        expected = batch.landed[0].start_offset + batch.tokens.index(token)
        if expected != offset:
            yield case.violation("I2", offset, f"{sighting}, which was acknowledged at {expected}")


def _whole(case: LogCase, batch: AppendedBatch, places: Mapping[str, list[int]]) -> Iterator[Violation]:
    """Above the log's start a batch is stored completely and in its order, or not at all."""
    found = [places[token][0] if token in places else -1 for token in batch.tokens]
    present = [(position, offset) for position, offset in enumerate(found) if offset >= 0]
    if not present:
        return
    starts = {offset - position for position, offset in present}
    missing = [position for position, offset in enumerate(found) if offset < 0]
    if len(starts) > 1 or any(min(starts) + position >= case.start for position in missing):
        yield case.violation("I3", present[0][1], f"{batch.tokens} lie at {found}: torn apart")


def _in_order(case: LogCase) -> Iterator[Violation]:
    """I3: a writer's records lie in the order in which it asked (it waits for each answer)."""
    if not case.stored:
        return
    offset_of = {token: offset for offset, token in case.stored.items()}
    last: dict[str, tuple[int, str]] = {}
    for batch in sorted(case.batches.values(), key=lambda batch: batch.attempts[0].asked_at):
        placed = [offset_of[token] for token in batch.tokens if token in offset_of]
        if not placed:
            continue
        actor = batch.attempts[0].actor
        before, token = last.get(actor, (-1, ""))
        if placed[0] <= before:
            text = f"{batch.tokens[0]!r} of {actor} lies before {token!r}, which it asked for earlier"
            yield case.violation("I3", placed[0], text)
        last[actor] = (placed[-1], batch.tokens[-1])


def _one_owner(case: LogCase) -> Iterator[Violation]:
    """I2: no offset is given to two records, as far as acknowledgements and reads show, within one incarnation."""
    owners: dict[int, tuple[str, int]] = {}
    for offset, token, asked_at in _sightings(case):
        known = owners.setdefault(offset, (token, asked_at))
        if known[0] == token:
            continue
        if not case.may_be_gone(min(known[1], asked_at)):
            yield case.violation("I2", offset, f"given to {known[0]!r} and to {token!r}")


def _sightings(case: LogCase) -> Iterator[tuple[int, str, int]]:
    """Offset, token, and a time not later than when it was appended or read."""
    for batch in case.batches.values():
        for attempt in batch.landed:
            for offset, token in enumerate(batch.tokens, attempt.start_offset):
                yield offset, token, batch.attempts[0].asked_at
    for read in case.operations.reads:
        for offset, token in read.answer.records if read.answer is not None else ():
            batch_ = case.batch_of.get(token)
            yield offset, token, read.asked_at if batch_ is None else batch_.attempts[0].asked_at


def _highest_start(acts: Iterable[Action]) -> int:
    """The highest start that clients asked for."""
    highest = -1
    for act in acts:
        if act.act == "delete_records" and act.asked.offset >= 0:
            highest = max(highest, act.asked.offset)
        elif act.act in ("retain", "delete_records"):
            highest = 2**63 - 1
    return highest


def _start(case: LogCase) -> Iterator[Violation]:
    """I1: only retention moves the start."""
    image = case.image
    if case.stored is None or image is None or image.topic is None:
        return
    if case.start > max(image.topic.first_offset, case.may_start):
        yield case.violation("I1", case.start, "the log starts here, and no client asked for it")


def _reads(case: LogCase) -> Iterator[Violation]:
    for read in case.operations.reads:
        answer = read.answer
        if answer is None:
            continue
        offsets = [offset for offset, _ in answer.records]
        if offsets != list(range(read.asked.offset, read.asked.offset + len(offsets))):
            yield case.violation("I1", read.asked.offset, f"{read.actor} asked for it and read {offsets}: a gap")
        for offset, token in answer.records:
            yield from _legitimate(case, offset, token, f"{read.actor} read {token!r}")
        yield from _failed_read(case, read)


def _failed_read(case: LogCase, read: Read) -> Iterator[Violation]:
    """I1 at the client: what was acknowledged before the read began is not beyond the end, and not lost."""
    answer = read.answer
    assert answer is not None
    offset = read.asked.offset + len(answer.records)
    if answer.outcome not in ("out_of_range", "not_initialized", "inconsistent"):
        return
    if answer.outcome == "out_of_range" and offset < answer.log_start_offset:
        if answer.log_start_offset > case.may_start and not case.deletions:
            yield case.violation("I1", offset, f"{read.actor} got {answer.log_start_offset} as the log's start")
        return
    for batch in case.batches.values():
        for attempt in batch.landed:
            covers = attempt.start_offset <= offset < attempt.start_offset + len(batch.tokens)
            known = attempt.answered_at < read.asked_at and not case.may_be_gone(attempt.asked_at)
            if known and (covers or answer.outcome == "not_initialized"):
                text = f"acknowledged to {attempt.actor}, and then {read.actor} got {answer.outcome}"
                yield case.violation("I1", offset, f"{text}: {answer.reason}")
                return
    if answer.outcome == "inconsistent" and not case.deletions:
        yield case.violation("I1", offset, f"{read.actor} could not read it: {answer.reason}")


def _fences(case: LogCase) -> Iterator[Violation]:
    """I7: what was asked for after a fence was acknowledged, and before anyone opened the log, must not land."""
    openings = [act for act in case.operations.acts if act.act in ("unfence", "delete_topic", "create_topic")]
    for fence in case.operations.acts:
        if fence.act != "fence" or not fence.done:
            continue
        for attempt in case.operations.appends:
            if attempt.outcome != "landed" or _first_asked_at(case, attempt) < fence.answered_at:
                continue
            if not any(o.asked_at < attempt.answered_at and o.over_at > fence.asked_at for o in openings):
                text = f"{attempt.asked.tokens} landed after {fence.actor} had closed the log"
                yield case.violation("I7", attempt.start_offset, text)


def _first_asked_at(case: LogCase, attempt: Append) -> int:
    """Of its batch: a repeat gets the offset of the first attempt, which may have landed before the fence."""
    return case.batches[attempt.asked.tokens].attempts[0].asked_at


def _observations(case: LogCase) -> Iterator[Violation]:
    """I6: what one client saw by strict reads never goes back within an incarnation."""
    last: dict[str, tuple[int, ...]] = {}
    for observation in case.operations.observations:
        now = observation.values
        values = (now.incarnation, now.epoch, now.counter, now.log_start_offset, now.cursor)
        before = last.get(observation.actor, ())
        if before and (values[0] < before[0] or (values[0] == before[0] and any(map(int.__lt__, values, before)))):
            text = f"{observation.actor} saw incarnation, epoch, counter, start and cursor {before}, then {values}"
            yield case.violation("I6", now.cursor, text)
        last[observation.actor] = values
