"""Topic configs as a broker or writer knows them: the limits of records, compaction by key, how many partitions.

Every append is judged by its topic's config, and reading it for each append would double the cost. So a config counts
for TOPIC_CONFIG_FRESH_MS after it was read; a change through this process is read at once (`forget`), a change through
another one may take that long to count here. Concurrent requests for one topic cost one read. If a read fails, the last
known config is used; without one, only requests for that topic fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from llog.errors import LlogError
from llog.limits import BATCH_NEW_LOGS_IN_FLIGHT_MAX
from llog.log.context import LogContext
from llog.log.topics.config import TopicConfig
from llog.log.topics.create import load_topic

# Age at which a config is read again.
TOPIC_CONFIG_FRESH_MS: Final = 5_000
# Configs that are kept; beyond that, the one read longest ago is dropped.
TOPIC_CONFIGS_KNOWN_MAX: Final = 10_000

Config = TopicConfig | LlogError
"""The config, or the error of reading it."""


# Partitions of a topic that its first record creates.
TOPIC_PARTITIONS_CREATED: Final = 1


class _Known(NamedTuple):
    config: TopicConfig
    read_ms: float
    partition_count: int | None
    """None: there is no such topic."""


class TopicConfigs:
    """The configs of all topics. `now_ms` is a monotonic clock."""

    def __init__(self, context: LogContext, now_ms: Callable[[], float]) -> None:
        self._context, self._now_ms = context, now_ms
        self._known: dict[str, _Known] = {}
        self._reading: dict[str, asyncio.Task[_Known | LlogError]] = {}
        self._slots = asyncio.Semaphore(BATCH_NEW_LOGS_IN_FLIGHT_MAX)

    async def of(self, topics: Iterable[str]) -> dict[str, Config]:
        """The configs of these topics, without waiting if all are fresh. A missing topic has the defaults."""
        known = await self._look_up(topics)
        return {topic: one if isinstance(one, LlogError) else one.config for topic, one in known.items()}

    async def partition_counts(self, topics: Iterable[str]) -> dict[str, int | LlogError]:
        """How many partitions each topic has; for a missing one, how many it gets with its first record. That a topic
        is missing is never remembered: its keys would go elsewhere than those of other producers."""
        wanted = list(topics)
        for topic in wanted:
            known = self._known.get(topic)
            if known is not None and known.partition_count is None:
                self.forget(topic)
        found = await self._look_up(wanted)
        return {
            topic: one if isinstance(one, LlogError) else one.partition_count or TOPIC_PARTITIONS_CREATED
            for topic, one in found.items()
        }

    async def _look_up(self, topics: Iterable[str]) -> dict[str, _Known | LlogError]:
        fresh_since_ms = self._now_ms() - TOPIC_CONFIG_FRESH_MS
        found: dict[str, _Known | LlogError] = {}
        missing: list[str] = []
        for topic in topics:
            known = self._known.get(topic)
            if known is not None and known.read_ms > fresh_since_ms:
                found[topic] = known
            else:
                missing.append(topic)
        if missing:
            # Shielded: others may wait for the same read when this caller is cancelled.
            read = await asyncio.gather(*(asyncio.shield(self._task(topic)) for topic in missing))
            found |= zip(missing, read, strict=True)
        return found

    async def compacted_by_key(self, topics: Iterable[str]) -> set[str]:
        """The topics compacted by key, and those with an unreadable config: that costs a few extra reads at most."""
        configs = await self.of(topics)
        return {topic for topic, config in configs.items() if isinstance(config, LlogError) or config.compact}

    def forget(self, topic: str) -> None:
        """The topic was created, changed or deleted through this process."""
        self._known.pop(topic, None)
        self._reading.pop(topic, None)

    def _task(self, topic: str) -> asyncio.Task[_Known | LlogError]:
        task = self._reading.get(topic)
        if task is None:
            task = self._reading[topic] = asyncio.create_task(self._read(topic))
        return task

    async def _read(self, topic: str) -> _Known | LlogError:
        own_task = asyncio.current_task()
        try:
            async with self._slots:
                asked_ms = self._now_ms()
                loaded = await load_topic(self._context, topic, strict=True)
            record = None if loaded is None or loaded[0].state != "LIVE" else loaded[0]
            config = TopicConfig.of({} if record is None else record.config)
            known = _Known(config, asked_ms, None if record is None else record.partition_count)
        except LlogError as error:
            return self._known.get(topic, error)
        else:
            if self._reading.get(topic) is own_task:  # else `forget` was called meanwhile
                self._remember(topic, known)
            return known
        finally:
            if self._reading.get(topic) is own_task:
                del self._reading[topic]

    def _remember(self, topic: str, known: _Known) -> None:
        self._known.pop(topic, None)
        if len(self._known) >= TOPIC_CONFIGS_KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[topic] = known
