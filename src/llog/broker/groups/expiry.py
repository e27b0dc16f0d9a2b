"""Expiry of positions, as Kafka's `offsets.retention.minutes`: of the groups that this node coordinates.

A position expires `kept_ms` after it was committed, and not before its group has been without members for that long. A
group with members keeps the positions of the topics that they read. A group without positions and members is deleted
with its last one. Deletes are by version, so a position that is committed meanwhile stays.

Each round reads all heads once, and the positions of a group only when one of them may have expired since it was
looked at last; that is rarely more than a few groups.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from llog.broker.groups.group_records import clean_pages, key_of
from llog.broker.groups.listing import ListedHead, list_heads
from llog.broker.groups.positions import POSITION_PREFIX, POSITION_PREFIX_END
from llog.errors import LlogError
from llog.formats.values import GroupOffset, decode_value
from llog.groups.codes import GroupCode
from llog.log.context import LogContext, write_all
from llog.stores.metadata.port import Delete

if TYPE_CHECKING:
    from llog.broker.groups.coordinator import GroupCoordinator

POSITIONS_KEPT_MS: Final = 7 * 24 * 3_600_000
EXPIRY_ROUND_MS: Final = 600_000
EXPIRY_PAUSE_MS: Final = 20
"""Between two groups whose positions are read."""
LOOKED_AT_MAX: Final = 100_000
"""Groups of which it is remembered when to look again; beyond that, all are looked at once more."""

_log: Final = logging.getLogger("llog.broker.groups")


class Expiry:
    def __init__(
        self,
        coordinator: GroupCoordinator,
        context: LogContext,
        now_ms: Callable[[], int],
        *,
        kept_ms: int = POSITIONS_KEPT_MS,
    ) -> None:
        self._coordinator, self._context, self._now_ms, self._kept_ms = coordinator, context, now_ms, kept_ms
        self._look_again_ms: dict[str, int] = {}

    async def run(self) -> None:
        while True:
            await self._context.sleep(EXPIRY_ROUND_MS / 1_000)
            try:
                await self.round()
            except LlogError as error:
                _log.warning("expired positions are deleted later: %s", error)

    async def round(self) -> None:
        if not self._coordinator.slots.held():
            return
        heads = await list_heads(self._context)
        if len(self._look_again_ms) > LOOKED_AT_MAX:
            self._look_again_ms.clear()
        for group, head in heads.items():
            now_ms = self._now_ms()
            if not self._coordinator.coordinates(group) or now_ms < self._look_again_ms.get(group, 0):
                continue
            if now_ms < head.empty_since_ms + self._kept_ms and not head.members:
                continue
            await self._look_at(group, head)
            await self._context.sleep(EXPIRY_PAUSE_MS / 1_000)

    async def _look_at(self, group: str, head: ListedHead) -> None:
        context, now_ms = self._context, self._now_ms()
        kept_topics: frozenset[str] = frozenset()
        if head.members:
            existing = await self._coordinator.existing(group)  # loads it, so that sessions end
            topics = None if isinstance(existing, GroupCode) else existing[1].subscribed_topics()
            if topics is None:
                return
            kept_topics = topics
        await clean_pages(context, group)
        expired, left, first_ms = [], 0, now_ms
        key = context.keys.group(group)
        async for record in context.metadata.scan_all(key, start=POSITION_PREFIX, stop=POSITION_PREFIX_END):
            position = decode_value(GroupOffset, record.value, record.key.path)
            if position.topic not in kept_topics and position.committed_at_ms + self._kept_ms <= now_ms:
                expired.append(record)
            else:
                left += 1
                first_ms = min(first_ms, position.committed_at_ms)
        if not self._coordinator.coordinates(group):
            return
        if expired:
            deletes = [(Delete(key_of(context, group, record), record.version),) for record in expired]
            await write_all(context.metadata, deletes)
            _log.info("positions expired", extra={"llog": {"group": group, "positions": len(expired)}})
        if left or head.members:
            self._look_again_ms[group] = first_ms + self._kept_ms
        elif await self._coordinator.delete(group, keep_positions=True) == GroupCode.NONE:
            _log.info("a group without members and positions expired", extra={"llog": {"group": group}})
