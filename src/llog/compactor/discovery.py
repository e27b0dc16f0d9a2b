"""Discovery: the configured logs, and every partition of every live topic.

It lists topics (one routing key) and reads their control records; it never scans every shard. The catalogue remembers
both, so that a change of one topic costs the reading of that topic. A failed discovery changes nothing, and the next
successful one drops the logs of deleted topics. An unreadable record is reported and hides no other topic or log. A
topic counts as left behind when two discoveries, an interval apart, saw it dying, so that the process that deletes it
has time to finish.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from llog.compactor.plan import RandomBits, shuffled
from llog.concurrency import batched
from llog.errors import FormatError, InvalidArgument
from llog.formats.values import ControlRecord, TopicRecord, decode_value
from llog.limits import METADATA_GET_MANY_MAX
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.topics.config import TopicConfig
from llog.stores.metadata.port import Record, last_segment

# Logs that one service watches; of more, each discovery picks a random selection.
COMPACTOR_LOGS_MAX: Final = 100_000

_log = logging.getLogger("llog.compactor")


class DyingTopic(NamedTuple):
    topic: str
    incarnation: int


class FencedLog(NamedTuple):
    log: Log
    reason: str


class Discovered(NamedTuple):
    logs: tuple[Log, ...] = ()
    fenced: tuple[FencedLog, ...] = ()
    dying: frozenset[DyingTopic] = frozenset()
    """Topics that are DELETING."""
    at_ms: int = 0
    left_out: int = 0
    """Number of logs beyond COMPACTOR_LOGS_MAX."""
    unreadable: tuple[str, ...] = ()
    """The errors of topics with an unreadable record."""


class _Found(NamedTuple):
    """A topic that is LIVE or DELETING, as last read."""

    version: int
    record: TopicRecord
    logs: tuple[Log, ...] = ()
    """Those of its current incarnation; none of a topic that is being deleted."""
    fenced: tuple[FencedLog, ...] = ()
    by_key: TopicConfig | None = None
    """Its config, if it is compacted by key."""

    @property
    def is_whole(self) -> bool:
        """Every partition was found."""
        return self.record.state != "LIVE" or len(self.logs) == self.record.partition_count


class Catalogue:
    def __init__(self, context: LogContext, configured: Collection[Log] = ()) -> None:
        self._context, self._configured = context, tuple(configured)
        self._topics: dict[str, _Found] = {}
        self._unreadable: dict[str, str] = {}
        self.reconfigured: frozenset[str] = frozenset()
        """Topics whose config the last reading found changed."""

    @property
    def topic_count(self) -> int:
        return len(self._topics)

    def knows(self, log: Log) -> bool:
        found = self._topics.get(log.topic)
        if found is None:
            return False
        return log.partition < found.record.partition_count if found.is_whole else log in found.logs

    def by_key(self) -> dict[Log, TopicConfig]:
        """The logs that are compacted by key."""
        return {log: found.by_key for found in self._topics.values() if found.by_key for log in found.logs}

    async def read_all(self, *, thorough: bool = True) -> Discovered:
        """Read every topic. Unless `thorough`, a topic that did not change keeps the logs that were found, if none is
        missing."""
        records = [record async for record in self._context.metadata.scan_all(self._context.keys.topics())]
        found, unreadable = await self._read_logs(records, {} if thorough else self._topics)
        self._note_configs(found)
        self._topics, self._unreadable = found, unreadable
        return self.discovered()

    async def read(self, topics: Collection[str]) -> Discovered:
        """Read these topics only."""
        keys = [self._context.keys.topic(topic) for topic in sorted(topics)]
        records = [
            record
            for batch in batched(keys, METADATA_GET_MANY_MAX)
            for record in await self._context.metadata.get_many(batch)
            if record is not None
        ]
        found, unreadable = await self._read_logs(records, {})
        self._note_configs(found)
        for topic in topics:
            self._topics.pop(topic, None)
            self._unreadable.pop(topic, None)
        self._topics |= found
        self._unreadable |= unreadable
        return self.discovered()

    def _note_configs(self, found: Mapping[str, _Found]) -> None:
        known = self._topics
        self.reconfigured = frozenset(
            name for name, one in found.items() if name in known and known[name].record.config != one.record.config
        )

    def discovered(self) -> Discovered:
        """What was read, as the targets of a service; of too many logs, another selection each time."""
        topics = sorted(self._topics.items())
        logs, left_out = plan_targets(
            self._configured, [log for _, found in topics for log in found.logs], self._context.random_bits
        )
        return Discovered(
            logs,
            tuple(fenced for _, found in topics for fenced in found.fenced),
            frozenset(
                DyingTopic(name, found.record.incarnation) for name, found in topics if found.record.state == "DELETING"
            ),
            self._context.now_ms(),
            left_out,
            tuple(reason for _, reason in sorted(self._unreadable.items())),
        )

    async def _read_logs(
        self, records: Iterable[Record], known: Mapping[str, _Found]
    ) -> tuple[dict[str, _Found], dict[str, str]]:
        """The topics in these records with their logs, and the errors of those that cannot be read, by name."""
        found: dict[str, _Found] = {}
        unreadable: dict[str, str] = {}
        fresh: list[str] = []
        for record in records:
            name = last_segment(record.key.path)
            before = known.get(name)
            if before is not None and before.version == record.version and before.is_whole:
                found[name] = before
                continue
            try:
                topic = decode_value(TopicRecord, record.value, record.key.path)
            except FormatError as error:
                unreadable[name] = str(error)
                continue
            if topic.state != "DELETED":
                found[name] = _Found(record.version, topic, by_key=_config_by_key(name, topic))
                fresh += [name] if topic.state == "LIVE" else []
        logs, fenced = await self._existing({name: found[name].record for name in fresh})
        for name in fresh:
            found[name] = found[name]._replace(logs=tuple(logs[name]), fenced=tuple(fenced[name]))
        return found, unreadable

    async def _existing(
        self, topics: Mapping[str, TopicRecord]
    ) -> tuple[dict[str, list[Log]], dict[str, list[FencedLog]]]:
        """Logs of the current incarnation of each topic, and those of them that are fenced."""
        logs: dict[str, list[Log]] = {name: [] for name in topics}
        fenced: dict[str, list[FencedLog]] = {name: [] for name in topics}
        partitions = [Log(name, number) for name, topic in topics.items() for number in range(topic.partition_count)]
        for batch in batched(partitions, METADATA_GET_MANY_MAX):
            controls = await self._context.metadata.get_many([self._context.keys.control(log) for log in batch])
            for log, record in zip(batch, controls, strict=True):
                if record is None:
                    continue
                try:
                    control = decode_value(ControlRecord, record.value, record.key.path)
                except FormatError:
                    logs[log.topic].append(log)  # its next inspection reports the error
                    continue
                if control.incarnation != topics[log.topic].incarnation or control.log_state == "DELETED":
                    continue
                logs[log.topic].append(log)
                if control.log_state == "FENCED":
                    fenced[log.topic].append(FencedLog(log, control.fence_reason))
        return logs, fenced


def _config_by_key(topic: str, record: TopicRecord) -> TopicConfig | None:
    """None: the topic is not compacted by key, or its config is invalid."""
    if record.state != "LIVE":
        return None
    try:
        config = TopicConfig.of(record.config)
    except InvalidArgument as error:
        _log.warning("%s is not compacted by key: %s", topic, error)
        return None
    return config if config.compact else None


def plan_targets(
    configured: Collection[Log], live: Iterable[Log], random_bits: RandomBits, *, limit: int = COMPACTOR_LOGS_MAX
) -> tuple[tuple[Log, ...], int]:
    """The configured logs, then as many others as fit, in random order, so that each is watched at some time; and the
    number of logs left out."""
    others = sorted(set(live) - set(configured))
    room = max(0, limit - len(set(configured)))
    left_out = max(0, len(others) - room)
    if left_out:
        others = shuffled(others, random_bits)[:room]
    return (*dict.fromkeys(configured), *others), left_out


def plan_left_behind(before: frozenset[DyingTopic], now: frozenset[DyingTopic]) -> list[DyingTopic]:
    """Topics that were already being deleted an interval ago."""
    return sorted(before & now)
