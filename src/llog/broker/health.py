"""What a broker's health page reports: failing stores, failing appends, and fenced logs that this broker met.

`StoreTroubles` watches the stores. While a store fails, accepted records would only wait until their append fails. So
the broker reports it (`/health`), refuses records at once with "try again", and fails those that wait for a flush that
has not begun. A broker that is not ready may get no requests, so it probes the stores itself: one probe of a store at a
time, at most every STORE_PROBE_MS, and none while all stores work. Only the store for blobs and the metadata store keep
producers out.

`AppendTroubles` watches what becomes of appends. A store may answer a probe and still fail every append: a disk with
room for a few bytes, a policy that denies one prefix. Producers are not kept out for it, because an append that
succeeds is the proof that appends work again.

`FencedLogs` lists fenced logs with their reasons: the owner of refused producers asks the broker that refuses them. A
broker knows the logs it was asked to append to or to fence; the compactor reports all of the cluster. The page shows
what the last read returned, so a log unfenced elsewhere disappears with the next check. Nothing is read while no log is
fenced.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from llog.errors import AppendNotCommitted, AppendUncertain, LlogError, LogError, LogFenced, StoreError
from llog.formats.values import ControlRecord, decode_value
from llog.limits import STORE_PROBE_MS
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.stores.metadata.port import Key
from llog.stores.metadata.wrappers import MeteredMetadataStore
from llog.stores.metering import StorePulse
from llog.stores.objects.wrappers import MeteredObjectStore

# Appends count as failing when they have failed, and none has succeeded, for this long …
APPEND_TROUBLE_MS: Final = 1_000
# … and until this long after the last failure, because a broker that is not ready may get no further request.
APPEND_TROUBLE_FORGET_MS: Final = 10_000

# Fenced logs that are shown, and how often their control records are read.
BROKER_FENCED_LOGS_MAX: Final = 100
BROKER_FENCED_CHECK_MS: Final = 2_000

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
        """`objects`: stores by display name; the one named `wal` takes blobs. Stores may be added while it runs.
        `probe_key`: read to probe the metadata store.
        `on_refusing`: called repeatedly, with the reason, while no records can be accepted."""
        self._metadata, self._objects, self._wal = metadata, objects, wal
        self._probe_key, self._on_refusing, self._sleep = probe_key, on_refusing, sleep
        self._reported: dict[str, float] = {}
        """Failing stores that have a line, and since when."""

    def reasons(self) -> list[str]:
        """One sentence per failing store, for the health page."""
        return [f"{name} is failing: {pulse.trouble()}" for name, pulse in self._pulses() if pulse.trouble()]

    def refusal(self) -> str:
        """Why no record can be accepted now; empty if records are accepted."""
        wal = self._objects.get(self._wal) if self._wal is not None else None
        if wal is not None and (trouble := wal.pulse.trouble(writing=True)):
            return f"{self._wal} is failing: {trouble}"
        trouble = self._metadata.pulse.trouble()
        return f"{_METADATA} is failing: {trouble}" if trouble else ""

    async def run(self) -> None:
        """Watch the stores, until cancelled."""
        while True:
            await self._sleep(STORE_PROBE_MS / 1_000)
            refusal = self.refusal()
            if refusal:
                self._on_refusing(refusal)
            for name, pulse in self._pulses():
                trouble = pulse.trouble()
                if trouble is not None:
                    self._report(name, str(trouble))
                    await self._probe(name, pulse)
                elif name in self._reported:
                    failed_ms = round((time.monotonic() - self._reported.pop(name)) * 1_000)
                    _log.info("a store works again", extra={"llog": {"store": name, "failed_ms": failed_ms}})

    def _pulses(self) -> list[tuple[str, StorePulse]]:
        return [(_METADATA, self._metadata.pulse), *((name, store.pulse) for name, store in self._objects.items())]

    def _report(self, name: str, reason: str) -> None:
        if name not in self._reported:
            self._reported[name] = time.monotonic()
            _log.warning("a store is failing", extra={"llog": {"store": name, "reason": reason}})

    async def _probe(self, name: str, pulse: StorePulse) -> None:
        """Use the store once as the broker does. Success ends the trouble; a failure updates the reason."""
        store = self._objects.get(name)
        writing = name == self._wal
        try:
            if store is None:
                await self._metadata.get(self._probe_key, strict=True)
            else:
                await store.check(writing=writing)
        except StoreError as error:
            pulse.record(error, 0.0, writing=writing)
        else:
            pulse.well()


class AppendTroubles:
    """One per broker, on its event loop."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self._since_ms = self._last_ms = 0.0
        self._error: LogError | None = None

    def note(self, outcomes: Sequence[object]) -> None:
        """Note the outcomes of one request. Only failures that the stores caused count."""
        if not all(isinstance(outcome, LogError) for outcome in outcomes):
            self._error = None
            return
        failed = [outcome for outcome in outcomes if isinstance(outcome, AppendNotCommitted | AppendUncertain)]
        if failed:
            self._last_ms = self._now_ms()
            if self._error is None:
                self._since_ms = self._last_ms
            self._error = failed[0]

    def reason(self) -> str:
        """Why appends count as failing; empty when they do not."""
        now_ms = self._now_ms()
        if self._error is None or self._last_ms - self._since_ms < APPEND_TROUBLE_MS:
            return ""
        if now_ms - self._last_ms > APPEND_TROUBLE_FORGET_MS:
            return ""
        seconds = (now_ms - self._since_ms) / 1_000
        return f"no append has succeeded for {seconds:.0f} s; the last error was: {self._error}"


class FencedLogs:
    """One per broker, on its event loop."""

    def __init__(self, context: LogContext, *, check_ms: int = BROKER_FENCED_CHECK_MS) -> None:
        self._context, self._check_ms = context, check_ms
        self._watched: dict[Log, str | None] = {}
        """Each with its fence reason, once it was read."""
        self._more = asyncio.Event()

    def refused(self, outcomes: Sequence[object]) -> None:
        """Note the logs of outcomes that are `LogFenced`."""
        for outcome in outcomes:
            if isinstance(outcome, LogFenced):
                log = Log(outcome.topic, outcome.partition)
                if log not in self._watched:  # a producer may keep trying
                    self.check(log)

    def check(self, log: Log) -> None:
        """Read the log's state soon: it may have been fenced or unfenced."""
        if log in self._watched or len(self._watched) < BROKER_FENCED_LOGS_MAX:
            self._watched.setdefault(log, None)
            self._more.set()

    def shown(self) -> list[str]:
        return [f"{log}: {reason}" for log, reason in sorted(self._watched.items()) if reason is not None]

    async def run(self) -> None:
        """Check repeatedly, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._check_ms / 1_000 if self._watched else None):
                    await self._more.wait()
            self._more.clear()
            try:
                await self.refresh()
            except LlogError as error:
                _log.debug("control records of fenced logs cannot be read: %s", error)

    async def refresh(self) -> None:
        logs = list(self._watched)
        records = await self._context.metadata.get_many([self._context.keys.control(log) for log in logs], strict=True)
        for log, record in zip(logs, records, strict=True):
            control = None if record is None else decode_value(ControlRecord, record.value, record.key.path)
            if control is not None and control.log_state == "FENCED":
                self._watched[log] = control.fence_reason
            else:
                del self._watched[log]
