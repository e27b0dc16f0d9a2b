"""The client: one namespace, all its shards.

    client = await OxiaClient.open(OxiaOptions(addresses=("localhost:6648",)))
    shard = client.shard_of("topic:0")
    [version] = await client.write(shard, [OxiaPut("a/b", b"value", expected=-1, partition_key="topic:0")])
    [record] = await client.get_many(shard, [Get("a/b")])
    await client.close()

Bound to the event loop it was opened on. Opens no connection before `open`; not fork-safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from llog.stores.metadata.oxia.client.discovery import ShardDirectory, ShardMap
from llog.stores.metadata.oxia.client.errors import ClientClosed, InvalidRequest
from llog.stores.metadata.oxia.client.notifications import Event, ShardNotifications
from llog.stores.metadata.oxia.client.ops import Op, Outcome
from llog.stores.metadata.oxia.client.queue import Submission
from llog.stores.metadata.oxia.client.reads import Get, OxiaRecord, ShardReader
from llog.stores.metadata.oxia.client.rpc import ChannelPool, OxiaLink, OxiaOptions
from llog.stores.metadata.oxia.client.sessions import ShardSession, open_shard_session
from llog.stores.metadata.oxia.client.writes import ShardWriter


class OxiaClient:
    def __init__(self, options: OxiaOptions) -> None:
        if not options.addresses:
            raise InvalidRequest("no server address given")
        self.options = options
        self._pool = ChannelPool(options)
        self._directory = ShardDirectory(options, self._pool)
        self._writers: dict[int, ShardWriter] = {}
        self._readers: dict[int, ShardReader] = {}
        self._closed = False

    @classmethod
    async def open(cls, options: OxiaOptions) -> OxiaClient:
        client = cls(options)
        try:
            deadline = asyncio.get_running_loop().time() + options.request_timeout_ms / 1_000
            await client._directory.start(deadline)
        except BaseException:
            await client.close()
            raise
        return client

    # -- shards -----------------------------------------------------------------------------------------------------
    @property
    def shard_map(self) -> ShardMap:
        current = self._directory.current
        if current is None or self._closed:
            raise ClientClosed("the client is not open")
        return current

    @property
    def shards(self) -> tuple[int, ...]:
        return self.shard_map.shards

    def shard_of(self, route: str) -> int:
        """The shard of a partition key, or of a key that has none."""
        return self.shard_map.shard_of(route)

    def leader_of(self, shard: int) -> str | None:
        return self.shard_map.leaders.get(shard)

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change of the assignments; the returned function stops that."""
        return self._directory.listen(listener)

    async def leader_link(self, shard: int) -> OxiaLink:
        """The connection of the leader, to pin several reads to one server."""
        deadline = asyncio.get_running_loop().time() + self.options.request_timeout_ms / 1_000
        return await self._directory.link(shard, deadline)

    # -- writes -----------------------------------------------------------------------------------------------------
    async def write(self, shard: int, ops: Sequence[Op]) -> list[Outcome]:
        """One outcome per operation, in order: the new version of a put, 0 for a delete, or an error.

        Raises only if nothing was sent. Operations are independent of each other; if a call names a key several times,
        puts may be applied first.
        """
        return (await self.submit(shard, ops)).outcomes

    async def submit(self, shard: int, ops: Sequence[Op]) -> Submission:
        """`write`, with the server that answered and its clock."""
        submission = await self.begin(shard, ops)
        await submission.done
        return submission

    async def begin(self, shard: int, ops: Sequence[Op]) -> Submission:
        """The first half of `submit`: await `done` of the result for the outcomes."""
        return await self._writer(shard).begin(ops)

    def _writer(self, shard: int) -> ShardWriter:
        self._check_open()
        writer = self._writers.get(shard)
        if writer is None:
            writer = self._writers[shard] = ShardWriter(shard, self.options, self._directory)
        return writer

    # -- reads ------------------------------------------------------------------------------------------------------
    async def get_many(self, shard: int, gets: Sequence[Get], link: OxiaLink | None = None) -> list[OxiaRecord | None]:
        return await self._reader(shard).get_many(gets, link)

    async def scan(
        self, shard: int, start: str, stop: str, limit: int, link: OxiaLink | None = None
    ) -> list[OxiaRecord]:
        return await self._reader(shard).scan(start, stop, limit, link)

    async def scan_frames(self, shard: int, start: str, stop: str) -> AsyncGenerator[list[OxiaRecord], None]:
        """A range in frames of up to 1,000 records, for ranges that are too large for one answer."""
        link = await self.leader_link(shard)
        seconds = self.options.request_timeout_ms / 1_000
        async with aclosing(self._reader(shard).scan_frames(start, stop, link, seconds)) as pages:
            async for frame in pages:
                yield frame

    def _reader(self, shard: int) -> ShardReader:
        self._check_open()
        reader = self._readers.get(shard)
        if reader is None:
            reader = self._readers[shard] = ShardReader(shard, self.options, self._directory)
        return reader

    # -- sessions and notifications ---------------------------------------------------------------------------------
    async def open_session(
        self, shard: int, timeout_ms: int, on_lost: Callable[[], None] | None = None
    ) -> ShardSession:
        self._check_open()
        return await open_shard_session(shard, timeout_ms, self.options, self._directory, on_lost)

    def notifications(self, shard: int, on_event: Callable[[Event], None]) -> ShardNotifications:
        self._check_open()
        return ShardNotifications(shard, self.options, self._directory, on_event)

    # -- the end ----------------------------------------------------------------------------------------------------
    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the client is closed")

    async def close(self) -> None:
        """Idempotent. Operations not yet sent fail with `ClientClosed`; those in flight get a moment to finish."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(writer.close() for writer in self._writers.values()))
        await asyncio.gather(*(reader.close() for reader in self._readers.values()))
        await self._directory.close()
        await self._pool.close()
