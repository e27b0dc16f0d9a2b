"""Objects in S3 or a compatible server, over obstore: `s3://bucket[/prefix]`.

Every call is one attempt: `RetryingObjectStore` retries, and the retries of obstore are off. A put is one PUT with its
length, never multipart. An answer shorter than requested is an error.
- Buffers of a put are passed without a copy, except many small ones, which are joined once: the client spends about
  3 µs on each buffer (8 MiB in 1,000 buffers: 11 ms of CPU separately, 8 ms joined).
- The timeout of a request is the request timeout plus its bytes at a low rate, so a large object does not need a large
  timeout.
- Conditional puts use `If-None-Match: *`; `check` tests that the server supports it.
- A server may refuse a large conditional put by closing the connection before it has read the body, which looks like a
  lost answer (`ObjectStoreUncertain`); `RetryingObjectStore` resolves it.
- General-purpose buckets of S3 and the tested servers list names in byte order; directory buckets do not.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from llog.concurrency import gather_bounded
from llog.errors import (
    LlogError,
    ObjectAlreadyExists,
    ObjectNotFound,
    ObjectRangeInvalid,
    ObjectStoreClockSkew,
    ObjectStoreDenied,
    ObjectStoreError,
    ObjectStoreMisconfigured,
    StoreClosed,
)
from llog.limits import KIB, MIB, OBJECT_DELETE_MANY_MAX, OBJECT_LIST_PAGE_MAX
from llog.stores.objects.port import (
    Buffer,
    ByteRange,
    ObjectMeta,
    ObjectStore,
    RangeFetch,
    check_name,
    check_range,
    check_ranges,
    cut,
    flat_views,
    is_name,
    last_byte,
    plan_fetches,
    total_bytes,
)
from llog.stores.objects.s3_client import (
    S3Settings,
    allowed_ms,
    bucket_and_root,
    is_possible_prefix,
    list_offset,
    list_prefix,
    open_client,
    page_end,
)
from llog.stores.objects.s3_errors import translate

if TYPE_CHECKING:
    from obstore import ObjectMeta as S3ObjectMeta

# Range requests of one `get_ranges` call; the number of calls is up to the callers.
OBJECT_FETCHES_IN_FLIGHT_MAX: Final = 10
OBJECT_REQUEST_TIMEOUT_MS: Final = 10_000
# Passing a buffer to the S3 client costs as much as copying this many bytes; smaller buffers are joined first …
OBJECT_PIECE_BYTES_MIN: Final = 64 * KIB
# … unless the copy would block the event loop for more than about two milliseconds.
OBJECT_JOIN_BYTES_MAX: Final = 16 * MIB

__all__ = ["S3ObjectStore", "S3Settings", "open_from_url"]

T = TypeVar("T")


async def open_from_url(url: str, settings: S3Settings) -> ObjectStore:
    """`s3://bucket[/prefix]`; no request is made yet."""
    return S3ObjectStore(url, settings)


class S3ObjectStore(ObjectStore):
    def __init__(self, url: str, settings: S3Settings) -> None:
        self.bucket, self._root = bucket_and_root(url)
        self.url = f"s3://{self.bucket}/{self._root}".rstrip("/")
        self._where = settings.s3_endpoint_url or "AWS"
        self._timeout_ms = settings.request_timeout_ms or OBJECT_REQUEST_TIMEOUT_MS
        self._store = open_client(self.bucket, settings, self._timeout_ms)
        self._closed = False

    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        self._check_open("put", name)
        key = self._key(name)
        byte_length = total_bytes(name, buffers)
        mode: Any = "create" if if_absent else "overwrite"
        request = self._store.put_async(key, _payload(buffers, byte_length), mode=mode, use_multipart=False)
        await self._within(request, "put", name, byte_length, writing=True)

    async def get(self, name: str) -> Buffer:
        self._check_open("get", name)
        answer = await self._within(self._store.get_async(self._key(name)), "get", name)
        size = answer.meta["size"]
        return memoryview(await self._within(answer.bytes_async(), "get", name, size))

    async def get_ranges(self, name: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        self._check_open("get_ranges", name)
        check_ranges(name, ranges)
        fetches = plan_fetches(ranges)
        parts: list[Buffer] = [b""] * len(ranges)
        answers = await gather_bounded(
            fetches, lambda fetch: self._fetch(name, fetch), limit=OBJECT_FETCHES_IN_FLIGHT_MAX
        )
        for fetch, answer in zip(fetches, answers, strict=True):
            cut(fetch, answer, ranges, parts)
        if last_byte(ranges) > max((f.byte_offset + f.byte_length for f in fetches), default=-1):
            # Empty ranges fetch nothing, so they are checked against the length of the object.
            byte_length = (await self.head(name)).byte_length
            if last_byte(ranges) > byte_length:
                raise ObjectRangeInvalid("get_ranges", self.uri(name), f"a range reaches beyond {byte_length} bytes")
        return parts

    async def get_tail(self, name: str, byte_length: int) -> tuple[Buffer, int]:
        self._check_open("get_tail", name)
        check_range(0, byte_length)
        key = self._key(name)
        if byte_length == 0:
            return b"", (await self.head(name)).byte_length
        try:
            request = self._store.get_async(key, options={"range": {"suffix": byte_length}})
            answer = await self._within(request, "get_tail", name)
            tail = memoryview(await self._within(answer.bytes_async(), "get_tail", name, byte_length))
        except ObjectRangeInvalid:
            # Servers refuse a suffix of an empty object in different ways.
            if (await self.head(name)).byte_length == 0:
                return b"", 0
            raise
        whole_length = answer.meta["size"]
        if tail.nbytes != min(byte_length, whole_length):
            reason = f"{tail.nbytes} bytes came for the last {byte_length} of {whole_length}"
            raise ObjectStoreError("get_tail", self.uri(name), reason)
        return tail, whole_length

    async def head(self, name: str) -> ObjectMeta:
        self._check_open("head", name)
        return self._meta(name, await self._within(self._store.head_async(self._key(name)), "head", name))

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        self._check_open("list", prefix)
        if not is_possible_prefix(prefix):
            return
        key_prefix = self._root_slash + prefix
        end = page_end(key_prefix)
        offset = list_offset(key_prefix, self._root_slash + start_after if start_after else "")
        pages = self._store.list(list_prefix(key_prefix), offset=offset, chunk_size=OBJECT_LIST_PAGE_MAX)
        while True:
            try:
                page = await self._within(pages.__anext__(), "list", prefix)
            except StopAsyncIteration:
                return
            for found in page:
                key = found["path"]
                if key.startswith(key_prefix):
                    name = key[len(self._root_slash) :]
                    if name > start_after and is_name(name):
                        yield self._meta(name, found)
                elif key > end:
                    return

    async def delete_many(self, names: Sequence[str]) -> None:
        self._check_open("delete", self.url)
        keys = [self._key(name) for name in names]
        for first in range(0, len(keys), OBJECT_DELETE_MANY_MAX):
            chunk = keys[first : first + OBJECT_DELETE_MANY_MAX]
            await self._within(self._store.delete_async(chunk), "delete", f"{len(chunk)} objects", writing=True)

    async def check(self, *, writing: bool = True) -> None:
        """List; for a writer also put, put again (which must be refused), and delete."""
        self._check_open("check", self.url)
        try:
            await self._check_listing()
            if writing:
                await self._check_writing()
        except (ObjectStoreMisconfigured, ObjectStoreDenied) as error:
            raise self._advised(error, writing) from error

    async def _check_listing(self) -> None:
        try:
            async for _ in self.list():
                break
        except ObjectNotFound as error:
            # Some servers return a bare 404; the call names no object, so the bucket is missing.
            raise ObjectStoreMisconfigured("check", self.url, error.reason) from error

    async def _check_writing(self) -> None:
        probe = f".llog-check-{os.urandom(8).hex()}"
        await self.put(probe, [b"llog"], if_absent=True)
        try:
            await self.put(probe, [b"llog"], if_absent=True)
        except ObjectAlreadyExists:
            pass
        else:
            reason = "the server ignores If-None-Match; llog needs conditional writes"
            raise ObjectStoreMisconfigured("check", self.url, reason)
        finally:
            await self.delete(probe)

    async def close(self) -> None:
        self._closed = True

    def _advised(self, error: ObjectStoreError, writing: bool) -> ObjectStoreError:
        if isinstance(error, ObjectStoreClockSkew):
            advice = "set the clocks of this machine and of the server right; `llog doctor` compares them"
        elif isinstance(error, ObjectStoreDenied):
            needed = "list, read, write and delete" if writing else "list and read"
            advice = f"check the access key, the secret and that they may {needed} here"
        else:
            advice = "check that the bucket exists, its region and the endpoint"
        reason = f"bucket {self.bucket!r} at {self._where} cannot be used ({error.reason}): {advice}"
        return type(error)("check", self.url, reason)

    async def _fetch(self, name: str, fetch: RangeFetch) -> Buffer:
        start, length = fetch.byte_offset, fetch.byte_length
        request = self._store.get_range_async(self._key(name), start=start, length=length)
        answer = memoryview(await self._within(request, "get_ranges", name, length))
        if answer.nbytes != length:
            # A range that reaches past the end of the object returns fewer bytes.
            reason = f"bytes {start} to {start + length}: only {answer.nbytes} are there"
            raise ObjectRangeInvalid("get_ranges", self.uri(name), reason)
        return answer

    async def _within(
        self, request: Awaitable[T], operation: str, name: str, byte_length: int = 0, *, writing: bool = False
    ) -> T:
        """Await one request within the timeout for its size; translates its errors."""
        try:
            async with asyncio.timeout(allowed_ms(self._timeout_ms, byte_length) / 1000):
                return await request
        except (LlogError, StopAsyncIteration):
            raise
        except Exception as error:
            raise translate(error, operation, f"{self.url}/{name}", writing=writing) from error

    @property
    def _root_slash(self) -> str:
        return f"{self._root}/" if self._root else ""

    def _key(self, name: str) -> str:
        check_name(name)
        return self._root_slash + name

    def _meta(self, name: str, found: S3ObjectMeta) -> ObjectMeta:
        return ObjectMeta(name, found["size"], int(found["last_modified"].timestamp() * 1000))

    def _check_open(self, operation: str, subject: str) -> None:
        if self._closed:
            raise StoreClosed(operation, subject, "this store was closed")


def _payload(buffers: Sequence[Buffer], byte_length: int) -> list[memoryview | bytes] | bytes:
    pieces = flat_views(buffers)
    if byte_length < min(len(pieces) * OBJECT_PIECE_BYTES_MIN, OBJECT_JOIN_BYTES_MAX):
        return b"".join(pieces)
    return pieces
