"""The stores of a broker, watched: which are in trouble, what that means for producers, when they are well again.

Why it exists: while a store takes nothing, accepting records only makes their senders wait until they are told that it
failed. So a broker in trouble says so (`/health`), refuses records at once with "try again", and lets those go that
wait for a flush that has not begun. Nobody might use a broker that says it is not ready, so it asks the stores itself
whether they are well again.

What must stay true: no request is made for this while all is well; one probe of a store at a time, every
`STORE_PROBE_MS` at most; only the store that takes blobs, and the metadata store, keep producers out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from llog.errors import StoreError
from llog.limits import STORE_PROBE_MS
from llog.stores.metadata.metered import MeteredMetadataStore
from llog.stores.metadata.port import Key
from llog.stores.objects.metered import MeteredObjectStore
from llog.stores.pulse import StorePulse

_log: Final = logging.getLogger("llog.broker")
_METADATA: Final = "the metadata store"


class StoreTroubles:
    """One per broker, on its event loop."""

    def __init__(
        self,
        metadata: MeteredMetadataStore,
        objects: Mapping[str, MeteredObjectStore],
        *,
        wal: str | None,
        probe_key: Key,
        on_refusing: Callable[[str], None],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """`objects` by the words for them, `wal` among them takes blobs; stores may be added while it runs.
        `probe_key` is read to see whether the metadata store is well.
        `on_refusing` is told, again and again, why nothing can be accepted now."""
        self._metadata, self._objects, self._wal = metadata, objects, wal
        self._probe_key, self._on_refusing, self._sleep = probe_key, on_refusing, sleep
        self._told: set[str] = set()

    def reasons(self) -> list[str]:
        """Of every store in trouble, in words for the health page."""
        return [f"{name} is in trouble: {pulse.trouble()}" for name, pulse in self._pulses() if pulse.trouble()]

    def refusal(self) -> str:
        """Why no record can be accepted now; empty: they can."""
        wal = self._objects.get(self._wal) if self._wal is not None else None
        if wal is not None and (trouble := wal.pulse.trouble(writing=True)):
            return f"{self._wal} is in trouble: {trouble}"
        trouble = self._metadata.pulse.trouble()
        return f"{_METADATA} is in trouble: {trouble}" if trouble else ""

    async def run(self) -> None:
        """Watch, until it is cancelled."""
        while True:
            await self._sleep(STORE_PROBE_MS / 1_000)
            refusal = self.refusal()
            if refusal:
                self._on_refusing(refusal)
            for name, pulse in self._pulses():
                trouble = pulse.trouble()
                if trouble is not None:
                    self._tell(name, str(trouble))
                    await self._probe(name, pulse)
                elif name in self._told:
                    self._told.discard(name)
                    _log.info("a store is well again", extra={"llog": {"store": name}})

    def _pulses(self) -> list[tuple[str, StorePulse]]:
        return [(_METADATA, self._metadata.pulse), *((name, store.pulse) for name, store in self._objects.items())]

    def _tell(self, name: str, words: str) -> None:
        if name not in self._told:
            self._told.add(name)
            _log.warning("a store is in trouble", extra={"llog": {"store": name, "reason": words}})

    async def _probe(self, name: str, pulse: StorePulse) -> None:
        """Well again when it does all that is done with it; a failure is the newest reason."""
        store = self._objects.get(name)
        writing = name == self._wal
        try:
            if store is None:
                await self._metadata.get(self._probe_key, strict=True)
            else:
                await store.check(writing=writing)
        except StoreError as error:
            pulse.told(error, 0.0, writing=writing)
        else:
            pulse.well()
