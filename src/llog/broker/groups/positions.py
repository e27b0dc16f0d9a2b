"""Positions of consumer groups: the next offset that a group reads, per log.

HTTP, Spark, the command line and Kafka clients share them. Each position is one metadata record per group, log and
incarnation of the topic, changed by compare-and-set; a re-created topic starts without positions.

The last commit wins. A commit that is retried after an unknown outcome writes only over the version that a strict read
returned before, so it never undoes a later commit. Positions are kept only for logs that exist, which bounds the
records of a group.

`GroupPositions` commits for consumers that are no members: a group with members refuses them (rule G12). Each attempt
reads the position first, then the group's head by a strict read, and then writes at the version of that position. So a
position that a member committed after the head was read is never overwritten: its version has changed. A member that
joins between both may have read the position before this commit; its own next commit then wins, as the later one. The
order does the same on stores with and without atomic groups of writes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from llog.errors import (
    GroupHasMembers,
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
from llog.groups.records import decode_head, encode_record, simple_head
from llog.limits import GROUP_POSITION_METADATA_CHARS_MAX, GROUP_POSITIONS_PER_CALL_MAX
from llog.log.context import LogChange, LogContext
from llog.log.keys import OFFSET_MAX, Log
from llog.stores.metadata.port import ABSENT, Delete, Key, Put, Record, last_segment

# Rounds of compare-and-set before `commit` answers `LogBusy`.
GROUP_POSITION_ROUNDS_MAX: Final = 16
# Positions that one `fetch` lists; for a group with more, the caller names the logs.
GROUP_POSITIONS_LISTED_MAX: Final = 10_000

POSITION_PREFIX: Final = "offset:"
POSITION_PREFIX_END: Final = "offset;"
# A longer topic name is replaced by its digest: a key segment holds 160 bytes, a topic name up to 249.
_NAMED_TOPIC_CHARS_MAX: Final = 120
NO_GENERATION: Final = -1


class Position(NamedTuple):
    """The next offset that a group reads, and the client's own note."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class CommittedPosition(NamedTuple):
    position: Position
    committed_at_ms: int


def item_name(log: Log, incarnation: int) -> str:
    """The last segment of a position's key."""
    topic = log.topic
    if len(topic) > _NAMED_TOPIC_CHARS_MAX:
        topic = f"sha256={hashlib.sha256(topic.encode()).hexdigest()}"
    return f"{POSITION_PREFIX}{topic}:{log.partition}:{incarnation}"


def incarnation_of(item: str) -> int:
    return int(item.rpartition(":")[2])


class GroupPositions:
    """The positions of all groups."""

    def __init__(self, context: LogContext) -> None:
        self._context = context

    # -- commit -------------------------------------------------------------------------------------------------------
    async def commit(self, group: str, positions: Mapping[Log, Position]) -> dict[Log, LogError | None]:
        """Per log None, or the error that kept its position from being stored. Raises `GroupHasMembers`, and errors of
        the metadata store."""
        _check_count(len(positions))
        for log, position in positions.items():
            check_position(log, position)
        self._context.keys.group(group)  # rejects an invalid group name
        incarnations = await self._incarnations(positions)
        outcomes: dict[Log, LogError | None] = {
            log: incarnation if isinstance(incarnation, LogError) else None for log, incarnation in incarnations.items()
        }
        left = [
            _Commit(log, self._key(group, log, incarnation), incarnation, self._value(log, positions[log]))
            for log, incarnation in incarnations.items()
            if not isinstance(incarnation, LogError)
        ]
        commits = left
        for round_number in range(GROUP_POSITION_ROUNDS_MAX):
            left = await self._commit_round(group, left, strict=round_number > 0)
            if not left:
                break
            await self._context.back_off(round_number)
        for commit in left:
            outcomes[commit.log] = LogBusy(*commit.log, "its position kept changing; try again")
        self._report(group, [commit for commit in commits if outcomes[commit.log] is None])
        return outcomes

    def _report(self, group: str, committed: Sequence[_Commit]) -> None:
        if committed:
            before = {str(commit.log): commit.offset_before for commit in committed if commit.expected != ABSENT}
            after = {str(commit.log): commit.value.offset for commit in committed}
            self._context.on_change(LogChange("group.commit", group, before, after))

    async def commit_all(self, group: str, positions: Mapping[Log, Position]) -> dict[Log, LogError | None]:
        """`commit` for any number of logs, in as many calls as needed."""
        outcomes: dict[Log, LogError | None] = {}
        pairs = list(positions.items())
        for first in range(0, len(pairs), GROUP_POSITIONS_PER_CALL_MAX):
            outcomes |= await self.commit(group, dict(pairs[first : first + GROUP_POSITIONS_PER_CALL_MAX]))
        return outcomes

    async def _commit_round(self, group: str, commits: Sequence[_Commit], *, strict: bool) -> list[_Commit]:
        """Try each commit once; return those to retry."""
        records = await self._context.metadata.get_many([commit.key for commit in commits], strict=strict)
        open_commits = []
        for commit, record in zip(commits, records, strict=True):
            if not commit.done_by(record):
                commit.expect(record, strict=strict)
                open_commits.append(commit)
        if not open_commits:
            return []
        generation = await self._generation_without_members(group)
        for commit in open_commits:
            commit.value = replace(commit.value, generation=generation)
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
        await self._remove_former(group, first_ones)
        return left

    async def _generation_without_members(self, group: str) -> int:
        """The group's generation; a group without a head gets one, so that it is listed."""
        key = self._context.keys.group(group)
        last: MetadataStoreError
        for _ in range(GROUP_POSITION_ROUNDS_MAX):
            record = await self._context.metadata.get(key, strict=True)
            if record is not None:
                head = decode_head(record.value, key.path)
                if head.members:
                    raise GroupHasMembers(group, head.members)
                return head.generation or NO_GENERATION
            now_ms = self._context.now_ms()
            simple = encode_record(simple_head(f"{self._context.random_bits(64):016x}", now_ms), key.path)
            try:
                await self._context.metadata.put(key, simple, expected=ABSENT)
                return NO_GENERATION
            except MetadataStoreError as error:  # the next round reads what there is
                if not (error.retriable or isinstance(error, VersionConflict)):
                    raise
                last = error
        raise last

    async def _remove_former(self, group: str, commits: Sequence[_Commit]) -> None:
        """The first commit in an incarnation deletes the position of the previous one. A leftover is harmless."""
        if not commits:
            return
        former = await remove_former(self._context, [(commit.key, commit.incarnation) for commit in commits])
        if any(former):
            gone = {str(commit.log): "of a deleted topic" for commit, old in zip(commits, former, strict=True) if old}
            self._context.on_change(LogChange("group.delete", group, before=gone))

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
    async def fetch(self, group: str, logs: Sequence[Log] | None = None) -> dict[Log, CommittedPosition | None]:
        """Positions of these logs (None where the group has none); without `logs`, all positions of the group."""
        if logs is None:
            return dict(await self._fetch_all(group))
        _check_count(len(logs))
        incarnations = await self._incarnations(logs)
        live = {log: number for log, number in incarnations.items() if not isinstance(number, LogError)}
        keys = [self._key(group, log, incarnation) for log, incarnation in live.items()]
        records = dict(zip(live, await self._context.metadata.get_many(keys, strict=True), strict=True))
        return {log: _committed(records.get(log)) for log in logs}

    async def _fetch_all(self, group: str) -> dict[Log, CommittedPosition]:
        kept: dict[Log, tuple[int, CommittedPosition]] = {}
        parent = self._context.keys.group(group)
        async for record in self._context.metadata.scan_all(
            parent, start=POSITION_PREFIX, stop=POSITION_PREFIX_END, strict=True
        ):
            value = decode_value(GroupOffset, record.value, record.key.path)
            incarnation = incarnation_of(last_segment(record.key.path))
            log = Log(value.topic, value.partition)
            if log not in kept or kept[log][0] < incarnation:
                kept[log] = (incarnation, _from_value(value))
            if len(kept) > GROUP_POSITIONS_LISTED_MAX:
                reason = f"{group!r} has more than {GROUP_POSITIONS_LISTED_MAX} positions; name the logs to fetch"
                raise InvalidArgument("group", reason)
        incarnations = await self._incarnations(kept)
        return {log: committed for log, (incarnation, committed) in kept.items() if incarnations[log] == incarnation}

    # -- shared -------------------------------------------------------------------------------------------------------
    def _key(self, group: str, log: Log, incarnation: int) -> Key:
        return self._context.keys.group_item(group, item_name(log, incarnation))

    async def _incarnations(self, logs: Iterable[Log]) -> dict[Log, int | LogError]:
        """The incarnation of each log's topic, or the error that says why the log does not exist."""
        logs = list(logs)
        topics = sorted({log.topic for log in logs})
        keys = [self._context.keys.topic(topic) for topic in topics]
        records = dict(zip(topics, await self._context.metadata.get_many(keys, strict=True), strict=True))
        decoded = {
            topic: None if record is None else decode_value(TopicRecord, record.value, record.key.path)
            for topic, record in records.items()
        }
        return {log: _incarnation_or_error(log, decoded[log.topic]) for log in logs}


def _incarnation_or_error(log: Log, topic: TopicRecord | None) -> int | LogError:
    if topic is None or topic.state != "LIVE":
        return LogDeleted(*log, "no such topic")
    if log.partition >= topic.partition_count:
        return PartitionOutOfRange(*log, f"the topic has {topic.partition_count} partitions")
    return topic.incarnation


async def remove_former(context: LogContext, positions: Sequence[tuple[Key, int]]) -> list[Record | None]:
    """Delete the same positions in the previous incarnations, by version; what there was."""
    former = await context.metadata.get_many([former_key(key, incarnation) for key, incarnation in positions])
    deletes = [(Delete(record.key, record.version),) for record in former if record is not None]
    if deletes:
        await context.metadata.write(deletes)
    return former


def former_key(key: Key, incarnation: int) -> Key:
    """The key of the same position in the previous incarnation."""
    return Key(f"{key.path.rpartition(':')[0]}:{incarnation - 1}", key.route)


def check_position(log: Log, position: Position) -> None:
    if not 0 <= position.offset <= OFFSET_MAX:
        raise InvalidArgument("offset", f"{log}: {position.offset} is not in 0 … {OFFSET_MAX}")
    if len(position.metadata) > GROUP_POSITION_METADATA_CHARS_MAX:
        reason = f"{log}: {len(position.metadata)} characters, at most {GROUP_POSITION_METADATA_CHARS_MAX} are accepted"
        raise InvalidArgument("metadata", reason)


def _check_count(count: int) -> None:
    if not 1 <= count <= GROUP_POSITIONS_PER_CALL_MAX:
        raise InvalidArgument("offsets", f"{count} logs in one call; 1 to {GROUP_POSITIONS_PER_CALL_MAX} are accepted")


def _committed(record: Record | None) -> CommittedPosition | None:
    return None if record is None else _from_value(decode_value(GroupOffset, record.value, record.key.path))


def _from_value(value: GroupOffset) -> CommittedPosition:
    return CommittedPosition(Position(value.offset, value.metadata, value.leader_epoch), value.committed_at_ms)


class _Commit:
    """One position that is being committed."""

    __slots__ = ("_strict", "expected", "incarnation", "key", "log", "offset_before", "uncertain", "value")

    def __init__(self, log: Log, key: Key, incarnation: int, value: GroupOffset) -> None:
        self.log, self.key, self.incarnation, self.value = log, key, incarnation, value
        self.expected, self.offset_before = ABSENT, 0
        self.uncertain, self._strict = False, False

    def done_by(self, record: Record | None) -> bool:
        """Whether the record shows that an attempt with an unknown outcome needs no retry.

        True if the record holds our value. Also true if it differs from what a strict read returned: that write came
        after this call began, so ours is ordered before it, and writing ours again would undo it.
        """
        if not self.uncertain:
            return False
        version = ABSENT if record is None else record.version
        ours = record is not None and record.value == self.encoded()
        return ours or (self._strict and version != self.expected)

    def expect(self, record: Record | None, *, strict: bool) -> None:
        if record is not None:
            current = decode_value(GroupOffset, record.value, record.key.path)
            # Encoding fails for a format version of a newer release, so its value is not overwritten.
            self.value = self.value if self.value.v >= current.v else replace(self.value, v=current.v)
            self.offset_before = current.offset
        self.expected = ABSENT if record is None else record.version
        self._strict = strict

    def encoded(self) -> bytes:
        return encode_value(self.value, self.key.path)
