"""Claims about answers that never come: uncertain is an outcome of its own, and a read decides it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable

import pytest

from llog.errors import (
    MetadataStoreError,
    MetadataTimeout,
    MetadataUnavailable,
    MetadataUncertain,
    UncertainOutcome,
    VersionConflict,
)
from llog.stores.metadata.port import ABSENT, Key, MetadataStore, Put, Record
from llog.testing.metadata_contract.base import (
    PATIENCE_SECONDS,
    SOAK,
    OpenStore,
    StoreClaims,
    StoreLink,
    below,
    in_time,
    patiently,
    soon,
)

LOST_REPLIES = 30 if SOAK else 4


async def read_patiently(store: MetadataStore, key: Key) -> Record | None:
    return await patiently(lambda: store.get(key, strict=True))


async def put_patiently(store: MetadataStore, key: Key, value: bytes) -> int:
    return await patiently(lambda: store.put(key, value))


async def into_silence(link: StoreLink, write: Awaitable[object]) -> MetadataStoreError:
    """Do this write while no reply comes back; how it failed. Anything but "may have" or "did not" is wrong."""
    await link.lose_replies()
    try:
        with pytest.raises((MetadataUncertain, MetadataUnavailable)) as failed:
            await in_time(write)
        return failed.value
    finally:
        await link.heal()


def check_verdict(error: MetadataStoreError, landed: bool) -> None:
    assert isinstance(error, MetadataUncertain | MetadataUnavailable), repr(error)
    assert isinstance(error, UncertainOutcome) or not landed, f"it happened, and the adapter denied it: {error!r}"


class FaultClaims(StoreClaims):
    async def test_a_create_whose_reply_is_lost_is_uncertain_and_a_read_decides(
        self, link: StoreLink, open_store: OpenStore, root: str
    ) -> None:
        witness = await open_store()
        key = below(root, "a")
        await put_patiently(link.store, below(root, "warm"), b"1")
        error = await into_silence(link, link.store.put(key, b"mine", expected=ABSENT))
        record = await in_time(read_patiently(link.store, key))
        check_verdict(error, record is not None)
        assert await witness.get(key, strict=True) == record
        assert record is None or record.value == b"mine"
        if record is None:
            await witness.put(key, b"again", expected=ABSENT)
        else:
            with pytest.raises(VersionConflict):
                await patiently(lambda: link.store.put(key, b"again", expected=ABSENT))

    async def test_a_conditional_put_is_never_repeated_by_the_adapter(
        self, link: StoreLink, open_store: OpenStore, root: str
    ) -> None:
        """A repeat would meet its own first attempt and report a conflict that never was."""
        witness = await open_store()
        key = below(root, "a")
        held = Record(key, b"start", await put_patiently(link.store, key, b"start"))
        for turn in range(LOST_REPLIES):
            value = f"{turn}".encode()
            error = await into_silence(link, link.store.put(key, value, expected=held.version))
            record = await in_time(read_patiently(link.store, key))
            assert record is not None
            check_verdict(error, record != held)
            assert record == held or (record.value == value and record.version > held.version)
            assert await witness.get(key, strict=True) == record
            held = record

    async def test_a_delete_whose_reply_is_lost_is_uncertain(self, link: StoreLink, root: str) -> None:
        key = below(root, "a")
        version = await put_patiently(link.store, key, b"0")
        error = await into_silence(link, link.store.delete(key, expected=version))
        check_verdict(error, await in_time(read_patiently(link.store, key)) is None)

    async def test_every_group_of_a_lost_reply_is_uncertain(self, link: StoreLink, root: str) -> None:
        keys = [below(root, f"{i:03d}") for i in range(100)]
        await put_patiently(link.store, below(root, "warm"), b"1")
        await link.lose_replies()
        outcomes = await in_time(link.store.write([(Put(key, b"mine", ABSENT),) for key in keys]))
        await link.heal()
        found = await patiently(lambda: link.store.get_many(keys, strict=True))
        assert len(outcomes) == len(keys)
        for outcome, record in zip(outcomes, found, strict=True):
            assert isinstance(outcome, MetadataStoreError), "no reply came, so no version is known"
            check_verdict(outcome, record is not None)
            assert record is None or record.value == b"mine"
        if link.store.capabilities.atomic_groups:
            assert len({record is None for record in found}) == 1

    async def test_a_read_without_an_answer_is_a_timeout_not_an_uncertainty(self, link: StoreLink, root: str) -> None:
        await put_patiently(link.store, below(root, "a"), b"1")
        await link.lose_replies()
        with pytest.raises((MetadataTimeout, MetadataUnavailable)) as failed:
            await in_time(link.store.get(below(root, "a")))
        assert not isinstance(failed.value, UncertainOutcome)
        assert failed.value.retriable
        await link.heal()
        assert await in_time(read_patiently(link.store, below(root, "a"))) is not None

    async def test_tokens_appended_over_a_bad_link_land_exactly_once(
        self, link: StoreLink, open_store: OpenStore, root: str
    ) -> None:
        """The protocol's way out of uncertainty, on every store: read, look for the own token, go on from there."""
        witness = await open_store()
        key, rng = below(root, "log"), random.Random(3)
        tokens = [f"t{i}" for i in range(LOST_REPLIES * 5)]
        for token in tokens:
            await in_time(append_token(link, key, token, lose_reply=rng.random() < 0.3), 4 * PATIENCE_SECONDS)
        record = await witness.get(key, strict=True)
        assert record is not None
        assert record.value.decode().split() == tokens

    async def test_the_client_finds_its_way_back_after_a_cut(self, link: StoreLink, root: str) -> None:
        if not link.networked:
            pytest.skip("this store has no connections")
        key = below(root, "a")
        await put_patiently(link.store, key, b"0")
        for turn in range(3):
            await link.cut()

            async def reachable(value: bytes = str(turn).encode()) -> bool:
                try:
                    await link.store.put(key, value)
                    return True
                except (MetadataUnavailable, MetadataUncertain):
                    return False

            await soon("writes pass again after a cut", reachable)
            record = await in_time(read_patiently(link.store, key))
            assert record is not None
            assert record.value == str(turn).encode()

    async def test_calls_under_way_when_the_connection_is_cut_end(self, link: StoreLink, root: str) -> None:
        if not link.networked:
            pytest.skip("this store has no connections")
        keys = [below(root, f"{i:03d}") for i in range(50)]
        await put_patiently(link.store, below(root, "warm"), b"1")
        await link.lose_replies()
        calls = [asyncio.ensure_future(link.store.put(key, b"mine", expected=ABSENT)) for key in keys]
        await asyncio.sleep(0.1)
        await link.heal()
        await link.cut()
        answers = await in_time(asyncio.gather(*calls, return_exceptions=True))
        found = await patiently(lambda: link.store.get_many(keys, strict=True))
        for answer, record in zip(answers, found, strict=True):
            if isinstance(answer, int):
                assert record is not None
                assert record.version == answer
            elif isinstance(answer, MetadataUnavailable):
                assert record is None, "unavailable means nothing happened"
            else:
                assert isinstance(answer, MetadataUncertain), repr(answer)


async def append_token(link: StoreLink, key: Key, token: str, *, lose_reply: bool) -> None:
    while True:
        record = await read_patiently(link.store, key)
        held = record.value.decode().split() if record else []
        if token in held:
            return
        if lose_reply:
            await link.lose_replies()
        try:
            value = " ".join([*held, token]).encode()
            await link.store.put(key, value, expected=record.version if record else ABSENT)
            return
        except (MetadataUncertain, MetadataUnavailable):
            lose_reply = False
        finally:
            await link.heal()
