"""The entries that a segment replaces go together where the store can, one by one where it cannot."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from llog.log.keys import Log
from llog.log.rewrite import publish
from llog.pipeline.compact.once import compact_once
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.metadata.port import Delete, GroupOutcome, Put, Write
from tests.unit.pipeline.compact.compact_stage import Stage, entries_of, records_of

ORDERS = Log("orders", 0)


class Watching(MemoryStore):
    """Notes the groups of deletes of index entries; changes one of the entries just before the first of them."""

    def __init__(self, backing: MemoryBacking, *, meddling: bool = False) -> None:
        super().__init__(backing)
        self.deleted: list[int] = []
        self._meddling = meddling

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        for group in groups:
            deletes = [write for write in group if isinstance(write, Delete) and "/index/" in write.key.path]
            if deletes:
                self.deleted.append(len(deletes))
                await self._meddle(deletes[len(deletes) // 2])
        return await super().write(groups)

    async def _meddle(self, delete: Delete) -> None:
        if self._meddling:
            self._meddling = False
            found = await self.get(delete.key)
            assert found is not None
            await super().write([[Put(found.key, found.value)]])


@pytest.mark.parametrize(("atomic", "deleted"), [(True, [4, 4, 1]), (False, [1] * 9)])
async def test_replaced_entries_go_in_groups_where_groups_are_atomic(
    monkeypatch: pytest.MonkeyPatch, atomic: bool, deleted: list[int]
) -> None:
    monkeypatch.setattr(publish, "LOG_DELETES_PER_GROUP_MAX", 4)
    stage = Stage(atomic=atomic)
    for _ in range(10):
        await stage.append(ORDERS)
    store = Watching(stage.backing)
    assert await compact_once(stage.open(store), ORDERS) is not None
    assert store.deleted == deleted
    assert [entry.value.type for entry in await entries_of(stage.context, ORDERS)] == ["COMPACTED"]


async def test_an_entry_that_changes_just_then_is_deleted_all_the_same() -> None:
    stage = Stage()
    for _ in range(10):
        await stage.append(ORDERS)
    store = Watching(stage.backing, meddling=True)
    assert await compact_once(stage.open(store), ORDERS) is not None
    # The group is refused; those above the changed one go, it is refused too; seen again, the rest goes together.
    assert store.deleted == [9, 1, 1, 1, 1, 1, 5]
    assert [entry.value.type for entry in await entries_of(stage.context, ORDERS)] == ["COMPACTED"]
    assert [record.payload for record in await records_of(stage.context, ORDERS)] == stage.appended[ORDERS]
