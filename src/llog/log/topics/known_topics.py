"""Topics as a broker or writer knows them: id, incarnation, number of partitions, config.

Every append is judged by its topic's config, and reading the topic for each append would double the cost. So what was
read counts for KNOWN_TOPIC_FRESH_MS; a change through this process is read at once (`forget`), a change through another
one may take that long to count here. Concurrent requests for one topic cost one read. If a read fails, the last known
state is used; without one, only requests for that topic fail.

That a topic is missing is never remembered for `find`: a client that has just created it would be refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from llog.concurrency import batched
from llog.errors import LlogError, TopicNotFound
from llog.formats.values import TopicRecord, decode_value
from llog.limits import BATCH_NEW_LOGS_IN_FLIGHT_MAX
from llog.log.context import LogContext
from llog.log.topics.config import TopicConfig
from llog.log.topics.create import load_topic
from llog.stores.metadata.port import last_segment

# Age at which a topic is read again.
KNOWN_TOPIC_FRESH_MS: Final = 5_000
# Topics that are kept; beyond that, the one read longest ago is dropped.
KNOWN_TOPICS_MAX: Final = 10_000
# Pause between two listings that look for an unknown topic id: each reads every topic.
LIST_PAUSE_MS: Final = 200
# Topics that a listing takes in before other requests have their turn.
LIST_STEP_TOPICS: Final = 500
# Topics of one request that are being read; each takes a task.
LOOK_UP_TOPICS_MAX: Final = 1_000
# Partitions of a topic that its first record creates.
TOPIC_PARTITIONS_CREATED: Final = 1

Config = TopicConfig | LlogError
"""The config, or the error of reading it."""


_NO_CONFIG: Final = TopicConfig.of({})


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A LIVE topic."""

    name: str
    record: TopicRecord
    config: TopicConfig
    id_bytes: bytes
    """`record.topic_id` as the 16 bytes of Kafka's messages."""

    @classmethod
    def of(cls, name: str, record: TopicRecord) -> KnownTopic:
        config = TopicConfig.of(record.config) if record.config else _NO_CONFIG
        return cls(name, record, config, UUID(record.topic_id).bytes)

    @property
    def incarnation(self) -> int:
        return self.record.incarnation

    @property
    def partition_count(self) -> int:
        return self.record.partition_count


@dataclass(frozen=True, slots=True)
class _Read:
    topic: KnownTopic | None
    """None: there was no such topic."""
    read_ms: float


class KnownTopics:
    """`now_ms` is a monotonic clock."""

    def __init__(self, context: LogContext, now_ms: Callable[[], float]) -> None:
        self._context, self._now_ms = context, now_ms
        self._known: dict[str, _Read] = {}
        self._names: dict[bytes, str] = {}
        """By topic id; may name a topic that has another id by now."""
        self._reading: dict[str, asyncio.Task[_Read | LlogError]] = {}
        self._slots = asyncio.Semaphore(BATCH_NEW_LOGS_IN_FLIGHT_MAX)
        self._listing = asyncio.Lock()
        self._listed_ms = float("-inf")
        self._listings: list[set[str]] = []
        """Topics that were forgotten during each listing that goes on."""

    # -- configs and counts --------------------------------------------------------------------------------------------
    async def of(self, topics: Iterable[str]) -> dict[str, Config]:
        """The configs of these topics, without waiting if all are fresh. A missing topic has the defaults."""
        known = await self._look_up(topics)
        return {topic: one if isinstance(one, LlogError) else _config_of(one) for topic, one in known.items()}

    async def partition_counts(self, topics: Iterable[str]) -> dict[str, int | LlogError]:
        """How many partitions each topic has; for a missing one, how many it gets with its first record. That a topic
        is missing is never remembered: its keys would go elsewhere than those of other producers."""
        found = await self._look_up(self._without_missing(topics))
        return {
            topic: one if isinstance(one, LlogError) else _partition_count_of(one) or TOPIC_PARTITIONS_CREATED
            for topic, one in found.items()
        }

    async def compacted_by_key(self, topics: Iterable[str]) -> set[str]:
        """The topics compacted by key, and those with an unreadable config: that costs a few extra reads at most."""
        configs = await self.of(topics)
        return {topic for topic, config in configs.items() if isinstance(config, LlogError) or config.compact}

    # -- whole topics --------------------------------------------------------------------------------------------------
    def fresh(self, topic: str) -> KnownTopic | None:
        """The topic without waiting; None when it must be read (`find`)."""
        known = self._known.get(topic)
        if known is None or known.read_ms <= self._now_ms() - KNOWN_TOPIC_FRESH_MS:
            return None
        return known.topic

    def fresh_by_id(self, id_bytes: bytes) -> KnownTopic | None:
        """`fresh`, by topic id (`find_by_id`)."""
        name = self._names.get(id_bytes)
        topic = None if name is None else self.fresh(name)
        return topic if topic is not None and topic.id_bytes == id_bytes else None

    async def find(self, topics: Iterable[str]) -> dict[str, KnownTopic | LlogError]:
        """Each topic, or `TopicNotFound`, or the error of reading it."""
        found = await self._look_up(self._without_missing(topics))
        return {
            name: one if isinstance(one, LlogError) else one.topic or TopicNotFound(name, "no such topic")
            for name, one in found.items()
        }

    async def find_by_id(self, ids: Iterable[bytes]) -> dict[bytes, KnownTopic | LlogError]:
        """Each topic, or `TopicNotFound` with its id as name. An unknown id costs a listing of all topics."""
        wanted = list(dict.fromkeys(ids))
        found: dict[bytes, KnownTopic | LlogError] = {}
        for listed in (False, True):
            missing = [one for one in wanted if one not in found]
            if listed and missing:
                await self._list()
            names = {self._names[one]: one for one in missing if one in self._names}
            for name, topic in (await self.find(names)).items():
                if isinstance(topic, KnownTopic) and topic.id_bytes != names[name]:
                    self._names.pop(names[name], None)
                elif not isinstance(topic, TopicNotFound):
                    found[names[name]] = topic
        return {one: found.get(one) or TopicNotFound(str(UUID(bytes=one)), "no topic has this id") for one in wanted}

    async def all(self) -> list[KnownTopic]:
        """Every LIVE topic, by name, read now."""
        asked_ms = self._now_ms()
        topics: list[KnownTopic] = []
        forgotten: set[str] = set()
        self._listings.append(forgotten)
        try:
            async for found in self._context.metadata.scan_all(self._context.keys.topics()):
                name, record = last_segment(found.key.path), decode_value(TopicRecord, found.value, found.key.path)
                if record.state == "LIVE":
                    topics.append(self._listed(name, record, asked_ms, is_current=name not in forgotten))
                    if len(topics) % LIST_STEP_TOPICS == 0:
                        await asyncio.sleep(0)
        finally:
            self._listings.remove(forgotten)
        self._listed_ms = self._now_ms()
        return topics

    def _listed(self, name: str, record: TopicRecord, asked_ms: float, *, is_current: bool) -> KnownTopic:
        """The topic, remembered unless it was read or changed since. Parsing a config costs more than comparing it."""
        known = self._known.get(name)
        if known is not None and known.topic is not None and known.topic.record == record:
            topic = known.topic
        else:
            topic = KnownTopic.of(name, record)
        if is_current and (known is None or known.read_ms <= asked_ms):
            self._remember(name, _Read(topic, asked_ms))
        return topic

    def forget(self, topic: str) -> None:
        """The topic was created, changed or deleted through this process."""
        self._known.pop(topic, None)
        self._reading.pop(topic, None)
        for forgotten in self._listings:
            forgotten.add(topic)

    # -- reading -------------------------------------------------------------------------------------------------------
    async def _list(self) -> None:
        """List all topics, unless that was done a moment ago."""
        asked_ms = self._now_ms()
        async with self._listing:
            if self._listed_ms < asked_ms - LIST_PAUSE_MS:
                await self.all()

    def _without_missing(self, topics: Iterable[str]) -> list[str]:
        """Forget that any of these topics is missing."""
        wanted = list(topics)
        for topic in wanted:
            known = self._known.get(topic)
            if known is not None and known.topic is None:
                self.forget(topic)
        return wanted

    async def _look_up(self, topics: Iterable[str]) -> dict[str, _Read | LlogError]:
        fresh_since_ms = self._now_ms() - KNOWN_TOPIC_FRESH_MS
        found: dict[str, _Read | LlogError] = {}
        missing: list[str] = []
        for topic in topics:
            known = self._known.get(topic)
            if known is not None and known.read_ms > fresh_since_ms:
                found[topic] = known
            else:
                missing.append(topic)
        for chunk in batched(missing, LOOK_UP_TOPICS_MAX):
            # Shielded: others may wait for the same read when this caller is cancelled.
            read = await asyncio.gather(*(asyncio.shield(self._task(topic)) for topic in chunk))
            found |= zip(chunk, read, strict=True)
        return found

    def _task(self, topic: str) -> asyncio.Task[_Read | LlogError]:
        task = self._reading.get(topic)
        if task is None:
            task = self._reading[topic] = asyncio.create_task(self._read(topic))
        return task

    async def _read(self, topic: str) -> _Read | LlogError:
        own_task = asyncio.current_task()
        try:
            async with self._slots:
                asked_ms = self._now_ms()
                loaded = await load_topic(self._context, topic, strict=True)
            live = loaded is not None and loaded[0].state == "LIVE"
            known = _Read(KnownTopic.of(topic, loaded[0]) if live and loaded is not None else None, asked_ms)
        except LlogError as error:
            return self._known.get(topic, error)
        else:
            if self._reading.get(topic) is own_task:  # else `forget` was called meanwhile
                self._remember(topic, known)
            return known
        finally:
            if self._reading.get(topic) is own_task:
                del self._reading[topic]

    def _remember(self, topic: str, known: _Read) -> None:
        self._known.pop(topic, None)
        if len(self._known) >= KNOWN_TOPICS_MAX:
            self._drop(next(iter(self._known)))
        self._known[topic] = known
        if known.topic is not None:
            self._names[known.topic.id_bytes] = topic
            if len(self._names) > 2 * KNOWN_TOPICS_MAX:  # ids of topics that were deleted or forgotten
                live = ((name, read.topic) for name, read in self._known.items())
                self._names = {one.id_bytes: name for name, one in live if one is not None}

    def _drop(self, topic: str) -> None:
        known = self._known.pop(topic)
        if known.topic is not None and self._names.get(known.topic.id_bytes) == topic:
            del self._names[known.topic.id_bytes]


def _config_of(known: _Read) -> TopicConfig:
    return _NO_CONFIG if known.topic is None else known.topic.config


def _partition_count_of(known: _Read) -> int | None:
    return None if known.topic is None else known.topic.partition_count
