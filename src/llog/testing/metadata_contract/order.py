"""Claims about ordered reads: `ceiling` and `scan` see the direct children of one parent, in byte order."""

from __future__ import annotations

import bisect
import random

import pytest

from llog.errors import InvalidArgument
from llog.limits import METADATA_SCAN_PAGE_RECORDS_MAX
from llog.stores.metadata.port import Key, MetadataStore, Put, Record, after, last_segment
from llog.testing.metadata_contract.base import StoreClaims, below, names_of, versions_of

# In byte order of UTF-8. UTF-16 order would put 😀 before \ufffd, a locale's order é before f.
ORDERED_NAMES = [
    *("!", "-", "0", "00", "01", "1", "10", "2", ":", "@x", "A", "Z", "_", "a", "a b", "a!", "a-b", "a.b", "a0", "a:"),
    *("aa", "aaa", "ab", "b", "f", "z", "{", "~", "é", "ü", "ß" * 20, "日本", "日本語", "\ufffd", "😀", "😀a"),
]
ORDERED_NAMES.sort(key=str.encode)


async def fill(store: MetadataStore, root: str, paths: list[str]) -> None:
    """One record per path below `root`, with the path as its value."""
    for outcome in await store.write([(Put(below(root, path), path.encode()),) for path in paths]):
        versions_of(outcome)


class OrderClaims(StoreClaims):
    async def test_ceiling_finds_the_name_itself_or_the_next(self, store: MetadataStore, root: str) -> None:
        parent = below(root, "index")
        await fill(store, root, [f"index/{end:020d}" for end in (9, 19, 100)])
        for asked, found in ((0, 9), (9, 9), (10, 19), (19, 19), (20, 100), (100, 100)):
            record = await store.ceiling(parent, f"{asked:020d}")
            assert record is not None
            assert record.key == Key(f"{parent.path}/{found:020d}", root)
            assert record.value == f"index/{found:020d}".encode()
        assert await store.ceiling(parent, f"{101:020d}") is None

    async def test_ceiling_never_leaves_its_parent(self, store: MetadataStore, root: str) -> None:
        others = ["a", "a/a", "a/b", "a/b0", "a/b!", "a/b-", "a/bb", "a/b/c/d", "a/b/c/e/f", "a/c", "a/c/x", "b", "b/x"]
        await fill(store, root, others)
        parent = below(root, "a/b")
        assert await store.ceiling(parent, "") is None
        assert await store.scan(parent) == []
        await fill(store, root, ["a/b/m"])
        assert names_of(await store.scan(parent)) == ["m"]
        for name in ("", "!", "c", "m"):
            record = await store.ceiling(parent, name)
            assert record is not None
            assert record.key == below(root, "a/b/m")
        for name in ("m\x01", "m0", "n", "zzzz", "~", "\ufffd", "😀"):
            assert await store.ceiling(parent, name) is None

    async def test_scan_returns_direct_children_only(self, store: MetadataStore, root: str) -> None:
        await fill(store, root, ["p", "p/x", "p/x/deep", "p/x/deep/er", "p/y/only-deep", "p/z", "q"])
        assert names_of(await store.scan(below(root, "p"))) == ["x", "z"]
        assert names_of(await store.scan(below(root, "p/x"))) == ["deep"]
        assert names_of(await store.scan(below(root, "p/y"))) == ["only-deep"]
        assert names_of(await store.scan(Key(root, root))) == ["p", "q"]
        assert await store.scan(below(root, "nothing")) == []

    async def test_scan_is_in_byte_order(self, store: MetadataStore, root: str) -> None:
        shuffled = random.Random(1).sample(ORDERED_NAMES, len(ORDERED_NAMES))
        await fill(store, root, shuffled)
        assert names_of(await store.scan(Key(root, root))) == ORDERED_NAMES

    async def test_names_of_every_length_are_ordered(self, store: MetadataStore, root: str) -> None:
        lengths = (1, 2, 3, 7, 8, 9, 31, 32, 33, 127, 128, 255, 256, 400)
        names = sorted({letter * length for length in lengths for letter in "ab0"})
        await fill(store, root, names)
        assert names_of(await store.scan(Key(root, root))) == names
        for name in names:
            record = await store.ceiling(Key(root, root), name)
            assert record is not None
            assert last_segment(record.key.path) == name

    async def test_scan_bounds_take_the_start_and_leave_the_stop(self, store: MetadataStore, root: str) -> None:
        parent = Key(root, root)
        await fill(store, root, ["a", "b", "c", "d"])
        assert names_of(await store.scan(parent, start="b")) == ["b", "c", "d"]
        assert names_of(await store.scan(parent, start="b", stop="d")) == ["b", "c"]
        assert names_of(await store.scan(parent, stop="c")) == ["a", "b"]
        assert names_of(await store.scan(parent, start="b", limit=1)) == ["b"]
        assert names_of(await store.scan(parent, start="b!", stop="d!")) == ["c", "d"]
        assert await store.scan(parent, start="c", stop="c") == []
        assert await store.scan(parent, start="d", stop="a") == []
        assert await store.scan(parent, stop="") == []
        assert await store.scan(parent, start="e") == []

    async def test_scan_pages_meet_without_gap_or_repeat(self, store: MetadataStore, root: str) -> None:
        await fill(store, root, ORDERED_NAMES)
        found: list[str] = []
        start = ""
        while page := await store.scan(Key(root, root), start=start, limit=3):
            found += names_of(page)
            start = after(found[-1])
        assert found == ORDERED_NAMES

    async def test_scan_all_reads_past_one_page(self, store: MetadataStore, root: str) -> None:
        names = [f"{i:06d}" for i in range(2 * METADATA_SCAN_PAGE_RECORDS_MAX + 1)]
        await fill(store, root, names)
        assert len(await store.scan(Key(root, root))) == METADATA_SCAN_PAGE_RECORDS_MAX
        assert [last_segment(r.key.path) async for r in store.scan_all(Key(root, root))] == names
        bounded = store.scan_all(Key(root, root), start=names[5], stop=names[-5], strict=True)
        assert [last_segment(r.key.path) async for r in bounded] == names[5:-5]

    async def test_scan_returns_whole_records(self, store: MetadataStore, root: str) -> None:
        version = await store.put(below(root, "a"), b"value")
        assert await store.scan(Key(root, root)) == [Record(below(root, "a"), b"value", version)]

    async def test_a_deleted_child_is_passed_over(self, store: MetadataStore, root: str) -> None:
        await fill(store, root, ["a", "b", "c"])
        await store.delete(below(root, "b"))
        assert names_of(await store.scan(Key(root, root))) == ["a", "c"]
        record = await store.ceiling(Key(root, root), "b")
        assert record is not None
        assert record.key == below(root, "c")
        await store.delete(below(root, "c"))
        assert await store.ceiling(Key(root, root), "b") is None

    @pytest.mark.parametrize("limit", [0, -1, METADATA_SCAN_PAGE_RECORDS_MAX + 1])
    async def test_scan_refuses_a_page_outside_its_limits(self, store: MetadataStore, root: str, limit: int) -> None:
        with pytest.raises(InvalidArgument):
            await store.scan(Key(root, root), limit=limit)

    @pytest.mark.parametrize("bound", ["a/b", "/", "a\x00", "a\ud800"], ids=repr)
    async def test_scan_refuses_bounds_no_name_can_have(self, store: MetadataStore, root: str, bound: str) -> None:
        with pytest.raises(InvalidArgument):
            await store.scan(Key(root, root), start=bound)
        with pytest.raises(InvalidArgument):
            await store.scan(Key(root, root), stop=bound)
        with pytest.raises(InvalidArgument):
            await store.ceiling(Key(root, root), bound)

    async def test_scan_without_a_route_asks_every_shard(self, store: MetadataStore, root: str) -> None:
        keys = [Key(f"{root}/{i:02d}", f"route-{i}") for i in range(20)]
        for outcome in await store.write([(Put(key, b"value"),) for key in keys]):
            versions_of(outcome)
        assert [record.key.path for record in await store.scan(Key(root))] == [key.path for key in keys]
        assert names_of(await store.scan(Key(root), start="07", limit=2)) == ["07", "08"]
        found = await store.get_many(keys)
        assert [record.key for record in found if record is not None] == keys

    async def test_a_path_without_a_route_is_found_again(self, store: MetadataStore, root: str) -> None:
        key = Key(f"{root}/self-routed")
        version = await store.put(key, b"value")
        assert await store.get(key) == Record(key, b"value", version)
        assert names_of(await store.scan(Key(root))) == ["self-routed"]
        with_own_name = await store.get(Key(key.path, key.path))
        assert with_own_name is not None
        assert with_own_name.version == version

    async def test_scan_tree_returns_the_whole_tree_and_nothing_beside_it(
        self, store: MetadataStore, root: str
    ) -> None:
        inside = ["t", "t/a", "t/a/b", "t/a/b/c/d/e", "t/é", "t/zz"]
        await fill(store, root, [*inside, "s", "t!", "t0", "ta", "tt/a", "u"])
        found = [record async for record in store.scan_tree(f"{root}/t")]
        assert sorted(record.key.path for record in found) == sorted(f"{root}/{path}" for path in inside)
        for record in found:
            assert record.value == record.key.path.removeprefix(f"{root}/").encode()
        everything = {record.key.path async for record in store.scan_tree("")}
        assert {f"{root}/{path}" for path in inside} < everything

    async def test_scan_tree_reads_past_one_page(self, store: MetadataStore, root: str) -> None:
        paths = [f"{i % 7}/{i:05d}" for i in range(METADATA_SCAN_PAGE_RECORDS_MAX * 2 + 1)]
        await fill(store, root, paths)
        found = [record.key.path async for record in store.scan_tree(root)]
        assert len(found) == len(paths)
        assert set(found) == {f"{root}/{path}" for path in paths}

    async def test_random_ceilings_agree_with_a_sorted_list(self, store: MetadataStore, root: str) -> None:
        rng = random.Random(7)
        alphabet = "ab0_é日😀"
        names = sorted({"".join(rng.choices(alphabet, k=rng.randint(1, 6))) for _ in range(300)}, key=str.encode)
        encoded = [name.encode() for name in names]
        await fill(store, root, [*names, *(f"{name}/deeper" for name in names[::3])])
        for _ in range(100):
            asked = "".join(rng.choices(alphabet, k=rng.randint(0, 7)))
            position = bisect.bisect_left(encoded, asked.encode())
            record = await store.ceiling(Key(root, root), asked)
            found = None if record is None else last_segment(record.key.path)
            assert found == (names[position] if position < len(names) else None), f"ceiling of {asked!r}"
