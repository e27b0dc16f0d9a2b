"""A wrapper that changes nothing is the store it wraps; one that changes a call has changed what is made of it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from llog.stores.metadata.memory import MemoryStore
from llog.stores.metadata.port import GroupOutcome, Key, MetadataStore, Record, Write
from llog.stores.metadata.wrappers import ForwardingMetadataStore
from tests.contract.test_metadata_memory import MemoryContract

KEY = Key("a/b", "a")


class TestForwardingStore(MemoryContract):
    def wrapped(self, store: MetadataStore) -> MetadataStore:
        return ForwardingMetadataStore(store)


class Seen(ForwardingMetadataStore):
    """Counts the calls that everything else is made of."""

    reads = writes = 0

    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        self.reads += 1
        return await super().get_many(keys, strict=strict)

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        self.writes += 1
        return await super().write(groups)


async def test_put_and_delete_go_through_the_wrappers_own_write_and_get_through_its_reads() -> None:
    async with Seen(MemoryStore()) as store:
        version = await store.put(KEY, b"1")
        await store.delete(KEY, expected=version)
        assert await store.get(KEY) is None
        assert (store.reads, store.writes) == (1, 2)


def test_nothing_of_the_port_is_left_to_its_defaults_but_what_is_made_of_other_calls() -> None:
    made_of_others = {"get", "ceiling", "scan_all", "put", "delete"}
    public = {name for name, _ in inspect.getmembers(MetadataStore, inspect.isfunction) if not name.startswith("_")}
    assert public - made_of_others == public & vars(ForwardingMetadataStore).keys()
