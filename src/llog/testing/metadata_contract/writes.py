"""Claims about writes: conditions, versions, groups, sizes, and many writers at once."""

from __future__ import annotations

import asyncio

import pytest

from llog.errors import InvalidArgument, ValueTooLarge, VersionConflict
from llog.limits import METADATA_VALUE_BYTES_MAX, METADATA_WRITE_GROUPS_MAX, MIB
from llog.stores.metadata.port import ABSENT, Delete, Key, MetadataStore, Put, Record, Write
from llog.testing.metadata_contract.base import SOAK, OpenStore, StoreClaims, below, in_time, versions_of
from llog.testing.model_check import STEPS, check_agreement

MANY_KEYS = 100_000 if SOAK else 10_000
BATCH = 2_000


async def value_at(store: MetadataStore, key: Key) -> bytes | None:
    record = await store.get(key, strict=True)
    return None if record is None else record.value


class WriteClaims(StoreClaims):
    # -- one record -----------------------------------------------------------------------------------------------
    async def test_put_creates_and_replaces(self, store: MetadataStore, root: str) -> None:
        key = below(root, "a")
        first = await store.put(key, b"1")
        second = await store.put(key, b"2")
        assert 0 <= first < second
        assert await store.get(key) == Record(key, b"2", second)

    async def test_put_if_absent_creates_once(self, store: MetadataStore, root: str) -> None:
        key = below(root, "a")
        version = await store.put(key, b"1", expected=ABSENT)
        with pytest.raises(VersionConflict) as conflict:
            await store.put(key, b"2", expected=ABSENT)
        assert conflict.value.expected == ABSENT
        assert await store.get(key, strict=True) == Record(key, b"1", version)

    async def test_put_at_a_version_replaces_only_that_version(self, store: MetadataStore, root: str) -> None:
        key = below(root, "a")
        old = await store.put(key, b"1")
        new = await store.put(key, b"2", expected=old)
        assert new > old
        for wrong in (old, new + 1, new + 1_000_000):
            with pytest.raises(VersionConflict) as conflict:
                await store.put(key, b"3", expected=wrong)
            assert conflict.value.expected == wrong
        assert await store.get(key, strict=True) == Record(key, b"2", new)

    async def test_put_at_a_version_needs_a_record(self, store: MetadataStore, root: str) -> None:
        elsewhere = await store.put(below(root, "b"), b"1")
        for version in (0, 1, elsewhere):
            with pytest.raises(VersionConflict):
                await store.put(below(root, "a"), b"1", expected=version)
        assert await store.get(below(root, "a"), strict=True) is None

    async def test_delete_removes_the_record(self, store: MetadataStore, root: str) -> None:
        key = below(root, "a")
        await store.put(key, b"1")
        await store.delete(key)
        assert await store.get(key, strict=True) is None
        await store.delete(key)

    async def test_delete_at_a_version_removes_only_that_version(self, store: MetadataStore, root: str) -> None:
        key = below(root, "a")
        old = await store.put(key, b"1")
        new = await store.put(key, b"2")
        for wrong in (old, new + 1):
            with pytest.raises(VersionConflict):
                await store.delete(key, expected=wrong)
        assert await store.get(key, strict=True) == Record(key, b"2", new)
        await store.delete(key, expected=new)
        assert await store.get(key, strict=True) is None
        with pytest.raises(VersionConflict):
            await store.delete(key, expected=new)

    async def test_versions_never_come_back_after_a_delete(self, store: MetadataStore, root: str) -> None:
        key = below(root, "a")
        versions = []
        for i in range(10):
            versions.append(await store.put(key, str(i).encode(), expected=ABSENT))
            await store.delete(key, expected=versions[-1])
        assert versions == sorted(set(versions))
        for version in versions:
            with pytest.raises(VersionConflict):
                await store.put(key, b"late", expected=version)

    async def test_versions_never_come_back_after_reopening(self, open_store: OpenStore, root: str) -> None:
        key = below(root, "a")
        highest = -1
        for _ in range(3):
            store = await open_store()
            version = await store.put(key, b"1", expected=ABSENT)
            assert version > highest
            highest = version
            await store.delete(key, expected=version)
            await store.close()

    async def test_what_was_written_is_there_after_reopening(self, open_store: OpenStore, root: str) -> None:
        first = await open_store()
        version = await first.put(below(root, "a"), b"kept")
        await first.close()
        second = await open_store()
        assert await second.get(below(root, "a")) == Record(below(root, "a"), b"kept", version)

    # -- values ---------------------------------------------------------------------------------------------------
    async def test_values_keep_every_byte(self, store: MetadataStore, root: str) -> None:
        for i, value in enumerate((bytes(range(256)) * 4, b"\x00", bytes(1_000), b"\xff", b" ")):
            await store.put(below(root, str(i)), value)
            assert await value_at(store, below(root, str(i))) == value

    async def test_the_largest_value_fits_and_one_byte_more_does_not(self, store: MetadataStore, root: str) -> None:
        largest = bytes(range(256)) * (METADATA_VALUE_BYTES_MAX // 256)
        assert len(largest) == METADATA_VALUE_BYTES_MAX
        await store.put(below(root, "a"), largest)
        assert await value_at(store, below(root, "a")) == largest
        with pytest.raises(ValueTooLarge):
            await store.put(below(root, "b"), largest + b"!")
        with pytest.raises(ValueTooLarge):
            await store.write([(Put(below(root, "c"), b"fine"),), (Put(below(root, "d"), largest + b"!"),)])
        assert await store.get_many([below(root, name) for name in "bcd"], strict=True) == [None, None, None]

    async def test_an_empty_value_is_refused(self, store: MetadataStore, root: str) -> None:
        with pytest.raises(InvalidArgument):
            await store.put(below(root, "a"), b"")
        assert await store.get(below(root, "a"), strict=True) is None

    async def test_one_call_may_carry_more_than_one_request_can(self, store: MetadataStore, root: str) -> None:
        keys = [below(root, str(i)) for i in range(6)]
        values = [bytes([i + 1]) * (700 * 1024) for i in range(6)]
        assert sum(map(len, values)) > 4 * MIB
        outcomes = await store.write([(Put(key, value, ABSENT),) for key, value in zip(keys, values, strict=True)])
        found = await store.get_many(keys, strict=True)
        for outcome, record, value in zip(outcomes, found, values, strict=True):
            assert record is not None
            assert (versions_of(outcome), record.value == value) == ((record.version,), True)
        scanned = await store.scan(Key(root, root), strict=True)
        assert [record.value for record in scanned] == values

    # -- groups ---------------------------------------------------------------------------------------------------
    async def test_write_answers_per_group_in_order(self, store: MetadataStore, root: str) -> None:
        a, b, c, d = (below(root, name) for name in "abcd")
        at_a = await store.put(a, b"1")
        await store.put(c, b"1")
        writes: list[Write] = [Put(a, b"2", at_a), Put(b, b"2", at_a), Delete(c), Put(d, b"2", ABSENT)]
        replaced, refused, deleted, created = await store.write([(write,) for write in writes])
        assert isinstance(refused, VersionConflict)
        assert versions_of(deleted) == (0,)
        found = await store.get_many([a, b, c, d], strict=True)
        assert [None if r is None else r.value for r in found] == [b"2", None, None, b"2"]
        assert [found[0].version, found[3].version] == [*versions_of(replaced), *versions_of(created)]  # type: ignore[union-attr]

    async def test_writing_nothing_is_nothing(self, store: MetadataStore) -> None:
        assert await store.write([]) == []

    async def test_one_refused_group_never_harms_another(self, store: MetadataStore, root: str) -> None:
        taken = [below(root, "taken", str(i)) for i in range(50)]
        free = [below(root, "free", str(i)) for i in range(50)]
        await store.write([(Put(key, b"old"),) for key in taken])
        groups = [(Put(key, b"new", ABSENT),) for pair in zip(taken, free, strict=True) for key in pair]
        outcomes = await store.write(groups)
        assert all(isinstance(outcome, VersionConflict) for outcome in outcomes[::2])
        assert all(isinstance(outcome, tuple) for outcome in outcomes[1::2])
        assert {r.value for r in await store.get_many(taken, strict=True) if r} == {b"old"}
        assert {r.value for r in await store.get_many(free, strict=True) if r} == {b"new"}

    async def test_a_group_is_all_or_nothing(self, store: MetadataStore, root: str) -> None:
        if not store.capabilities.atomic_groups:
            pytest.skip("this store has no atomic groups")
        a, b, c, d = (below(root, name) for name in "abcd")
        at_a = await store.put(a, b"1")
        at_b = await store.put(b, b"1")
        refused: list[tuple[Write, ...]] = [
            (Put(a, b"2", at_a), Put(b, b"2", at_a)),
            (Put(c, b"2", at_b), Put(d, b"2")),
        ]
        for outcome in await store.write(refused):
            assert isinstance(outcome, VersionConflict)
        found = await store.get_many([a, b, c, d], strict=True)
        assert found == [Record(a, b"1", at_a), Record(b, b"1", at_b), None, None]
        both, other = await store.write([(Put(a, b"2", at_a), Delete(b, at_b)), (Put(c, b"2", ABSENT), Put(d, b"2"))])
        assert versions_of(both)[1] == 0
        found = await store.get_many([a, b, c, d], strict=True)
        assert [None if r is None else r.value for r in found] == [b"2", None, b"2", b"2"]
        assert [r.version for r in found if r] == [versions_of(both)[0], *versions_of(other)]

    async def test_a_refused_delete_refuses_its_group(self, store: MetadataStore, root: str) -> None:
        if not store.capabilities.atomic_groups:
            pytest.skip("this store has no atomic groups")
        [outcome] = await store.write([(Put(below(root, "a"), b"1"), Delete(below(root, "b"), 1))])
        assert isinstance(outcome, VersionConflict)
        assert await store.get(below(root, "a"), strict=True) is None

    async def test_a_group_of_two_needs_atomic_groups(self, store: MetadataStore, root: str) -> None:
        if store.capabilities.atomic_groups:
            pytest.skip("this store has atomic groups")
        with pytest.raises(InvalidArgument):
            await store.write([(Put(below(root, "a"), b"1"), Put(below(root, "b"), b"1"))])
        assert await store.get_many([below(root, "a"), below(root, "b")], strict=True) == [None, None]

    async def test_a_key_written_twice_in_one_call_is_refused(self, store: MetadataStore, root: str) -> None:
        key = below(root, "a")
        with pytest.raises(InvalidArgument):
            await store.write([(Put(key, b"1"),), (Put(key, b"2"),)])
        with pytest.raises(InvalidArgument):
            await store.write([(Put(key, b"1"),), (Delete(key),)])
        if store.capabilities.atomic_groups:
            with pytest.raises(InvalidArgument):
                await store.write([(Put(key, b"1"), Put(key, b"2"))])
        assert await store.get(key, strict=True) is None

    async def test_an_empty_group_is_refused(self, store: MetadataStore, root: str) -> None:
        with pytest.raises(InvalidArgument):
            await store.write([(Put(below(root, "a"), b"1"),), ()])
        assert await store.get(below(root, "a"), strict=True) is None

    async def test_more_groups_than_the_limit_are_refused(self, store: MetadataStore, root: str) -> None:
        groups = [(Delete(below(root, str(i))),) for i in range(METADATA_WRITE_GROUPS_MAX + 1)]
        with pytest.raises(InvalidArgument):
            await store.write(groups)

    # -- many -----------------------------------------------------------------------------------------------------
    @pytest.mark.slow
    async def test_many_keys_are_written_scanned_and_found(self, store: MetadataStore, root: str) -> None:
        parent = below(root, "index")
        keys = [Key(f"{parent.path}/{10 * i:020d}", root) for i in range(MANY_KEYS)]
        for first in range(0, MANY_KEYS, BATCH):
            batch = keys[first : first + BATCH]
            for outcome in await store.write([(Put(key, key.path[-20:].encode(), ABSENT),) for key in batch]):
                versions_of(outcome)
        count = 0
        async for record in store.scan_all(parent):
            assert record.key == keys[count]
            assert record.value == record.key.path[-20:].encode()
            count += 1
        assert count == MANY_KEYS
        for i in range(0, MANY_KEYS, MANY_KEYS // 20):
            found = await store.ceiling(parent, f"{10 * i - 5 if i else 0:020d}")
            assert found is not None
            assert found.key == keys[i]
        assert await store.ceiling(parent, f"{10 * MANY_KEYS - 5:020d}") is None

    async def test_counters_moved_by_several_clients_lose_no_update(self, open_store: OpenStore, root: str) -> None:
        clients = [await open_store() for _ in range(3)]
        counters = [below(root, f"counter-{i}") for i in range(2)]
        rounds = 20

        async def increment(store: MetadataStore, key: Key) -> None:
            for _ in range(rounds):
                while True:
                    record = await store.get(key)
                    count, version = (int(record.value), record.version) if record else (0, ABSENT)
                    try:
                        await store.put(key, str(count + 1).encode(), expected=version)
                        break
                    except VersionConflict:
                        continue

        await in_time(asyncio.gather(*(increment(store, key) for store in clients for key in counters for _ in "12")))
        for key in counters:
            assert await value_at(clients[0], key) == str(rounds * len(clients) * 2).encode()

    async def test_one_of_many_creators_wins(self, open_store: OpenStore, root: str) -> None:
        clients = [await open_store() for _ in range(4)]
        for turn in range(5):
            key = below(root, str(turn))
            groups = [[(Put(key, f"{i}".encode(), ABSENT),)] for i in range(4)]
            answers = await asyncio.gather(*(c.write(group) for c, group in zip(clients, groups, strict=True)))
            winners = [i for i, [outcome] in enumerate(answers) if isinstance(outcome, tuple)]
            assert len(winners) == 1
            assert all(isinstance(outcome, tuple | VersionConflict) for [outcome] in answers)
            assert await value_at(clients[0], key) == f"{winners[0]}".encode()

    async def test_concurrent_calls_of_one_client_all_land(self, store: MetadataStore, root: str) -> None:
        keys = [below(root, f"{i:03d}") for i in range(200)]
        versions = await in_time(asyncio.gather(*(store.put(key, key.path.encode(), expected=ABSENT) for key in keys)))
        assert len(set(versions)) == len(keys)
        found = await store.get_many(keys, strict=True)
        assert [r and (r.value, r.version) for r in found] == [
            (key.path.encode(), version) for key, version in zip(keys, versions, strict=True)
        ]


class ModelClaims(StoreClaims):
    """The store agrees with the reference model, step by step (`llog.testing.model_check`)."""

    @pytest.mark.parametrize("seed", range(40) if SOAK else range(4))
    async def test_store_and_model_agree_step_by_step(self, store: MetadataStore, root: str, seed: int) -> None:
        await check_agreement(store, root, seed, 400 if SOAK else STEPS)
