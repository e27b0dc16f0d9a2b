"""The object port: the interface of every object store.

Record bytes are in S3, a directory or memory. Retry, metering and faults are wrappers (`wrappers`, `faulty`),
and one contract suite (`llog.testing.object_contract`) tests every adapter.

- `put` is atomic and durable: after it returns the whole object survives a crash; before that no reader sees any of it.
- Objects are immutable: a name is written once. With `if_absent=True` the store checks that.
- Names are `/`-separated paths below the root of the store; index entries hold `uri(name)`.
- A range outside the object is an error, not a shorter answer.
- A write whose answer was lost raises `ObjectStoreUncertain`. Repeating the same put is safe, because a name always has
  the same bytes.
"""

from __future__ import annotations

import abc
import sys
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from llog.errors import InvalidArgument, ValueTooLarge
from llog.limits import KIB, MIB, OBJECT_BYTES_MAX, OBJECT_NAME_BYTES_MAX, OBJECT_RANGES_MAX

# Ranges closer than this share a request: reading the gap takes less time than another round trip.
OBJECT_RANGE_GAP_BYTES_MAX: Final = 128 * KIB
# Ranges are merged only while the request stays within this length.
OBJECT_FETCH_BYTES_MAX: Final = 64 * MIB

Buffer = bytes | bytearray | memoryview


class ByteRange(NamedTuple):
    byte_offset: int
    byte_length: int


class ObjectMeta(NamedTuple):
    name: str
    byte_length: int
    last_modified_ms: int


class ObjectStore(abc.ABC):
    """An object store, bound to one event loop; open it in the process that uses it."""

    url: str
    """The root, without a trailing slash: `s3://bucket`, `file:///dir`, `memory://name`."""

    @property
    def kind(self) -> str:
        """The scheme: `s3`, `file`, `memory`."""
        return self.url.partition(":")[0]

    def uri(self, name: str) -> str:
        check_name(name)
        return f"{self.url}/{name}"

    def name_of(self, uri: str) -> str:
        """The name in a URI of this store. Raises `InvalidArgument` for a URI of another store."""
        prefix = self.url + "/"
        if not uri.startswith(prefix):
            raise InvalidArgument("uri", f"{uri!r} is not in {self.url}")
        return uri[len(prefix) :]

    @abc.abstractmethod
    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        """Store the concatenation of `buffers`; durable when this returns. The buffers are not changed or kept."""

    @abc.abstractmethod
    async def get(self, name: str) -> Buffer:
        """The whole object."""

    @abc.abstractmethod
    async def get_ranges(self, name: str, ranges: Sequence[ByteRange]) -> list[Buffer]:
        """Exactly these ranges, in order. Raises `ObjectRangeInvalid` if one reaches past the end of the object."""

    async def get_range(self, name: str, byte_offset: int, byte_length: int) -> Buffer:
        return (await self.get_ranges(name, [ByteRange(byte_offset, byte_length)]))[0]

    @abc.abstractmethod
    async def get_tail(self, name: str, byte_length: int) -> tuple[Buffer, int]:
        """The last `byte_length` bytes in one request (all of a shorter object), and the object's whole length."""

    @abc.abstractmethod
    async def head(self, name: str) -> ObjectMeta:
        """Length and time of last modification. Raises `ObjectNotFound`."""

    @abc.abstractmethod
    def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        """Objects whose name begins with `prefix` (any string), names > `start_after`, in byte order of the names."""

    @abc.abstractmethod
    async def delete_many(self, names: Sequence[str]) -> None:
        """Delete any number of objects, in requests of bounded size. Missing objects are ignored."""

    async def delete(self, name: str) -> None:
        await self.delete_many([name])

    async def tidy(self, directory: str) -> None:  # noqa: B027 (most stores have nothing to tidy)
        """Remove empty directories at and below `directory`. Only for objects that need not survive a power cut: a put
        at the same time is complete, but may be less durable."""

    @abc.abstractmethod
    async def check(self, *, writing: bool = True) -> None:
        """Check that the store exists and allows access. Raises `ObjectStoreMisconfigured` or `ObjectStoreDenied`.

        With `writing=False` it creates and writes nothing, so read-only credentials are enough.
        """

    @abc.abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def checked(store: ObjectStore, *, writing: bool = True) -> ObjectStore:
    """Return the store after a successful `check`; close it otherwise."""
    try:
        await store.check(writing=writing)
    except BaseException:
        await store.close()
        raise
    return store


def check_name(name: str) -> None:
    """Refuse names that some store cannot hold or that lead out of the root. Raises `InvalidArgument`."""
    size = len(name.encode("utf-8", "surrogatepass"))
    if not name or size > OBJECT_NAME_BYTES_MAX:
        raise InvalidArgument("name", f"{name[:80]!r} has {size} bytes; 1 to {OBJECT_NAME_BYTES_MAX} are accepted")
    if not name.isprintable():
        raise InvalidArgument("name", f"{name!r} has a control or unprintable character")
    if any(segment in ("", ".", "..") for segment in name.split("/")):
        raise InvalidArgument("name", f"{name!r} has an empty or dotted segment")


def is_name(name: str) -> bool:
    """Whether an object can have this name; a bucket or directory may hold others."""
    try:
        check_name(name)
    except InvalidArgument:
        return False
    return True


def check_range(byte_offset: int, byte_length: int) -> None:
    if byte_offset < 0 or byte_length < 0:
        raise InvalidArgument("range", f"byte_offset {byte_offset}, byte_length {byte_length}: neither may be negative")


def check_ranges(name: str, ranges: Sequence[ByteRange]) -> None:
    check_name(name)
    if len(ranges) > OBJECT_RANGES_MAX:
        raise InvalidArgument("ranges", f"{len(ranges)} ranges of {name!r}; at most {OBJECT_RANGES_MAX} are accepted")
    for byte_offset, byte_length in ranges:
        check_range(byte_offset, byte_length)


def total_bytes(name: str, buffers: Sequence[Buffer]) -> int:
    """Length of the object. Raises `ValueTooLarge`."""
    size = sum(len(b) if not isinstance(b, memoryview) else b.nbytes for b in buffers)
    if size > OBJECT_BYTES_MAX:
        raise ValueTooLarge(f"object {name!r}", size, OBJECT_BYTES_MAX)
    return size


def flat_views(buffers: Sequence[Buffer]) -> list[memoryview | bytes]:
    """The same bytes in the same order: non-empty, each `bytes` or a contiguous view of format `B`, as `writev` and
    obstore need them. Only a view that cannot be reinterpreted (not contiguous, foreign byte order) is copied."""
    views: list[memoryview | bytes] = []
    for buffer in buffers:
        if type(buffer) is bytes:
            if buffer:
                views.append(buffer)
            continue
        view = memoryview(buffer)
        # Strides of one byte: one dimension, contiguous, items of one byte.
        if view.strides == (1,) and view.format == "B":
            if view.nbytes:
                views.append(view)
        elif view.nbytes:
            views.append(_reinterpreted(view))
    return views


def _reinterpreted(view: memoryview) -> memoryview:
    try:
        return view.cast("B")
    except (TypeError, ValueError):
        return memoryview(view.tobytes())


def equals_buffers(stored: Buffer, buffers: Sequence[Buffer]) -> bool:
    """Whether `stored` is the concatenation of `buffers`, without building it."""
    whole = memoryview(stored)
    position = 0
    for view in flat_views(buffers):
        end = position + len(view)
        if whole[position:end] != view:
            return False
        position = end
    return position == whole.nbytes


# -- which requests fetch a set of byte ranges -------------------------------------------------------------------------
#
# Neighbouring ranges of one object cost less in one request than in several. Adapters perform the plan and the meter
# counts it. (obstore's own range merging panics when a merged range reaches past the object's end.) Every non-empty
# range lies inside exactly one request. A request is longer than its limit only if a single range is.


class RangeFetch(NamedTuple):
    """One request for bytes of one object."""

    byte_offset: int
    byte_length: int
    members: tuple[int, ...]
    """Positions, in the caller's sequence, of the ranges this fetch answers."""


class ObjectRange(NamedTuple):
    """Bytes of a named object; without a length, the whole object."""

    name: str
    byte_offset: int
    byte_length: int | None


class ObjectFetch(NamedTuple):
    """One request for bytes of a named object; without a length, for the whole object."""

    name: str
    byte_offset: int
    byte_length: int | None
    members: tuple[int, ...]
    """Positions, in the caller's sequence, of the ranges this fetch answers."""

    def part(self, answer: Buffer, wanted: ObjectRange) -> Buffer:
        """The bytes of one member, as a view of the answer."""
        if wanted.byte_length is None:
            return answer
        start = wanted.byte_offset - self.byte_offset
        return memoryview(answer)[start : start + wanted.byte_length]


def last_byte(ranges: Sequence[ByteRange]) -> int:
    """The length an object needs to hold all of these ranges."""
    return max((byte_offset + byte_length for byte_offset, byte_length in ranges), default=0)


def plan_fetches(
    ranges: Sequence[ByteRange],
    *,
    gap_bytes_max: int = OBJECT_RANGE_GAP_BYTES_MAX,
    fetch_bytes_max: int = OBJECT_FETCH_BYTES_MAX,
    spare_bytes: int | None = None,
) -> list[RangeFetch]:
    """Merge ranges that overlap or lie near each other. Empty ranges are in no fetch.

    `spare_bytes` limits the bytes of all gaps together that are fetched though not wanted.
    """
    wanted = sorted((r.byte_offset, r.byte_offset + r.byte_length, i) for i, r in enumerate(ranges) if r.byte_length)
    spare = sys.maxsize if spare_bytes is None else spare_bytes
    fetches: list[RangeFetch] = []
    members: list[int] = []
    start = end = 0
    for range_start, range_end, position in wanted:
        gap, grown = max(range_start - end, 0), max(end, range_end)
        too_far = gap > gap_bytes_max or gap > spare
        if members and (too_far or (range_end > end and grown - start > fetch_bytes_max)):
            fetches.append(RangeFetch(start, end - start, tuple(members)))
            members = []
        if members:
            spare -= gap
        else:
            start, grown = range_start, range_end
        end = grown
        members.append(position)
    if members:
        fetches.append(RangeFetch(start, end - start, tuple(members)))
    return fetches


def plan_object_fetches(
    wanted: Sequence[ObjectRange],
    *,
    gap_bytes_max: int = OBJECT_RANGE_GAP_BYTES_MAX,
    fetch_bytes_max: int = OBJECT_FETCH_BYTES_MAX,
    spare_bytes: int | None = None,
) -> list[ObjectFetch]:
    """`plan_fetches` for ranges of several objects. A whole object is a request of its own."""
    fetches: list[ObjectFetch] = []
    positions: dict[str, list[int]] = {}
    for position, (name, _, byte_length) in enumerate(wanted):
        if byte_length is None:
            fetches.append(ObjectFetch(name, 0, None, (position,)))
        else:
            positions.setdefault(name, []).append(position)
    for name, members in positions.items():
        ranges = [ByteRange(wanted[i].byte_offset, wanted[i].byte_length or 0) for i in members]
        planned = plan_fetches(
            ranges, gap_bytes_max=gap_bytes_max, fetch_bytes_max=fetch_bytes_max, spare_bytes=spare_bytes
        )
        if spare_bytes is not None:
            gaps = sum(fetch.byte_length for fetch in planned) - sum(r.byte_length for r in ranges)
            spare_bytes -= max(gaps, 0)
        fetches += [ObjectFetch(name, *fetch[:2], tuple(members[i] for i in fetch.members)) for fetch in planned]
    return fetches


def cut(fetch: RangeFetch, answer: Buffer, ranges: Sequence[ByteRange], into: list[Buffer]) -> None:
    """Store in `into`, for each range of the fetch, its view of `answer`."""
    view = memoryview(answer)
    for position in fetch.members:
        byte_offset, byte_length = ranges[position]
        start = byte_offset - fetch.byte_offset
        into[position] = view[start : start + byte_length]
