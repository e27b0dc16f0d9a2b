"""The contract of an object store as tests: inherit, provide the fixture `store`, and run pytest.

    class TestMyStore(ObjectStoreContract):
        @pytest.fixture
        async def store(self) -> AsyncIterator[ObjectStore]:
            async with MyStore(...) as store:
                yield store

The log relies on the promises of `llog.stores.objects.port` alone, so every adapter and wrapper, also of another
package, is held to the same ones. A store may keep its objects between tests: every test uses its own names.
"""

from __future__ import annotations

import array
import asyncio
import itertools
import os
import time
import uuid
from collections.abc import Sequence

import pytest

from llog.errors import (
    InvalidArgument,
    ObjectAlreadyExists,
    ObjectNotFound,
    ObjectRangeInvalid,
    StoreClosed,
    ValueTooLarge,
)
from llog.limits import MIB, OBJECT_BYTES_MAX, OBJECT_NAME_BYTES_MAX, OBJECT_RANGES_MAX
from llog.stores.objects.port import Buffer, ByteRange, ObjectStore

SOAK = os.environ.get("LLOG_SOAK") == "1"


async def names_of(store: ObjectStore, prefix: str, start_after: str = "") -> list[str]:
    return [meta.name async for meta in store.list(prefix, start_after=start_after)]


async def put_all(store: ObjectStore, names: Sequence[str]) -> None:
    """Small objects that hold their own name; a few at a time, as a patient client would."""
    for first in range(0, len(names), 16):
        await asyncio.gather(*(store.put(name, [name.encode()]) for name in names[first : first + 16]))


class ObjectStoreContract:
    """Inherited by a test class per store; see the module's docstring."""

    many_objects: int = 1_050 if SOAK else 130
    """More than a page in a soak run; a subclass of a cheap store may always ask for more."""

    @pytest.fixture
    def root(self) -> str:
        """A directory of this test's own."""
        return f"contract-{uuid.uuid4().hex}"

    # --- put and get -------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "buffers",
        [
            [],
            [b""],
            [b"whole"],
            [b"", b"a", b"", b"bc", b""],
            [b"bytes", bytearray(b"bytearray"), memoryview(b"view")],
            [memoryview(b"0123456789")[3:7]],
            [memoryview(array.array("i", range(100))), b"|", memoryview(array.array("d", [0.5, 2.5]))],
            [memoryview(b"0123456789")[::2], b"tail"],
            [memoryview(bytes(range(24))).cast("B", (2, 3, 4))],
        ],
        ids=["none", "one empty", "one", "some empty", "types", "slice", "item types", "strided", "many dimensions"],
    )
    async def test_put_stores_the_concatenation_of_its_buffers(
        self, store: ObjectStore, root: str, buffers: list[Buffer]
    ) -> None:
        expected = b"".join(memoryview(b).tobytes() for b in buffers)
        await store.put(f"{root}/a", buffers)
        assert bytes(await store.get(f"{root}/a")) == expected
        assert (await store.head(f"{root}/a")).byte_length == len(expected)

    async def test_put_takes_more_buffers_than_one_system_call_does(self, store: ObjectStore, root: str) -> None:
        buffers = [i.to_bytes(4, "big") * (i % 7) for i in range(1_500)]
        await store.put(f"{root}/a", buffers)
        assert bytes(await store.get(f"{root}/a")) == b"".join(buffers)

    async def test_put_of_8_mib_comes_back_whole(self, store: ObjectStore, root: str) -> None:
        block = os.urandom(64 * 1024)
        await store.put(f"{root}/a", [block] * 128)
        stored = memoryview(await store.get(f"{root}/a"))
        assert stored.nbytes == 8 * MIB
        assert all(stored[i * len(block) : (i + 1) * len(block)] == block for i in range(128))

    async def test_put_does_not_keep_the_buffers(self, store: ObjectStore, root: str) -> None:
        buffer = bytearray(b"before")
        await store.put(f"{root}/a", [buffer])
        buffer[:] = b"after!"
        buffer.extend(b"more")
        assert bytes(await store.get(f"{root}/a")) == b"before"

    async def test_put_without_a_condition_replaces_the_object(self, store: ObjectStore, root: str) -> None:
        await store.put(f"{root}/a", [b"first, and longer"])
        await store.put(f"{root}/a", [b"second"])
        assert bytes(await store.get(f"{root}/a")) == b"second"

    async def test_a_reader_sees_the_old_or_the_new_object_never_a_mixture(self, store: ObjectStore, root: str) -> None:
        name, rounds = f"{root}/a", 40 if SOAK else 10
        await store.put(name, [b"0" * 100_000])

        async def write() -> None:
            for i in range(rounds):
                await store.put(name, [bytes([48 + i % 10]) * (100_000 + i)])

        writer = asyncio.create_task(write())
        while not writer.done():
            seen = bytes(await store.get(name))
            assert len(seen) >= 100_000
            assert len(set(seen)) == 1
            await asyncio.sleep(0)  # a store in memory answers without giving way
        await writer

    async def test_an_object_larger_than_the_limit_is_refused(self, store: ObjectStore, root: str) -> None:
        block = memoryview(bytes(64 * MIB))
        with pytest.raises(ValueTooLarge):
            await store.put(f"{root}/a", [block] * (OBJECT_BYTES_MAX // block.nbytes + 1))

    # --- if_absent ---------------------------------------------------------------------------------------------

    async def test_put_if_absent_refuses_to_replace(self, store: ObjectStore, root: str) -> None:
        await store.put(f"{root}/a", [b"first"], if_absent=True)
        with pytest.raises(ObjectAlreadyExists):
            await store.put(f"{root}/a", [b"second"], if_absent=True)
        assert bytes(await store.get(f"{root}/a")) == b"first"

    async def test_of_20_concurrent_puts_if_absent_exactly_one_wins(self, store: ObjectStore, root: str) -> None:
        for round_number in range(20 if SOAK else 3):
            name = f"{root}/{round_number}"
            outcomes = await asyncio.gather(
                *(store.put(name, [b"writer %d" % i], if_absent=True) for i in range(20)), return_exceptions=True
            )
            winners = [i for i, outcome in enumerate(outcomes) if outcome is None]
            assert len(winners) == 1, outcomes
            assert all(isinstance(o, ObjectAlreadyExists) for o in outcomes if o is not None)
            assert bytes(await store.get(name)) == b"writer %d" % winners[0]

    async def test_a_deleted_name_is_absent_again(self, store: ObjectStore, root: str) -> None:
        await store.put(f"{root}/a", [b"first"], if_absent=True)
        await store.delete(f"{root}/a")
        await store.put(f"{root}/a", [b"second"], if_absent=True)
        assert bytes(await store.get(f"{root}/a")) == b"second"

    # --- ranges ------------------------------------------------------------------------------------------------

    async def test_ranges_come_exact_and_in_the_order_asked(self, store: ObjectStore, root: str) -> None:
        content = os.urandom(400_000)
        await store.put(f"{root}/a", [content])
        ranges = [
            ByteRange(399_999, 1),
            ByteRange(0, 400_000),
            ByteRange(10, 20),
            ByteRange(15, 20),
            ByteRange(10, 20),
            ByteRange(350_000, 50_000),
            ByteRange(7, 0),
        ]
        parts = await store.get_ranges(f"{root}/a", ranges)
        assert [bytes(p) for p in parts] == [content[o : o + n] for o, n in ranges]

    async def test_many_ranges_are_answered(self, store: ObjectStore, root: str) -> None:
        content = os.urandom(600_000)
        await store.put(f"{root}/a", [content])
        # Far apart at first, then near each other: some are merged, some are not.
        ranges = [ByteRange(i * 150_000, 10) for i in range(4)] + [ByteRange(i * 500, 100) for i in range(1_000)]
        parts = await store.get_ranges(f"{root}/a", ranges)
        assert [bytes(p) for p in parts] == [content[o : o + n] for o, n in ranges]

    async def test_one_range_is_one_buffer(self, store: ObjectStore, root: str) -> None:
        await store.put(f"{root}/a", [b"0123456789"])
        assert bytes(await store.get_range(f"{root}/a", 2, 3)) == b"234"
        assert bytes(await store.get_range(f"{root}/a", 0, 10)) == b"0123456789"
        assert bytes(await store.get_range(f"{root}/a", 10, 0)) == b""
        assert await store.get_ranges(f"{root}/a", []) == []

    @pytest.mark.parametrize(
        "ranges",
        [
            [ByteRange(5, 6)],
            [ByteRange(10, 1)],
            [ByteRange(11, 0)],
            [ByteRange(1_000_000, 5)],
            [ByteRange(0, 5), ByteRange(20, 5)],
            [ByteRange(0, 5), ByteRange(8, 5)],
            [ByteRange(0, 10), ByteRange(1_000_000, 5)],
        ],
        ids=["over the end", "at the end", "empty beyond", "far", "second beyond", "second over", "second far"],
    )
    async def test_a_range_outside_the_object_is_refused_not_shortened(
        self, store: ObjectStore, root: str, ranges: list[ByteRange]
    ) -> None:
        await store.put(f"{root}/a", [b"0123456789"])
        with pytest.raises(ObjectRangeInvalid):
            await store.get_ranges(f"{root}/a", ranges)

    async def test_a_negative_range_is_an_invalid_argument(self, store: ObjectStore, root: str) -> None:
        await store.put(f"{root}/a", [b"0123456789"])
        for byte_offset, byte_length in ((-1, 5), (0, -1)):
            with pytest.raises(InvalidArgument):
                await store.get_range(f"{root}/a", byte_offset, byte_length)
        with pytest.raises(InvalidArgument):
            await store.get_tail(f"{root}/a", -1)

    async def test_more_ranges_than_the_limit_are_refused(self, store: ObjectStore, root: str) -> None:
        await store.put(f"{root}/a", [b"0123456789"])
        with pytest.raises(InvalidArgument):
            await store.get_ranges(f"{root}/a", [ByteRange(0, 1)] * (OBJECT_RANGES_MAX + 1))

    async def test_the_tail_comes_with_the_whole_length(self, store: ObjectStore, root: str) -> None:
        await store.put(f"{root}/a", [b"0123456789"])
        for asked, expected in ((3, b"789"), (10, b"0123456789"), (1_000, b"0123456789"), (0, b"")):
            tail, whole_length = await store.get_tail(f"{root}/a", asked)
            assert (bytes(tail), whole_length) == (expected, 10)

    async def test_the_tail_of_an_empty_object_is_empty(self, store: ObjectStore, root: str) -> None:
        await store.put(f"{root}/a", [])
        tail, whole_length = await store.get_tail(f"{root}/a", 100)
        assert (bytes(tail), whole_length) == (b"", 0)

    # --- head and absence --------------------------------------------------------------------------------------

    async def test_head_tells_length_and_time(self, store: ObjectStore, root: str) -> None:
        await store.put(f"{root}/a", [b"12345"])
        meta = await store.head(f"{root}/a")
        assert (meta.name, meta.byte_length) == (f"{root}/a", 5)
        # Stores round to seconds, and their clock is not ours.
        assert abs(meta.last_modified_ms - time.time() * 1000) < 60_000
        assert [m.byte_length async for m in store.list(f"{root}/")] == [5]

    async def test_what_is_not_there_is_not_found_by_any_read(self, store: ObjectStore, root: str) -> None:
        await store.put(f"{root}/a/b", [b"x"])
        # A name never written, one below an object, and one that is only a prefix of others.
        for name in (f"{root}/missing", f"{root}/a/b/c", f"{root}/a"):
            with pytest.raises(ObjectNotFound):
                await store.get(name)
            with pytest.raises(ObjectNotFound):
                await store.get_range(name, 0, 1)
            with pytest.raises(ObjectNotFound):
                await store.get_tail(name, 1)
            with pytest.raises(ObjectNotFound):
                await store.head(name)

    # --- list --------------------------------------------------------------------------------------------------

    async def test_names_are_listed_in_the_byte_order_of_whole_names(self, store: ObjectStore, root: str) -> None:
        tails = [
            "a-b",
            "a/b",
            "a.b",
            "a0",
            "aa",
            "a/b-c",
            "a-b.d/e",
            "A",
            "a b",
            "b/c/d/e",
            "b/c-d",
            "b/c.d",
            "ä/ü",
            "日本",
        ]
        await put_all(store, [f"{root}/{tail}" for tail in tails])
        listed = await names_of(store, f"{root}/")
        assert listed == sorted((f"{root}/{t}" for t in tails), key=lambda name: name.encode())

    async def test_a_prefix_is_any_beginning_of_a_name(self, store: ObjectStore, root: str) -> None:
        tails = ["ab/1", "ab/2", "abc", "ab-c/1", "ac", "b"]
        await put_all(store, [f"{root}/{tail}" for tail in tails])
        for prefix in (
            "",
            "a",
            "ab",
            "ab/",
            "ab/1",
            "ab-",
            "ac",
            "b",
            "zz",
            "ab/1/",
            "ab//",
            "a\n",
            "./",
            "../",
            "0",
            "\0",
        ):
            expected = sorted(f"{root}/{t}" for t in tails if t.startswith(prefix))
            assert await names_of(store, f"{root}/{prefix}") == expected, prefix
        assert await names_of(store, root) == sorted(f"{root}/{t}" for t in tails)
        assert await names_of(store, root[:-1]) == sorted(f"{root}/{t}" for t in tails)

    async def test_a_listing_starts_after_any_given_name(self, store: ObjectStore, root: str) -> None:
        tails = ["a-b", "a/b", "a/c", "a0", "b/a", "b/c", "c"]
        names = sorted(f"{root}/{t}" for t in tails)
        await put_all(store, names)
        absent = ["", "a", "a/", "a/b/", "a/bb", "a/~", "b", "b/", "b/b", "c0", "zz", "a//b", "./x", "\n"]
        for tail, prefix in itertools.product([*tails, *absent], ("", "a", "a/", "b/")):
            expected = [n for n in names if n.startswith(f"{root}/{prefix}") and n > f"{root}/{tail}"]
            assert await names_of(store, f"{root}/{prefix}", f"{root}/{tail}") == expected, (tail, prefix)

    async def test_a_long_listing_is_complete_and_can_be_resumed(self, store: ObjectStore, root: str) -> None:
        names = [f"{root}/{i % 3}/{i:05d}" for i in range(self.many_objects)]
        await put_all(store, names)
        names.sort()
        assert await names_of(store, f"{root}/") == names
        middle = names[len(names) // 2]
        assert await names_of(store, f"{root}/", middle) == names[len(names) // 2 + 1 :]
        seen = []
        async for meta in store.list(f"{root}/"):
            seen.append(meta.name)
            if len(seen) == 5:
                break
        assert seen == names[:5]
        await store.delete_many(names)
        assert await names_of(store, f"{root}/") == []

    # --- delete ------------------------------------------------------------------------------------------------

    async def test_deleting_what_is_not_there_is_fine(self, store: ObjectStore, root: str) -> None:
        await put_all(store, [f"{root}/a", f"{root}/b", f"{root}/d/e"])
        await store.delete_many([f"{root}/missing", f"{root}/a", f"{root}/no/such/object", f"{root}/b/c", f"{root}/d"])
        await store.delete(f"{root}/a")
        await store.delete_many([])
        assert await names_of(store, f"{root}/") == [f"{root}/b", f"{root}/d/e"]

    async def test_more_names_than_one_request_takes_can_be_deleted(self, store: ObjectStore, root: str) -> None:
        kept, doomed = f"{root}/kept", [f"{root}/{i}" for i in range(3)]
        await put_all(store, [kept, *doomed])
        await store.delete_many([*(f"{root}/absent-{i}" for i in range(1_100)), *doomed])
        assert await names_of(store, f"{root}/") == [kept]

    # --- names -------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "name", ["", "/a", "a/", "a//b", ".", "a/../b", "./a", "a\nb", "a\0b", "\ud800", "x" * 1_001]
    )
    async def test_a_name_that_cannot_be_kept_is_refused_everywhere(self, store: ObjectStore, name: str) -> None:
        with pytest.raises(InvalidArgument):
            await store.put(name, [b"x"])
        with pytest.raises(InvalidArgument):
            await store.get(name)
        with pytest.raises(InvalidArgument):
            await store.get_range(name, 0, 1)
        with pytest.raises(InvalidArgument):
            await store.get_tail(name, 1)
        with pytest.raises(InvalidArgument):
            await store.head(name)
        with pytest.raises(InvalidArgument):
            await store.delete(name)
        with pytest.raises(InvalidArgument):
            store.uri(name)

    async def test_any_printable_name_is_kept_as_it_is(self, store: ObjectStore, root: str) -> None:
        tails = [
            "a b",
            "a%20b",
            "a%b",
            "ä/ü",
            "日本語",
            "\U0001f600",
            'a"b',
            "a'b",
            "a&b<c>",
            "a+b=c",
            "a?b#c",
            "a*~^`|{}[]@:;,!$()",
        ]
        longest = f"{root}/" + "/".join(["x" * 200] * 4)
        longest += "/" + "y" * (OBJECT_NAME_BYTES_MAX - len(longest) - 1)
        names = [*(f"{root}/{tail}" for tail in tails), longest]
        await put_all(store, names)
        assert await names_of(store, f"{root}/") == sorted(names)
        for name in names:
            assert bytes(await store.get(name)) == name.encode()
            assert (await store.head(name)).name == name
        await store.delete_many(names)
        assert await names_of(store, f"{root}/") == []

    async def test_uri_and_name_are_two_ways_to_say_the_same(self, store: ObjectStore, root: str) -> None:
        for tail in ("a", "a/b", "ä b%20"):
            uri = store.uri(f"{root}/{tail}")
            assert uri.startswith(f"{store.kind}://")
            assert store.name_of(uri) == f"{root}/{tail}"
        with pytest.raises(InvalidArgument):
            store.name_of("s3://another-bucket-than-this/a")
        with pytest.raises(InvalidArgument):
            store.name_of(store.url + "-not/a")

    # --- closing -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("writing", [True, False])
    async def test_check_passes_on_a_usable_store_and_leaves_nothing(self, store: ObjectStore, writing: bool) -> None:
        before = await names_of(store, "")
        await store.check(writing=writing)
        assert await names_of(store, "") == before

    async def test_a_closed_store_says_so(self, store: ObjectStore, root: str) -> None:
        await store.put(f"{root}/a", [b"x"])
        await store.close()
        await store.close()
        with pytest.raises(StoreClosed):
            await store.put(f"{root}/b", [b"x"])
        with pytest.raises(StoreClosed):
            await store.get(f"{root}/a")
        with pytest.raises(StoreClosed):
            await store.get_ranges(f"{root}/a", [ByteRange(0, 1)])
        with pytest.raises(StoreClosed):
            await store.get_tail(f"{root}/a", 1)
        with pytest.raises(StoreClosed):
            await store.head(f"{root}/a")
        with pytest.raises(StoreClosed):
            await names_of(store, root)
        with pytest.raises(StoreClosed):
            await store.delete(f"{root}/a")
        with pytest.raises(StoreClosed):
            await store.check()
