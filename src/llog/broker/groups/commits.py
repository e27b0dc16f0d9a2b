"""Commits of members and of Kafka's simple consumers: gathered over all groups into one metadata write.

Commits are taken in the order in which they came; those that come within `COMMIT_GATHER_MS`, or while a write is under
way, form the next write. One write is under way at a time, so the commits of one position are stored in their order.

A position is written at the version that this coordinator read or wrote last. When that is not its version any more,
it is read strictly and compared by generation: a position of a higher generation stays, because its member came later
(rule G11). After an uncertain write, too, the commit is written again over what is there: apart from this coordinator
only one that lost its claim may have written it, and its members' commits are earlier ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from llog.broker.groups.positions import NO_GENERATION, Position, check_position, item_name, remove_former
from llog.errors import InvalidArgument, LlogError, LogBusy, PartitionOutOfRange, UnsupportedFormat, VersionConflict
from llog.formats.values import GroupOffset, decode_value, encode_value
from llog.groups.codes import GroupCode
from llog.log.context import LogContext, get_all, write_all
from llog.log.keys import Log
from llog.log.topics.known_topics import KnownTopic, KnownTopics
from llog.stores.metadata.port import ABSENT, Key, Put, Record

COMMIT_GATHER_MS: Final = 5
COMMITS_WAITING_MAX: Final = 20_000
"""Requests; one more is refused with COORDINATOR_LOAD_IN_PROGRESS."""
COMMIT_POSITIONS_PER_WRITE_MAX: Final = 8_192
COMMIT_ROUNDS_MAX: Final = 16
VERSIONS_PER_GROUP_MAX: Final = 10_000
"""Positions of a group whose versions are remembered; then all are forgotten and read again."""

_log: Final = logging.getLogger("llog.broker.groups")

Outcome = GroupCode | LlogError
"""`GroupCode.NONE`: stored."""
Named = str | bytes
"""A topic, by name or by id."""
Wanted = Mapping[tuple[Named, int], Position]
Judge = Callable[[KnownTopic | LlogError], KnownTopic | LlogError]
"""What became of a topic, as far as the client may know."""


class Committing(Protocol):
    """A group as commits see it."""

    group_id: str
    versions: dict[Key, int]

    def check_commit(self, request: CommitRequest) -> GroupCode:
        """Who may commit now. On STALE_MEMBER_EPOCH, `check_partition` decides for each partition."""
        ...

    def check_partition(self, request: CommitRequest, topic_id: str, partition: int) -> GroupCode: ...

    @property
    def generation(self) -> int: ...

    @property
    def superseded(self) -> GroupCode:
        """The code for a commit over a position of a later generation."""
        ...

    def may_write(self) -> bool:
        """Whether this node coordinates the group, by its own clock too (rule G10)."""
        ...

    async def ready(self, *, store: bool) -> None:
        """Load the group; with `store`, a group without a head gets one."""
        ...


class CommitRequest:
    __slots__ = (
        "answer",
        "generation",
        "group",
        "instance_id",
        "judge",
        "member_id",
        "outcomes",
        "positions",
        "version",
    )

    def __init__(
        self,
        group: Committing,
        positions: Wanted,
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
        version: int,
        judge: Judge | None = None,
    ) -> None:
        self.group, self.positions, self.judge = group, positions, judge
        self.member_id, self.instance_id, self.generation, self.version = member_id, instance_id, generation, version
        self.outcomes: dict[tuple[Named, int], Outcome] = {}
        self.answer: asyncio.Future[dict[tuple[Named, int], Outcome]] = asyncio.get_running_loop().create_future()

    def refuse(self, outcome: Outcome) -> None:
        for place in self.positions:
            self.outcomes.setdefault(place, outcome)

    def finish(self) -> None:
        """Answer. What was stored is acknowledged only while this node coordinates the group: a later coordinator may
        have read the position before a write of this one arrived (rule G10)."""
        if not self.group.may_write():
            for place, outcome in self.outcomes.items():
                if outcome == GroupCode.NONE:
                    self.outcomes[place] = GroupCode.NOT_COORDINATOR
        if not self.answer.done():
            self.answer.set_result(self.outcomes)


class _Write:
    """One position that is being written; the last of the commits that name it decides."""

    __slots__ = ("generation", "group", "incarnation", "is_first", "key", "log", "places", "position", "version")

    def __init__(self, group: Committing, key: Key, log: Log, incarnation: int) -> None:
        self.group, self.key, self.log, self.incarnation = group, key, log, incarnation
        self.places: list[tuple[CommitRequest, tuple[Named, int]]] = []
        self.position = Position(0)
        self.generation = NO_GENERATION
        self.version = group.versions.get(key)
        self.is_first = False

    def add(self, request: CommitRequest, place: tuple[Named, int], generation: int) -> None:
        self.places.append((request, place))
        self.position, self.generation = request.positions[place], generation

    def end(self, outcome: Outcome) -> None:
        for request, place in self.places:
            request.outcomes[place] = outcome


class CommitQueue:
    def __init__(
        self, context: LogContext, topics: KnownTopics, *, on_written: Callable[[int, int], None] = lambda *_: None
    ) -> None:
        """`on_written` gets the number of requests and of positions of each write."""
        self._context, self._topics, self._on_written = context, topics, on_written
        self._waiting: list[CommitRequest] = []
        self._task: asyncio.Task[None] | None = None
        self._busy: dict[str, int] = {}
        """Group → its requests that are not answered."""
        self._idle: dict[str, asyncio.Future[None]] = {}

    def submit(self, request: CommitRequest) -> asyncio.Future[dict[tuple[Named, int], Outcome]]:
        """Take the commit now, behind all earlier ones."""
        if len(self._waiting) >= COMMITS_WAITING_MAX:
            request.refuse(GroupCode.COORDINATOR_LOAD_IN_PROGRESS)
            request.finish()
            return request.answer
        self._waiting.append(request)
        group = request.group.group_id
        self._busy[group] = self._busy.get(group, 0) + 1
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="llog-group-commits")
        return request.answer

    async def settled(self, group: str) -> None:
        """The commits of the group that came before this call are answered: no read precedes them."""
        if group in self._busy:
            if group not in self._idle:
                self._idle[group] = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle[group])

    def is_busy(self, group: str) -> bool:
        return group in self._busy

    async def close(self) -> None:
        """Wait for the commits that were taken."""
        while self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    # -- one write after the other -------------------------------------------------------------------------------------
    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._context.sleep(COMMIT_GATHER_MS / 1_000)
                batch, self._waiting = self._cut()
                await self._commit(batch)
        finally:
            self._task = None

    def _cut(self) -> tuple[list[CommitRequest], list[CommitRequest]]:
        count = positions = 0
        for request in self._waiting:
            positions += len(request.positions)
            if count and positions > COMMIT_POSITIONS_PER_WRITE_MAX:
                break
            count += 1
        return self._waiting[:count], self._waiting[count:]

    async def _commit(self, batch: Sequence[CommitRequest]) -> None:
        try:
            await self._prepare(batch)
            topics = await self._topics_of(batch)
            writes = self._plan(batch, topics)
            self._on_written(len(batch), len(writes))
            await self._store(writes)
        except LlogError as error:
            for request in batch:
                request.refuse(error)
        except Exception:
            _log.exception("commits of %d requests failed", len(batch))
        finally:
            for request in batch:
                request.refuse(GroupCode.UNKNOWN_SERVER_ERROR)
                request.finish()
                self._answered(request.group.group_id)

    def _answered(self, group: str) -> None:
        self._busy[group] -= 1
        if not self._busy[group]:
            del self._busy[group]
            idle = self._idle.pop(group, None)
            if idle is not None and not idle.done():
                idle.set_result(None)

    async def _prepare(self, batch: Sequence[CommitRequest]) -> None:
        groups = {request.group.group_id: request.group for request in batch}
        simple = {request.group.group_id for request in batch if request.generation < 0}
        await asyncio.gather(*(group.ready(store=name in simple) for name, group in groups.items()))

    async def _topics_of(self, batch: Sequence[CommitRequest]) -> dict[Named, KnownTopic | LlogError]:
        wanted = {topic: partition for request in batch for topic, partition in request.positions}
        for topic, partition in [place for request in batch for place in request.positions]:
            wanted[topic] = max(wanted[topic], partition)
        found: dict[Named, KnownTopic | LlogError] = {}
        names: list[str] = []
        ids: list[bytes] = []
        for topic, partition in wanted.items():
            known = self._topics.fresh(topic) if isinstance(topic, str) else self._topics.fresh_by_id(topic)
            if known is not None and partition < known.partition_count:
                found[topic] = known
            elif isinstance(topic, str):
                self._topics.forget(topic)  # it may have got more partitions
                names.append(topic)
            else:
                ids.append(topic)
        if names:
            found.update(await self._topics.find(names))
        if ids:
            found |= dict((await self._topics.find_by_id(ids)).items())
        return found

    # -- what to write -------------------------------------------------------------------------------------------------
    def _plan(self, batch: Sequence[CommitRequest], topics: Mapping[Named, KnownTopic | LlogError]) -> list[_Write]:
        writes: dict[Key, _Write] = {}
        for request in batch:
            group = request.group
            allowed = group.check_commit(request)
            if allowed not in (GroupCode.NONE, GroupCode.STALE_MEMBER_EPOCH):
                request.refuse(allowed)
                continue
            judge = request.judge
            if judge is None:
                known = topics
            else:
                known = {named: judge(topics[named]) for named in {named for named, _ in request.positions}}
            for place, position in request.positions.items():
                named, partition = place
                topic = known[named]
                refused = _refused(topic, partition, position)
                if refused is not None:
                    request.outcomes[place] = refused
                    continue
                assert isinstance(topic, KnownTopic)
                if allowed != GroupCode.NONE:
                    code = group.check_partition(request, topic.id_bytes.hex(), partition)
                    if code != GroupCode.NONE:
                        request.outcomes[place] = code
                        continue
                log = Log(topic.name, partition)
                key = self._context.keys.group_item(group.group_id, item_name(log, topic.incarnation))
                if key not in writes:
                    writes[key] = _Write(group, key, log, topic.incarnation)
                generation = request.generation if request.generation >= 0 else group.generation or NO_GENERATION
                writes[key].add(request, place, generation)
        return list(writes.values())

    # -- writing -------------------------------------------------------------------------------------------------------
    async def _store(self, writes: list[_Write]) -> None:
        now_ms = self._context.now_ms()
        left = writes
        for round_number in range(COMMIT_ROUNDS_MAX):
            left = await self._read_unknown(left)
            if not left:
                break
            puts = [(Put(write.key, _value(write, now_ms), write.version),) for write in left]
            outcomes = await write_all(self._context.metadata, puts)
            again = []
            for write, outcome in zip(left, outcomes, strict=True):
                if isinstance(outcome, tuple):
                    self._stored(write, outcome[0])
                elif isinstance(outcome, VersionConflict) or outcome.retriable:
                    write.version = None
                    write.group.versions.pop(write.key, None)
                    again.append(write)
                else:
                    write.end(outcome)
            left = again
            if not left:
                break
            await self._context.back_off(round_number)
        for write in left:
            write.end(LogBusy(*write.log, "its position could not be stored; try again"))
        first = [(write.key, write.incarnation) for write in writes if write.is_first and write.incarnation > 1]
        if first:
            await remove_former(self._context, first)

    async def _read_unknown(self, writes: list[_Write]) -> list[_Write]:
        """Read the positions whose versions are not known; what may be written then."""
        unknown = [write for write in writes if write.version is None]
        records = await get_all(self._context.metadata, [write.key for write in unknown], strict=True)
        refused = set()
        for write, record in zip(unknown, records, strict=True):
            write.version = ABSENT if record is None else record.version
            code = _judge_replacement(write, record)
            if code != GroupCode.NONE:
                write.end(code)
                refused.add(write.key)
        left = [write for write in writes if write.key not in refused]
        for write in left:
            if not write.group.may_write():
                write.end(GroupCode.NOT_COORDINATOR)
        return [write for write in left if write.group.may_write()]

    def _stored(self, write: _Write, version: int) -> None:
        versions = write.group.versions
        if len(versions) >= VERSIONS_PER_GROUP_MAX:
            versions.clear()
        write.is_first = write.version == ABSENT
        versions[write.key] = version
        write.end(GroupCode.NONE)


def _refused(topic: KnownTopic | LlogError, partition: int, position: Position) -> LlogError | None:
    if isinstance(topic, LlogError):
        return topic
    if partition >= topic.partition_count:
        reason = f"the topic has {topic.partition_count} partitions"
        return PartitionOutOfRange(topic.name, partition, reason)
    try:
        check_position(Log(topic.name, partition), position)
    except InvalidArgument as error:
        return error
    return None


def _judge_replacement(write: _Write, record: Record | None) -> Outcome:
    """Whether the position that is stored may be replaced (rule G11); never one that a newer release wrote (h18)."""
    if record is None:
        return GroupCode.NONE
    stored = decode_value(GroupOffset, record.value, record.key.path)
    if stored.v > stored.known_version:
        return UnsupportedFormat(write.key.path, "a newer release wrote this position")
    return GroupCode.NONE if stored.generation <= write.generation else write.group.superseded


def _value(write: _Write, now_ms: int) -> bytes:
    value = GroupOffset(
        topic=write.log.topic,
        partition=write.log.partition,
        offset=write.position.offset,
        leader_epoch=write.position.leader_epoch,
        metadata=write.position.metadata,
        committed_at_ms=now_ms,
        generation=write.generation,
    )
    return encode_value(value, write.key.path)
