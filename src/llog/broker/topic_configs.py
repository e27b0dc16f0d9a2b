"""What topics are configured to, as the broker knows it: how large a record may be, whether keys are compacted.

Why it exists: every append must be judged by its topic's config, and a read of metadata for every append would double
its cost. So what was read is good for TOPIC_CONFIG_FRESH_MS, and what was changed through this broker is read again at
once (`forget`). After a change through another broker the older config may hold for that long, here.

What must stay true: many requests that ask for one topic at a time cost one read; a topic that cannot be looked up
harms nobody but those who ask for it, and while its last config is known not even them; what is remembered, and what is
asked of the store at a time, is bounded.
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

# A broker goes by a config it read so long ago before it looks again; changes made through itself it knows at once.
TOPIC_CONFIG_FRESH_MS: Final = 5_000
# Topics whose configs a broker remembers; beyond that, those it read longest ago are read again.
TOPIC_CONFIGS_KNOWN_MAX: Final = 10_000


Config = TopicConfig | LlogError
"""What holds, or why nobody can tell."""


class _Known(NamedTuple):
    config: TopicConfig
    read_ms: float


class TopicConfigs:
    """The configs of all topics, for everything in a broker. `now_ms` must never go back."""

    def __init__(self, context: LogContext, now_ms: Callable[[], float]) -> None:
        self._context, self._now_ms = context, now_ms
        self._known: dict[str, _Known] = {}
        self._reading: dict[str, asyncio.Task[Config]] = {}
        self._slots = asyncio.Semaphore(BATCH_NEW_LOGS_IN_FLIGHT_MAX)

    async def of(self, topics: Iterable[str]) -> dict[str, Config]:
        """Does not wait where all of them are known. A topic that is not there yet has the defaults."""
        fresh_since_ms = self._now_ms() - TOPIC_CONFIG_FRESH_MS
        found: dict[str, Config] = {}
        missing: list[str] = []
        for topic in topics:
            known = self._known.get(topic)
            if known is not None and known.read_ms > fresh_since_ms:
                found[topic] = known.config
            else:
                missing.append(topic)
        if missing:
            # Shielded: others may wait for the same read when this caller goes away.
            read = await asyncio.gather(*(asyncio.shield(self._task(topic)) for topic in missing))
            found |= zip(missing, read, strict=True)
        return found

    async def compacted_by_key(self, topics: Iterable[str]) -> set[str]:
        """Those whose records may go one by one; also any that cannot be looked up, which costs a few reads at most."""
        configs = await self.of(topics)
        return {topic for topic, config in configs.items() if isinstance(config, LlogError) or config.compact}

    def forget(self, topic: str) -> None:
        """Its config was changed, or it was created or deleted, through this broker."""
        self._known.pop(topic, None)
        self._reading.pop(topic, None)

    def _task(self, topic: str) -> asyncio.Task[Config]:
        task = self._reading.get(topic)
        if task is None:
            task = self._reading[topic] = asyncio.create_task(self._read(topic))
        return task

    async def _read(self, topic: str) -> Config:
        mine = asyncio.current_task()
        try:
            async with self._slots:
                asked_ms = self._now_ms()
                found = await load_topic(self._context, topic, strict=True)
            record = None if found is None else found[0]
            config = TopicConfig.of(record.config if record is not None and record.state == "LIVE" else {})
        except LlogError as error:
            known = self._known.get(topic)
            return error if known is None else known.config
        else:
            if self._reading.get(topic) is mine:  # else it was forgotten meanwhile, and this may be the older one
                self._remember(topic, _Known(config, asked_ms))
            return config
        finally:
            if self._reading.get(topic) is mine:
                del self._reading[topic]

    def _remember(self, topic: str, known: _Known) -> None:
        self._known.pop(topic, None)
        if len(self._known) >= TOPIC_CONFIGS_KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[topic] = known
