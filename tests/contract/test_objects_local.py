"""The object contract on the stores that need no server: memory and a directory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from llog.errors import InvalidArgument
from llog.stores.objects import file, memory
from llog.stores.objects.port import ObjectStore, checked
from llog.testing.object_contract import ObjectStoreContract


class TestMemory(ObjectStoreContract):
    many_objects = 2_100

    @pytest.fixture
    async def store(self) -> AsyncIterator[ObjectStore]:
        url = f"memory://{uuid4().hex}"
        async with await memory.open_from_url(url) as store:
            yield store
        memory.forget(url)


class TestFile(ObjectStoreContract):
    # More than a page; each object costs two syncs.
    many_objects = 1_050

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ObjectStore]:
        async with await checked(await file.open_from_url(f"file://{tmp_path}/objects")) as store:
            yield store

    async def test_a_name_below_an_object_is_refused(self, store: ObjectStore) -> None:
        await store.put("a", [b"x"])
        await store.put("d/e", [b"x"])
        for name in ("a/b", "d"):
            for if_absent in (False, True):
                with pytest.raises(InvalidArgument):
                    await store.put(name, [b"x"], if_absent=if_absent)
        assert [m.name async for m in store.list()] == ["a", "d/e"]
