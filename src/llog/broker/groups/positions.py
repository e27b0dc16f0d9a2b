"""Positions of consumer groups: how far a group, known by its name, has come in each log.

One metadata record per group, log and life of the topic, moved by compare-and-set. A position only holds for the life
of the topic it was committed in: records of a re-created topic have nothing to do with those that were read before.

What must stay true: the last commit wins, and an older one that comes late (an answer that was lost, a stale read)
never undoes it: a repeat is only written over the very version that a strict read found. A position is only kept for a
log that its topic has, so a group holds no more records than there are logs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from llog.errors import (
    InvalidArgument,
    LogBusy,
    LogDeleted,
    LogError,
    MetadataStoreError,
    PartitionOutOfRange,
    UncertainOutcome,
    VersionConflict,
)
from llog.formats.values import GroupOffset, TopicRecord, decode_value, encode_value
from llog.limits import GROUP_OFFSET_METADATA_CHARS_MAX, GROUP_OFFSETS_PER_CALL_MAX
from llog.log.context import LogContext
from llog.log.keys import OFFSET_MAX, Log
from llog.stores.metadata.port import ABSENT, Delete, Key, Put, Record, last_segment

# Rounds of compare-and-set on a position before the caller is told to try again.
GROUP_OFFSET_ROUNDS_MAX: Final = 16
# Positions that one call lists; a group with more names the logs it asks for.
GROUP_OFFSETS_LISTED_MAX: Final = 10_000


_PREFIX: Final = "offset:"
_BEHIND_PREFIX: Final = "offset;"
# A longer topic name is kept as its digest: a key's segment has 160 bytes, a name may have 249.
_NAMED_TOPIC_CHARS_MAX: Final = 120


class Position(NamedTuple):
    """The next offset a group wants to read, and a word of its own beside it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class Committed(NamedTuple):
    position: Position
    committed_at_ms: int


def item_name(log: Log, incarnation: int) -> str:
    """The last segment of a position's key. The life stands in it, so that a later one begins without a position."""
    topic = log.topic
    if len(topic) > _NAMED_TOPIC_CHARS_MAX:
        topic = f"sha256={hashlib.sha256(topic.encode()).hexdigest()}"
    return f"{_PREFIX}{topic}:{log.partition}:{incarnation}"


def incarnation_of(item: str) -> int:
    return int(item.rpartition(":")[2])


class GroupOffsets:
    """The positions of all groups, for every front end."""

    def __init__(self, context: LogContext) -> None:
        self._context = context

    # -- commit -------------------------------------------------------------------------------------------------------
    async def commit(self, group: str, positions: Mapping[Log, Position]) -> dict[Log, LogError | None]:
        """Per log None, or why its position was not kept. Raises what the metadata store cannot do at all."""
        _check_count(len(positions))
        for log, position in positions.items():
            check_position(log, position)
        self._context.keys.group(group)  # refuses a name that cannot be kept
        lives = await self._incarnations(positions)
        outcomes: dict[Log, LogError | None] = {
            log: life if isinstance(life, LogError) else None for log, life in lives.items()
        }
        left = [
            _Commit(log, self._key(group, log, life), life, self._value(log, positions[log]))
            for log, life in lives.items()
            if not isinstance(life, LogError)
        ]
        for round_number in range(GROUP_OFFSET_ROUNDS_MAX):
            left = await self._commit_round(left, strict=round_number > 0)
            if not left:
                return outcomes
            await self._context.back_off(round_number)
        return outcomes | {commit.log: LogBusy(*commit.log, "its position kept changing; try again") for commit in left}

    async def _commit_round(self, commits: Sequence[_Commit], *, strict: bool) -> list[_Commit]:
        """Those that must be tried again."""
        found = await self._context.metadata.get_many([commit.key for commit in commits], strict=strict)
        open_commits = []
        for commit, record in zip(commits, found, strict=True):
            if not commit.done_by(record):
                commit.look(record, strict=strict)
                open_commits.append(commit)
        if not open_commits:
            return []
        writes = [(Put(commit.key, commit.encoded(), commit.expected),) for commit in open_commits]
        outcomes = await self._context.metadata.write(writes)
        left, first_ones = [], []
        for commit, outcome in zip(open_commits, outcomes, strict=True):
            if isinstance(outcome, MetadataStoreError):
                if not (outcome.retriable or isinstance(outcome, VersionConflict)):
                    raise outcome
                commit.uncertain = commit.uncertain or isinstance(outcome, UncertainOutcome)
                left.append(commit)
            elif commit.expected == ABSENT and commit.incarnation > 1:
                first_ones.append(commit)
        await self._remove_former(first_ones)
        return left

    async def _remove_former(self, commits: Sequence[_Commit]) -> None:
        """The first position in a life takes that of the life before with it, by version. Left-overs harm nobody."""
        if not commits:
            return
        keys = [former_key(commit.key, commit.incarnation) for commit in commits]
        found = await self._context.metadata.get_many(keys)
        deletes = [(Delete(record.key, record.version),) for record in found if record is not None]
        if deletes:
            await self._context.metadata.write(deletes)

    def _value(self, log: Log, position: Position) -> GroupOffset:
        return GroupOffset(
            topic=log.topic,
            partition=log.partition,
            offset=position.offset,
            leader_epoch=position.leader_epoch,
            metadata=position.metadata,
            committed_at_ms=self._context.now_ms(),
        )

    # -- fetch --------------------------------------------------------------------------------------------------------
    async def fetch(self, group: str, logs: Sequence[Log] | None = None) -> dict[Log, Committed | None]:
        """The positions of these logs (None: the group has none there), or of all logs where it has one."""
        if logs is None:
            return dict(await self._fetch_all(group))
        _check_count(len(logs))
        lives = await self._incarnations(logs)
        live = {log: life for log, life in lives.items() if not isinstance(life, LogError)}
        keys = [self._key(group, log, life) for log, life in live.items()]
        found = dict(zip(live, await self._context.metadata.get_many(keys, strict=True), strict=True))
        return {log: _committed(found.get(log)) for log in logs}

    async def _fetch_all(self, group: str) -> dict[Log, Committed]:
        kept: dict[Log, tuple[int, Committed]] = {}
        parent = self._context.keys.group(group)
        async for record in self._context.metadata.scan_all(parent, start=_PREFIX, stop=_BEHIND_PREFIX, strict=True):
            value = decode_value(GroupOffset, record.value, record.key.path)
            life = incarnation_of(last_segment(record.key.path))
            log = Log(value.topic, value.partition)
            if log not in kept or kept[log][0] < life:
                kept[log] = (life, _from_value(value))
            if len(kept) > GROUP_OFFSETS_LISTED_MAX:
                raise InvalidArgument("group", f"has more than {GROUP_OFFSETS_LISTED_MAX} positions: name the logs")
        lives = await self._incarnations(kept)
        return {log: committed for log, (life, committed) in kept.items() if lives[log] == life}

    # -- shared -------------------------------------------------------------------------------------------------------
    def _key(self, group: str, log: Log, incarnation: int) -> Key:
        return self._context.keys.group_item(group, item_name(log, incarnation))

    async def _incarnations(self, logs: Iterable[Log]) -> dict[Log, int | LogError]:
        """The life of each log's topic, or why there is no such log."""
        logs = list(logs)
        topics = sorted({log.topic for log in logs})
        keys = [self._context.keys.topic(topic) for topic in topics]
        found = dict(zip(topics, await self._context.metadata.get_many(keys, strict=True), strict=True))
        records = {
            topic: None if record is None else decode_value(TopicRecord, record.value, record.key.path)
            for topic, record in found.items()
        }
        return {log: life_of(log, records[log.topic]) for log in logs}


def life_of(log: Log, topic: TopicRecord | None) -> int | LogError:
    if topic is None or topic.state != "LIVE":
        return LogDeleted(*log, "no such topic")
    if log.partition >= topic.partition_count:
        return PartitionOutOfRange(*log, f"the topic has {topic.partition_count} partitions")
    return topic.incarnation


def former_key(key: Key, incarnation: int) -> Key:
    """The same position in the life before."""
    return Key(f"{key.path.rpartition(':')[0]}:{incarnation - 1}", key.route)


def check_position(log: Log, position: Position) -> None:
    if not 0 <= position.offset <= OFFSET_MAX:
        raise InvalidArgument("offset", f"{log}: {position.offset} must be from 0 to {OFFSET_MAX}")
    if len(position.metadata) > GROUP_OFFSET_METADATA_CHARS_MAX:
        reason = f"{log}: {len(position.metadata)} characters, more than {GROUP_OFFSET_METADATA_CHARS_MAX}"
        raise InvalidArgument("metadata", reason)


def _check_count(count: int) -> None:
    if not 1 <= count <= GROUP_OFFSETS_PER_CALL_MAX:
        raise InvalidArgument("offsets", f"{count} logs; 1 to {GROUP_OFFSETS_PER_CALL_MAX} in one call")


def _committed(record: Record | None) -> Committed | None:
    return None if record is None else _from_value(decode_value(GroupOffset, record.value, record.key.path))


def _from_value(value: GroupOffset) -> Committed:
    return Committed(Position(value.offset, value.metadata, value.leader_epoch), value.committed_at_ms)


class _Commit:
    """One position on its way."""

    __slots__ = ("_strict", "expected", "incarnation", "key", "log", "uncertain", "value")

    def __init__(self, log: Log, key: Key, incarnation: int, value: GroupOffset) -> None:
        self.log, self.key, self.incarnation, self.value = log, key, incarnation, value
        self.expected = ABSENT
        self.uncertain, self._strict = False, False

    def done_by(self, record: Record | None) -> bool:
        """Whether what is there now proves that this commit needs no other attempt.

        After an attempt without an answer it does when our value is there; and when something else is there than what a
        strict read had found: it was written since this call began, so ours comes before it in any order, and writing
        ours again would undo it.
        """
        if not self.uncertain:
            return False
        version = ABSENT if record is None else record.version
        ours = record is not None and record.value == self.encoded()
        return ours or (self._strict and version != self.expected)

    def look(self, record: Record | None, *, strict: bool) -> None:
        if record is not None:
            there = decode_value(GroupOffset, record.value, record.key.path)
            # A newer release's value refuses to be encoded, so it is not overwritten.
            self.value = _at_least(self.value, there.v)
        self.expected = ABSENT if record is None else record.version
        self._strict = strict

    def encoded(self) -> bytes:
        return encode_value(self.value, self.key.path)


def _at_least(value: GroupOffset, version: int) -> GroupOffset:
    return value if value.v >= version else replace(value, v=version)
