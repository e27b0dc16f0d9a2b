"""A metadata store that injects failures by seed, around any other store.

The simulation and the tests wrap the reference model in it.
- `unavailable`: nothing happened, and the error says so. `lost_reply`: the write happened; `lost_request`: it did not.
  Both raise `MetadataUncertain`, so the caller can distinguish them only by reading.
- On an atomic store all groups of a call have the same fate. On others each group of a call that lost its reply has its
  own, as if the connection broke between two requests.
- Randomness and sleep are arguments, so one seed gives one history.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple

from llog.errors import InvalidArgument, MetadataTimeout, MetadataUnavailable, MetadataUncertain
from llog.limits import METADATA_SCAN_PAGE_RECORDS_MAX, METADATA_WRITE_GROUPS_MAX
from llog.stores.metadata.port import GroupOutcome, Key, MetadataStore, Record, Session, Write, check_groups
from llog.stores.metadata.wrappers import ForwardingMetadataStore

Sleep = Callable[[float], Awaitable[None]]


class FaultRates(NamedTuple):
    """Probabilities from 0 (never) to 1 (always). The three failures exclude each other."""

    delay: float = 0.0
    """Before a call takes effect, and again before its answer returns."""
    delay_ms_max: int = 20
    unavailable: float = 0.0
    """For any call."""
    lost_reply: float = 0.0
    """A write happens and raises `MetadataUncertain`; a read raises `MetadataTimeout`."""
    lost_request: float = 0.0
    """A write does not happen and raises `MetadataUncertain`; a read raises `MetadataTimeout`."""


class FaultyMetadataStore(ForwardingMetadataStore):
    """`rates` may be changed at any time; `FaultRates()` injects nothing."""

    def __init__(
        self,
        inner: MetadataStore,
        *,
        random_source: random.Random,
        rates: FaultRates = FaultRates(),  # noqa: B008  a NamedTuple is immutable
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        super().__init__(inner)
        self.rates = check_rates(rates)
        self._random, self._sleep = random_source, sleep

    async def _delay(self) -> None:
        if self._random.random() < self.rates.delay:
            await self._sleep(self._random.uniform(0, self.rates.delay_ms_max) / 1_000)

    def _fate(self) -> str:
        """Draws one number per call for any rates, so that a change of rates does not shift later calls."""
        drawn = self._random.random()
        for fate in ("unavailable", "lost_reply", "lost_request"):
            drawn -= float(getattr(self.rates, fate))
            if drawn < 0:
                return fate
        return "fine"

    async def _before_read(self, operation: str, subject: str) -> None:
        await self._delay()
        fate = self._fate()
        if fate == "unavailable":
            raise MetadataUnavailable(operation, subject, "injected: no connection")
        if fate != "fine":
            raise MetadataTimeout(operation, subject, "injected: no answer")

    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        await self._before_read("get", f"{len(keys)} keys")
        records = await self.inner.get_many(keys, strict=strict)
        await self._delay()
        return records

    async def scan(
        self,
        parent: Key,
        *,
        start: str = "",
        stop: str | None = None,
        limit: int = METADATA_SCAN_PAGE_RECORDS_MAX,
        strict: bool = False,
    ) -> list[Record]:
        await self._before_read("scan", parent.path)
        records = await self.inner.scan(parent, start=start, stop=stop, limit=limit, strict=strict)
        await self._delay()
        return records

    async def scan_tree(self, prefix: str) -> AsyncIterator[Record]:
        await self._before_read("scan", prefix)
        async for record in self.inner.scan_tree(prefix):
            yield record

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        # A real client refuses invalid arguments before it sends a request.
        check_groups(groups, atomic=self.capabilities.atomic_groups, groups_max=METADATA_WRITE_GROUPS_MAX)
        await self._delay()
        fate = self._fate() if groups else "fine"
        if fate == "fine":
            outcomes = await self.inner.write(groups)
            await self._delay()
            return outcomes
        if fate == "unavailable":
            return [MetadataUnavailable("write", _subject(group), "injected: no connection") for group in groups]
        if self.capabilities.atomic_groups:
            arrived = list(groups) if fate == "lost_reply" else []
        else:
            arrived = [group for group in groups if len(groups) == 1 or self._random.random() < 0.5]
            arrived = arrived if fate == "lost_reply" else []
        await self.inner.write(arrived)
        await self._delay()
        return [MetadataUncertain("write", _subject(group), "injected: no answer") for group in groups]

    async def open_session(self, *, timeout_ms: int, on_lost: Callable[[], None] | None = None) -> Session:
        await self._before_read("open session", self.url)
        return await self.inner.open_session(timeout_ms=timeout_ms, on_lost=on_lost)

    async def server_time_ms(self) -> int | None:
        await self._before_read("time", self.url)
        return await self.inner.server_time_ms()

    async def raise_versions(self, floor: int) -> bool:
        await self._before_read("raise versions", self.url)
        return await self.inner.raise_versions(floor)


def _subject(group: Sequence[Write]) -> str:
    return group[0].key.path


def check_rates(rates: FaultRates) -> FaultRates:
    failures = (rates.unavailable, rates.lost_reply, rates.lost_request)
    if min(rates.delay, *failures) < 0 or rates.delay > 1 or sum(failures) > 1:
        raise InvalidArgument("rates", f"{rates}: each is from 0 to 1, and the three failures together at most 1")
    return rates
