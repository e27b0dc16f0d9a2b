"""Which shard holds a key, and the leader of each shard, kept current from the assignment stream of one server.

A key belongs to the shard with its hash (of the partition key, or else of the key) in its range of hashes.

That server may die, pause, or restart without knowing the assignments; a shard may have no leader for a while, or
another one. So the directory tries every known address until one answers, keeps the last map meanwhile, and lets
callers wait for a leader until their deadline. It leaves a suspected server at once, because a paused process keeps its
connections open.
"""

from __future__ import annotations

import asyncio
import logging
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import grpc
from xxhash import xxh3_64_intdigest

from llog.concurrency import Backoff
from llog.limits import OXIA_RETRY_DELAY_MS_MAX, OXIA_RETRY_DELAY_MS_MIN
from llog.stores.metadata.oxia.client.errors import (
    ClientClosed,
    Denied,
    InvalidRequest,
    Misconfigured,
    OxiaError,
    Unavailable,
)
from llog.stores.metadata.oxia.client.failures import FailureKind, RpcFailure, failure_of
from llog.stores.metadata.oxia.client.proto import pb
from llog.stores.metadata.oxia.client.rpc import ChannelPool, OxiaLink, OxiaOptions

# Time for the first assignments of a stream; after that the next server is tried.
OXIA_DISCOVERY_TIMEOUT_MS: Final = 3_000
OXIA_BACKOFF: Final = Backoff(OXIA_RETRY_DELAY_MS_MIN, OXIA_RETRY_DELAY_MS_MAX)

_HASH_MASK: Final = 0xFFFF_FFFF

_log = logging.getLogger(__name__)


def route_hash(text: str) -> int:
    """The low 32 bits of the 64-bit XXH3 of the UTF-8 bytes. A client with another hash would not find the records of
    other clients, so tests compare it with the test vectors of the server."""
    try:
        return int(xxh3_64_intdigest(text.encode())) & _HASH_MASK
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{text!r} is not valid Unicode") from error


@dataclass(frozen=True)
class ShardMap:
    """One set of assignments: immutable, replaced as a whole."""

    shards: tuple[int, ...]
    """In the order of their ranges."""
    min_hashes: tuple[int, ...]
    max_hashes: tuple[int, ...]
    leaders: Mapping[int, str]
    """A shard without an entry is electing its leader."""

    @cached_property
    def _only(self) -> int | None:
        covers_all = self.min_hashes == (0,) and self.max_hashes == (_HASH_MASK,)
        return self.shards[0] if covers_all else None

    def shard_of(self, text: str) -> int:
        if self._only is not None:
            return self._only
        hashed = route_hash(text)
        at = bisect_right(self.min_hashes, hashed) - 1
        if at < 0 or hashed > self.max_hashes[at]:
            raise Unavailable(f"no shard is assigned for hash {hashed:#010x} of {text!r}")
        return self.shards[at]

    def with_leader(self, shard: int, leader: str) -> ShardMap:
        return ShardMap(self.shards, self.min_hashes, self.max_hashes, {**self.leaders, shard: leader})


def shard_map_of(assignment: pb.NamespaceAssignment, namespace: str) -> ShardMap:
    """Raises `Misconfigured` for an unsupported organisation of shards or keys."""
    if assignment.shard_key_router != pb.ROUTER_XXHASH3:
        raise Misconfigured(f"namespace {namespace!r} routes keys by method {assignment.shard_key_router}, not XXH3")
    if assignment.key_sorting == pb.SORTING_NATURAL:
        raise Misconfigured(f"namespace {namespace!r} sorts keys by plain bytes; hierarchical sorting is needed")
    shards = sorted(assignment.assignments, key=lambda shard: shard.int32_hash_range.min_hash_inclusive)
    if not shards:
        raise Misconfigured(f"namespace {namespace!r} has no shards")
    return ShardMap(
        tuple(shard.shard for shard in shards),
        tuple(shard.int32_hash_range.min_hash_inclusive for shard in shards),
        tuple(shard.int32_hash_range.max_hash_inclusive for shard in shards),
        {shard.shard: shard.leader for shard in shards if shard.leader},
    )


def retry_delay_seconds(attempt: int) -> float:
    """At least half the shortest delay, so that a server that refuses at once is not called in a tight loop."""
    return max(OXIA_RETRY_DELAY_MS_MIN / 2_000, OXIA_BACKOFF.seconds(attempt, random.getrandbits))


class ShardDirectory:
    def __init__(self, options: OxiaOptions, pool: ChannelPool) -> None:
        self._options, self._pool = options, pool
        self._map: ShardMap | None = None
        self._changed = asyncio.Event()
        self._listeners: list[Callable[[], None]] = []
        self._source = ""
        self._stream: grpc.aio.Call | None = None
        self._trouble: OxiaError | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def current(self) -> ShardMap | None:
        return self._map

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change; the returned function stops that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def start(self, deadline: float) -> ShardMap:
        """The first map. Raises the reason if there is none by `deadline`."""
        self._task = asyncio.create_task(self._follow(), name="oxia shard discovery")
        while self._map is None:
            if isinstance(self._trouble, Denied | Misconfigured):
                raise self._trouble
            await self._wait_for_change(deadline)
        return self._map

    async def link(self, shard: int, deadline: float) -> OxiaLink:
        """The leader of `shard`; waits through an election until `deadline`, then raises `Unavailable`."""
        while True:
            if self._closed:
                raise ClientClosed("the client is closed")
            if self._map is not None:
                leader = self._map.leaders.get(shard)
                if leader:
                    return self._pool.link(leader)
                if shard not in self._map.shards:
                    raise Unavailable(f"shard {shard} is not assigned any more")
            await self._wait_for_change(deadline)

    async def _wait_for_change(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._changed.wait()
        except TimeoutError:
            why = f" ({self._trouble})" if self._trouble else ""
            raise Unavailable(f"no leader known within the deadline{why}") from None

    def suspect(self, link: OxiaLink, shard: int, failure: RpcFailure | None = None) -> None:
        """`link` did not act as the leader of `shard`: use its hint, and get assignments from another server."""
        hint = failure.leader_hint if failure else ""
        if hint and self._map is not None and shard in self._map.shards:
            if self._map.leaders.get(shard) != hint:
                self._publish(self._map.with_leader(shard, hint))
        elif link.address == self._source and self._stream is not None:
            self._stream.cancel()

    # -- the stream -------------------------------------------------------------------------------------------------
    async def _follow(self) -> None:
        attempt = 0
        while not self._closed:
            for address in self._candidates():
                before = self._map
                try:
                    await self._follow_one(address)
                except OxiaError as error:
                    self._note(error)
                except Exception as error:
                    # The client needs discovery: after any answer that it cannot use, try the next server.
                    _log.exception("oxia discovery at %s", address)
                    self._note(Unavailable(f"{address}: {error!r}"))
                if self._closed:
                    return
                attempt = 0 if self._map is not before else attempt + 1
                await asyncio.sleep(retry_delay_seconds(attempt))

    def _candidates(self) -> Iterable[str]:
        """All known addresses, the last used one at the end."""
        known = dict.fromkeys([*self._options.addresses, *(self._map.leaders.values() if self._map else ())])
        left = self._source
        addresses = [address for address in known if address != left]
        random.shuffle(addresses)
        return [*addresses, left] if left in known else addresses

    async def _follow_one(self, address: str) -> None:
        """Read assignments from one server until it fails."""
        link = self._pool.link(address)
        self._source = address
        request = pb.ShardAssignmentsRequest(namespace=self._options.namespace)
        stream = self._stream = link.assignments(request, metadata=link.metadata)
        messages = aiter(stream)
        try:
            async with asyncio.timeout(OXIA_DISCOVERY_TIMEOUT_MS / 1_000):
                self._take(await anext(messages))
            async for message in messages:
                self._take(message)
        except grpc.aio.AioRpcError as error:
            self._note(_trouble_of(address, failure_of(error)))
        except (TimeoutError, StopAsyncIteration):
            self._note(Unavailable(f"{address} sent no assignments in time"))
        except asyncio.CancelledError:
            # A cancelled call raises the same error as a cancelled task; only the latter ends the loop.
            task = asyncio.current_task()
            if self._closed or (task is not None and task.cancelling()):
                raise
        finally:
            stream.cancel()
            self._stream = None

    def _take(self, message: pb.ShardAssignments) -> None:
        name = self._options.namespace
        if name not in message.namespaces:
            raise Misconfigured(f"namespace {name!r} is not among the assignments")
        self._trouble = None
        self._publish(shard_map_of(message.namespaces[name], name))

    def _publish(self, new: ShardMap) -> None:
        self._map = new
        self._wake()
        for listener in list(self._listeners):
            listener()

    def _note(self, trouble: OxiaError) -> None:
        self._trouble = trouble
        _log.info("oxia discovery: %s", trouble)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def close(self) -> None:
        self._closed = True
        self._wake()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def _trouble_of(address: str, failure: RpcFailure) -> OxiaError:
    text = f"{address}: {failure}"
    if failure.kind is FailureKind.DENIED:
        return Denied(text)
    if failure.kind is FailureKind.NAMESPACE_NOT_FOUND:
        return Misconfigured(text)
    return Unavailable(text)
