"""Claims about plain reads: what comes back, in which order, how fresh."""

from __future__ import annotations

import pytest

from llog.errors import InvalidArgument
from llog.limits import METADATA_GET_MANY_MAX, METADATA_KEY_BYTES_MAX, METADATA_KEY_DEPTH_MAX
from llog.stores.metadata.port import Key, MetadataStore, Put, Record
from llog.testing.metadata_contract.base import OpenStore, StoreClaims, below, versions_of

BAD_PATHS = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    "a\x00b",
    "a\nb",
    "a\x01",
    "a\x7f",
    "a\ud800",
    "__oxia/a",
    "ü" * (METADATA_KEY_BYTES_MAX // 2 + 1),
    "a" * (METADATA_KEY_BYTES_MAX + 1),
    "/".join("a" * (METADATA_KEY_DEPTH_MAX + 1)),
]


class ReadClaims(StoreClaims):
    async def test_a_missing_key_reads_as_none(self, store: MetadataStore, root: str) -> None:
        assert await store.get(below(root, "missing")) is None
        assert await store.get(below(root, "missing"), strict=True) is None

    async def test_get_returns_what_put_wrote(self, store: MetadataStore, root: str) -> None:
        key = below(root, "a")
        version = await store.put(key, b"value")
        assert await store.get(key) == Record(key, b"value", version, False)
        assert await store.get(key, strict=True) == Record(key, b"value", version, False)

    async def test_get_many_answers_in_the_order_asked(self, store: MetadataStore, root: str) -> None:
        present = [below(root, f"{i:05d}") for i in range(0, 3_000, 2)]
        outcomes = await store.write([(Put(key, key.path.encode()),) for key in present])
        version = {key: versions_of(outcome)[0] for key, outcome in zip(present, outcomes, strict=True)}
        asked = [below(root, f"{i:05d}") for i in reversed(range(3_000))]
        for strict in (False, True):
            found = await store.get_many(asked, strict=strict)
            assert len(found) == len(asked)
            for key, record in zip(asked, found, strict=True):
                expected = Record(key, key.path.encode(), version[key]) if key in version else None
                assert record == expected

    async def test_get_many_may_name_a_key_twice(self, store: MetadataStore, root: str) -> None:
        key = below(root, "a")
        await store.put(key, b"1")
        first, missing, second = await store.get_many([key, below(root, "b"), key])
        assert first is not None
        assert first == second
        assert missing is None

    async def test_get_many_of_nothing_is_nothing(self, store: MetadataStore) -> None:
        assert await store.get_many([]) == []

    async def test_get_many_refuses_more_keys_than_its_limit(self, store: MetadataStore, root: str) -> None:
        keys = [below(root, str(i)) for i in range(METADATA_GET_MANY_MAX + 1)]
        with pytest.raises(InvalidArgument):
            await store.get_many(keys)

    async def test_a_strict_read_sees_another_clients_write(self, open_store: OpenStore, root: str) -> None:
        one, two = await open_store(), await open_store()
        key = below(root, "a")
        for i in range(20):
            writer, reader = (one, two) if i % 2 else (two, one)
            version = await writer.put(key, str(i).encode())
            assert await reader.get(key, strict=True) == Record(key, str(i).encode(), version)
            assert await reader.scan(Key(root, root), strict=True) == [Record(key, str(i).encode(), version)]
            assert await reader.ceiling(Key(root, root), "", strict=True) == Record(key, str(i).encode(), version)

    @pytest.mark.parametrize("path", BAD_PATHS, ids=lambda path: repr(path[:12]))
    async def test_a_bad_key_is_refused_everywhere(self, store: MetadataStore, path: str) -> None:
        key = Key(path, "route")
        with pytest.raises(InvalidArgument):
            await store.get(key)
        with pytest.raises(InvalidArgument):
            await store.put(key, b"value")
        with pytest.raises(InvalidArgument):
            await store.delete(key)
        with pytest.raises(InvalidArgument):
            await store.scan(key)
        with pytest.raises(InvalidArgument):
            await store.ceiling(key, "a")

    async def test_the_longest_and_the_deepest_key_are_held(self, store: MetadataStore, root: str) -> None:
        longest = below(root, "x" * (METADATA_KEY_BYTES_MAX - len(root) - 1))
        deepest = below(root, *("d" * (METADATA_KEY_DEPTH_MAX - root.count("/") - 1)))
        for key in (longest, deepest):
            version = await store.put(key, b"value")
            assert await store.get(key) == Record(key, b"value", version)
            parent, _, name = key.path.rpartition("/")
            assert await store.ceiling(Key(parent, root), name) == Record(key, b"value", version)
