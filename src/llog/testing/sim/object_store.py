"""The object port in a simulated run: one bucket that all actors share, and each actor's client of it.

As for metadata, every call waits until the scheduler performs it, and a request that can never be accepted is refused
at once. Bytes are copied when the call is made, because a late put must not see later changes of the caller's buffers.
Objects that are deleted together are deleted one by one: the port promises no more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from llog.errors import ObjectStoreTimeout, ObjectStoreUnavailable, ObjectStoreUncertain, StoreClosed, StoreError
from llog.stores.objects.memory import MemoryObjectStore, forget
from llog.stores.objects.port import (
    Buffer,
    ByteRange,
    ObjectMeta,
    ObjectStore,
    check_name,
    check_range,
    check_ranges,
    flat_views,
    total_bytes,
)
from llog.testing.sim.actor import Actor
from llog.testing.sim.calls import Call, answer_words, answers_of, run_now
from llog.testing.sim.faults import STRICT_READ_FAULTS, WRITE_FAULTS

SIM_LIST_PAGE_NAMES: Final = 100


class ObjectServer:
    """The bucket: a private memory store, and a digest of what it holds."""

    def __init__(self, name: str, clock_ms: Callable[[], int]) -> None:
        url = f"memory://sim-{name}"
        forget(url)
        self.inner = MemoryObjectStore(url, clock_ms=clock_ms)
        # The store keeps its objects; the next run that asks for this URL gets others.
        forget(url)
        self.digest = 0
        self._digests: dict[str, int] = {}

    def put(self, name: str, content: bytes, if_absent: bool) -> None:
        run_now(self.inner.put(name, [content], if_absent=if_absent))
        self._digested(name, hash((name, content, run_now(self.inner.head(name)).last_modified_ms)))

    def delete(self, name: str) -> None:
        """Also for scripts: an object vanishes as by a power cut or another's hand."""
        run_now(self.inner.delete_many([name]))
        self._digested(name, 0)

    def _digested(self, name: str, new: int) -> None:
        self.digest ^= self._digests.get(name, 0) ^ new
        self._digests[name] = new

    def page(self, prefix: str, start_after: str, most: int) -> list[ObjectMeta]:
        async def collect() -> list[ObjectMeta]:
            page: list[ObjectMeta] = []
            async for meta in self.inner.list(prefix, start_after=start_after):
                page.append(meta)
                if len(page) == most:
                    break
            return page

        return run_now(collect())

    def contents(self) -> dict[str, bytes]:
        """Every object; for checkers."""
        names = [name for name, digest in self._digests.items() if digest]
        return {name: bytes(run_now(self.inner.get(name))) for name in sorted(names)}


class ObjectCall(Call):
    __slots__ = ("name", "server")

    def __init__(self, actor: Actor, server: ObjectServer, name: str) -> None:
        super().__init__(actor)
        self.server, self.name = server, name

    def parts(self) -> Sequence[tuple[str, str]]:
        return [(self.operation, self.name)]

    def commutes_with(self, other: Call) -> bool:
        if not isinstance(other, ObjectCall):
            return True
        if self.breaks_objects_at_once or other.breaks_objects_at_once:
            return False
        return self.name != other.name or not (self.writes or other.writes)

    def uncertain(self) -> StoreError:
        kind = ObjectStoreUncertain if self.writes else ObjectStoreTimeout
        return kind(self.operation, self.name, "simulated: no answer")

    def unavailable(self) -> StoreError:
        return ObjectStoreUnavailable(self.operation, self.name, "simulated: no connection")


class PutObject(ObjectCall):
    __slots__ = ("content_bytes", "if_absent")
    operation = "put_object"
    faults = WRITE_FAULTS
    of_one_object = True

    def __init__(self, actor: Actor, server: ObjectServer, name: str, content: bytes, if_absent: bool) -> None:
        super().__init__(actor, server, name)
        self.content_bytes, self.if_absent = content, if_absent

    def perform(self) -> None:
        self.server.put(self.name, self.content_bytes, self.if_absent)

    def content(self) -> int:
        return hash((self.name, self.content_bytes, self.if_absent))

    def words(self) -> str:
        return f"puts object {self.name} of {len(self.content_bytes)} bytes{' if absent' if self.if_absent else ''}"


class DeleteObject(ObjectCall):
    __slots__ = ()
    operation = "delete_object"
    faults = WRITE_FAULTS
    breaks_objects_at_once = True

    def perform(self) -> None:
        self.server.delete(self.name)

    def words(self) -> str:
        return f"deletes object {self.name}"


class ReadObject(ObjectCall):
    """Any way to read one object; `read` says which."""

    __slots__ = ("operation", "read")
    faults = STRICT_READ_FAULTS
    writes = False
    of_one_object = True

    def __init__(
        self, actor: Actor, server: ObjectServer, name: str, operation: str, read: Callable[[MemoryObjectStore], Any]
    ) -> None:
        super().__init__(actor, server, name)
        self.operation, self.read = operation, read

    def perform(self) -> Any:
        return run_now(self.read(self.server.inner))

    def words(self) -> str:
        how = {"get_object": "reads", "head_object": "asks for", "get_tail": "reads the tail of"}
        return f"{how.get(self.operation, 'reads ranges of')} object {self.name}"

    def answer_words(self, answer: Any) -> str:
        if isinstance(answer, ObjectMeta):
            return f"{answer.byte_length} bytes"
        if isinstance(answer, list):
            return f"{sum(map(len, answer))} bytes"
        if isinstance(answer, tuple):
            return f"{len(answer[0])} of {answer[1]} bytes"
        return answer_words(answer) if isinstance(answer, BaseException) else f"{len(answer)} bytes"


class ListObjects(ObjectCall):
    """One page; `name` is the prefix."""

    __slots__ = ("start_after",)
    operation = "list_objects"
    faults = STRICT_READ_FAULTS
    writes = False
    breaks_objects_at_once = True

    def __init__(self, actor: Actor, server: ObjectServer, prefix: str, start_after: str) -> None:
        super().__init__(actor, server, prefix)
        self.start_after = start_after

    def perform(self) -> list[ObjectMeta]:
        return self.server.page(self.name, self.start_after, SIM_LIST_PAGE_NAMES)

    def words(self) -> str:
        return f"lists objects {self.name}*{f' after {self.start_after}' if self.start_after else ''}"

    def answer_words(self, answer: Any) -> str:
        return f"{len(answer)} names" if isinstance(answer, list) else answer_words(answer)


class SimObjectStore(ObjectStore):
    def __init__(self, actor: Actor, server: ObjectServer, submit: Callable[[Call], Call]) -> None:
        self._actor, self._server, self._submit = actor, server, submit
        self.url = server.inner.url
        self._closed = False

    def _check_open(self, operation: str, subject: str) -> None:
        if self._closed:
            raise StoreClosed(operation, subject, "this store was closed")

    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        self._check_open("put", name)
        check_name(name)
        total_bytes(name, buffers)
        content = b"".join(flat_views(buffers))
        await self._submit(PutObject(self._actor, self._server, name, content, if_absent))

    async def _read(self, name: str, operation: str, read: Callable[[MemoryObjectStore], Any]) -> Any:
        self._check_open(operation, name)
        check_name(name)
        return await self._submit(ReadObject(self._actor, self._server, name, operation, read))

    async def get(self, name: str) -> Buffer:
        content: Buffer = await self._read(name, "get_object", lambda inner: inner.get(name))
        return content

    async def get_ranges(self, name: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        check_ranges(name, ranges)
        found: list[Buffer] = await self._read(name, "get_ranges", lambda inner: inner.get_ranges(name, ranges))
        return found

    async def get_tail(self, name: str, byte_length: int) -> tuple[Buffer, int]:
        check_range(0, byte_length)
        tail: tuple[Buffer, int] = await self._read(name, "get_tail", lambda inner: inner.get_tail(name, byte_length))
        return tail

    async def head(self, name: str) -> ObjectMeta:
        meta: ObjectMeta = await self._read(name, "head_object", lambda inner: inner.head(name))
        return meta

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        while True:
            self._check_open("list", prefix)
            page = await self._submit(ListObjects(self._actor, self._server, prefix, start_after))
            for meta in page:
                yield meta
            if len(page) < SIM_LIST_PAGE_NAMES:
                return
            start_after = page[-1].name

    async def delete_many(self, names: Sequence[str]) -> None:
        self._check_open("delete", self.url)
        for name in names:
            check_name(name)
        # In flight together, so that a crash leaves any part of them deleted.
        calls = [self._submit(DeleteObject(self._actor, self._server, name)) for name in names]
        for answer in await answers_of(calls):
            if isinstance(answer, Exception):
                raise answer

    async def check(self, *, writing: bool = True) -> None:
        self._check_open("check", self.url)

    async def close(self) -> None:
        self._closed = True
