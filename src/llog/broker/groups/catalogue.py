"""The topics that members of consumer groups (KIP-848) can subscribe to, read again while there are such groups."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from llog.errors import LlogError
from llog.groups.consumer.subscribe import Catalogue, CatalogueTopic
from llog.log.context import LogContext
from llog.log.topics.known_topics import KnownTopics

CATALOGUE_REFRESH_MS: Final = 3_000
"""How late the members of a group learn of a topic that was made, extended or deleted."""

_log: Final = logging.getLogger("llog.broker.groups")


class TopicCatalogue:
    def __init__(
        self,
        context: LogContext,
        topics: KnownTopics,
        *,
        is_needed: Callable[[], bool],
        on_change: Callable[[Catalogue], None],
        edition_of_rights: Callable[[], object | None] = lambda: None,
    ) -> None:
        """`on_change` is called also when members' rights may have changed: when there is another edition of them."""
        self._context, self._topics = context, topics
        self._is_needed, self._on_change = is_needed, on_change
        self._edition_of_rights, self._edition = edition_of_rights, edition_of_rights()
        self._loaded = False
        self.current: Catalogue = {}

    async def load(self) -> Catalogue:
        """The catalogue; read now, unless it is being kept current."""
        if not self._loaded:
            await self._read()
        return self.current

    async def run(self) -> None:
        while True:
            await self._context.sleep(CATALOGUE_REFRESH_MS / 1_000)
            if not self._is_needed():
                self._loaded = False
                continue
            try:
                await self._read()
            except LlogError as error:
                _log.warning("the topics of consumer groups cannot be read now: %s", error)

    async def _read(self) -> None:
        topics = await self._topics.all()
        found = {topic.name: CatalogueTopic(topic.id_bytes.hex(), topic.partition_count) for topic in topics}
        self._loaded = True
        edition = self._edition_of_rights()
        other_rights = edition is not None and edition != self._edition
        if found != self.current or other_rights:
            self.current = found
            self._edition = self._edition if edition is None else edition
            self._on_change(found)
