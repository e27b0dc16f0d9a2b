"""What all claims share: fixtures, the breakable link, keys below a root of their own, patience."""

from __future__ import annotations

import abc
import asyncio
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import pytest

from llog.errors import MetadataTimeout, MetadataUnavailable, MetadataUncertain
from llog.stores.metadata.port import GroupOutcome, Key, MetadataStore, Record, last_segment
from llog.testing.proxy import TcpProxy

T = TypeVar("T")
OpenStore = Callable[[], Awaitable[MetadataStore]]

# How long something that must happen may take on a slow, busy machine before the test gives up.
PATIENCE_SECONDS = 60.0
SOAK = os.environ.get("LLOG_SOAK") == "1"


class StoreLink(abc.ABC):
    """A client (`store`) with a connection that can be broken and healed."""

    store: MetadataStore
    networked = True
    """There are connections that `cut` breaks."""

    @abc.abstractmethod
    async def lose_replies(self) -> None:
        """From now on what the client asks is done, but no answer comes back."""

    @abc.abstractmethod
    async def cut(self) -> None:
        """Break every connection; new ones work."""

    @abc.abstractmethod
    async def silence(self) -> None:
        """Nothing passes either way: heartbeats stop arriving."""

    @abc.abstractmethod
    async def heal(self) -> None:
        """As if nothing had been; connections broken meanwhile stay broken."""


class ProxiedLink(StoreLink):
    """A client that reaches its server through a `TcpProxy`."""

    def __init__(self, store: MetadataStore, proxy: TcpProxy) -> None:
        self.store, self.proxy = store, proxy

    async def lose_replies(self) -> None:
        self.proxy.drop_replies = True

    async def cut(self) -> None:
        self.proxy.cut()

    async def silence(self) -> None:
        self.proxy.stall_requests = self.proxy.stall_replies = True

    async def heal(self) -> None:
        self.proxy.heal()


class StoreClaims:
    """The base of all claims. A subclass overrides `open_store` and `link`."""

    clock_speed = 1.0
    """How much faster than ours the clock runs by which this store ends sessions."""

    @pytest.fixture
    async def open_store(self) -> OpenStore:
        pytest.fail("the adapter's test class must provide the fixture open_store")

    @pytest.fixture
    async def link(self) -> StoreLink:
        pytest.fail("the adapter's test class must provide the fixture link")

    @pytest.fixture
    async def store(self, open_store: OpenStore) -> MetadataStore:
        return await open_store()

    @pytest.fixture
    def root(self) -> str:
        return f"contract/{uuid.uuid4().hex[:12]}"


def below(root: str, *names: str) -> Key:
    """A key of this test; all of them share one route, as the keys of one log do."""
    return Key("/".join((root, *names)), root)


def names_of(records: Iterable[Record]) -> list[str]:
    return [last_segment(record.key.path) for record in records]


def versions_of(outcome: GroupOutcome) -> tuple[int, ...]:
    """The versions of a group that must have been written."""
    assert isinstance(outcome, tuple), f"the group was refused: {outcome!r}"
    return outcome


async def soon(what: str, condition: Callable[[], Awaitable[bool]], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, f"still not so after {seconds:.0f} s: {what}"
        await asyncio.sleep(0.05)


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """What may be done twice, repeated while the client finds its way back, or a busy machine holds one of them up."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return await call()
        except (MetadataTimeout, MetadataUnavailable, MetadataUncertain):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)


async def in_time(awaitable: Awaitable[T], seconds: float = PATIENCE_SECONDS) -> T:
    return await asyncio.wait_for(awaitable, seconds)
