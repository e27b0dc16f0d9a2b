"""The heads of all groups, in one scan: what a listing shows, without the members that heads hold."""

from __future__ import annotations

import asyncio
import logging
from typing import Final
from urllib.parse import unquote

import msgspec

from llog.groups.records import CONSUMER
from llog.groups.views import ListedGroup
from llog.log.context import LogContext
from llog.stores.metadata.port import last_segment

LISTED_PER_TURN: Final = 500
"""Heads that are decoded before other tasks have their turn."""

_log: Final = logging.getLogger("llog.broker.groups")


class ListedHead(msgspec.Struct, frozen=True, gc=False):
    type: str
    state: str
    protocol_type: str = ""
    generation: int = 0
    members: int = 0
    empty_since_ms: int = 0

    def listed(self, group: str) -> ListedGroup:
        return ListedGroup(group, self.protocol_type, self.state, CONSUMER if self.type == CONSUMER else "classic")


_DECODE: Final = msgspec.json.Decoder(ListedHead).decode


async def list_heads(context: LogContext) -> dict[str, ListedHead]:
    heads: dict[str, ListedHead] = {}
    count = 0
    async for record in context.metadata.scan_all(context.keys.groups()):
        try:
            heads[unquote(last_segment(record.key.path))] = _DECODE(record.value)
        except msgspec.MsgspecError as error:
            _log.warning("the head %s cannot be read: %s", record.key.path, error)
        count += 1
        if count % LISTED_PER_TURN == 0:
            await asyncio.sleep(0)
    return heads
