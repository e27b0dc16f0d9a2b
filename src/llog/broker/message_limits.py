"""How large a record may be, topic by topic: `max.message.bytes`, as the broker knows it.

Why it exists: every append must be judged by its topic's config, and a read of metadata for every append would double
its cost. So what was read is good for TOPIC_CONFIG_FRESH_MS, and what was changed through this broker is read again at
once (`forget`). After a change through another broker the older limit may hold for that long, here.

What must stay true: many requests that ask for one topic at a time cost one read; a topic that cannot be looked up
harms nobody but those who append to it, and while its last limit is known not even them; what is remembered, and what
is asked of the store at a time, is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from llog.errors import LlogError
from llog.limits import BATCH_NEW_LOGS_IN_FLIGHT_MAX, TOPIC_CONFIG_FRESH_MS, TOPIC_CONFIGS_KNOWN_MAX
from llog.log.context import LogContext
from llog.log.topic_config import TopicConfig
from llog.log.topics import load_topic

Limit = int | LlogError
"""Bytes, or why nobody can tell."""


class _Known(NamedTuple):
    limit_bytes: int
    read_ms: float


class MessageLimits:
    """The limits of all topics, for every front end. `now_ms` must never go back."""

    def __init__(self, context: LogContext, now_ms: Callable[[], float]) -> None:
        self._context, self._now_ms = context, now_ms
        self._known: dict[str, _Known] = {}
        self._reading: dict[str, asyncio.Task[Limit]] = {}
        self._slots = asyncio.Semaphore(BATCH_NEW_LOGS_IN_FLIGHT_MAX)

    async def of(self, topics: Iterable[str]) -> dict[str, Limit]:
        """Does not wait where all of them are known. A topic that is not there yet has the default."""
        fresh_since_ms = self._now_ms() - TOPIC_CONFIG_FRESH_MS
        found: dict[str, Limit] = {}
        missing: list[str] = []
        for topic in topics:
            known = self._known.get(topic)
            if known is not None and known.read_ms > fresh_since_ms:
                found[topic] = known.limit_bytes
            else:
                missing.append(topic)
        if missing:
            # Shielded: others may wait for the same read when this caller goes away.
            read = await asyncio.gather(*(asyncio.shield(self._task(topic)) for topic in missing))
            found |= zip(missing, read, strict=True)
        return found

    def forget(self, topic: str) -> None:
        """Its config was changed, or it was created or deleted, through this broker."""
        self._known.pop(topic, None)
        self._reading.pop(topic, None)

    def _task(self, topic: str) -> asyncio.Task[Limit]:
        task = self._reading.get(topic)
        if task is None:
            task = self._reading[topic] = asyncio.create_task(self._read(topic))
        return task

    async def _read(self, topic: str) -> Limit:
        mine = asyncio.current_task()
        try:
            async with self._slots:
                asked_ms = self._now_ms()
                found = await load_topic(self._context, topic, strict=True)
            record = None if found is None else found[0]
            config = record.config if record is not None and record.state == "LIVE" else {}
            limit = TopicConfig.of(config).max_message_bytes
        except LlogError as error:
            known = self._known.get(topic)
            return error if known is None else known.limit_bytes
        else:
            if self._reading.get(topic) is mine:  # else it was forgotten meanwhile, and this may be the older one
                self._remember(topic, _Known(limit, asked_ms))
            return limit
        finally:
            if self._reading.get(topic) is mine:
                del self._reading[topic]

    def _remember(self, topic: str, known: _Known) -> None:
        self._known.pop(topic, None)
        if len(self._known) >= TOPIC_CONFIGS_KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[topic] = known
