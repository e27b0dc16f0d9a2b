"""Claims about sessions and the ephemeral records bound to them."""

from __future__ import annotations

import asyncio

import pytest

from llog.errors import InvalidArgument, MetadataUnavailable, MetadataUncertain, SessionLost, VersionConflict
from llog.limits import METADATA_SESSION_TIMEOUT_MS_MAX, METADATA_SESSION_TIMEOUT_MS_MIN
from llog.stores.metadata.port import ABSENT, Key, MetadataStore, Put, Record, Session
from llog.testing.metadata_contract.base import (
    OpenStore,
    StoreClaims,
    StoreLink,
    below,
    in_time,
    names_of,
    patiently,
    soon,
)

LONG_MS = 60_000
SHORT_MS = METADATA_SESSION_TIMEOUT_MS_MIN
# How often a claim about short sessions is tried on a machine that stands still for longer than they last.
ATTEMPTS_MAX = 5


class SessionClaims(StoreClaims):
    async def test_an_ephemeral_record_says_so(self, store: MetadataStore, root: str) -> None:
        key = below(root, "claim")
        session = await store.open_session(timeout_ms=LONG_MS)
        version = await store.put(key, b"mine", expected=ABSENT, session=session)
        assert await store.get(key) == Record(key, b"mine", version, True)
        assert await store.scan(Key(root, root)) == [Record(key, b"mine", version, True)]
        assert await store.ceiling(Key(root, root), "") == Record(key, b"mine", version, True)
        assert [r.ephemeral async for r in store.scan_tree(root)] == [True]
        assert not session.lost
        await session.close()

    async def test_ephemeral_records_vanish_when_their_session_is_closed(
        self, open_store: OpenStore, root: str
    ) -> None:
        one, two = await open_store(), await open_store()
        session = await one.open_session(timeout_ms=LONG_MS)
        other = await one.open_session(timeout_ms=LONG_MS)
        assert session.id != other.id
        await one.put(below(root, "a"), b"1", session=session)
        await one.put(below(root, "b"), b"1", session=session)
        await one.put(below(root, "kept"), b"1", session=other)
        await one.put(below(root, "permanent"), b"1")
        await session.close()
        await session.close()
        assert await two.get(below(root, "a"), strict=True) is None
        assert names_of(await two.scan(Key(root, root), strict=True)) == ["kept", "permanent"]
        assert not other.lost

    async def test_ephemeral_records_vanish_when_their_store_is_closed(self, open_store: OpenStore, root: str) -> None:
        one, two = await open_store(), await open_store()
        session = await one.open_session(timeout_ms=LONG_MS)
        await one.put(below(root, "a"), b"1", session=session)
        await one.close()
        assert await two.get(below(root, "a"), strict=True) is None

    async def test_a_closed_session_takes_no_more_records(self, store: MetadataStore, root: str) -> None:
        session = await store.open_session(timeout_ms=LONG_MS)
        await session.close()
        with pytest.raises(SessionLost):
            await store.put(below(root, "a"), b"1", session=session)
        assert await store.get(below(root, "a"), strict=True) is None

    async def test_a_lost_session_refuses_its_group_alone(self, store: MetadataStore, root: str) -> None:
        session = await store.open_session(timeout_ms=LONG_MS)
        await session.close()
        refused, written = await store.write(
            [(Put(below(root, "a"), b"1", ABSENT, session),), (Put(below(root, "b"), b"1", ABSENT),)]
        )
        assert isinstance(refused, SessionLost)
        assert isinstance(written, tuple)
        assert names_of(await store.scan(Key(root, root), strict=True)) == ["b"]

    @pytest.mark.slow
    async def test_ephemeral_records_vanish_when_heartbeats_stop(
        self, link: StoreLink, open_store: OpenStore, root: str
    ) -> None:
        witness = await open_store()
        key = below(root, "claim")
        session, version, calls = await patiently(lambda: claim(link.store, key))
        await link.silence()

        async def gone() -> bool:
            return await witness.get(key, strict=True) is None

        await soon("the silent session's record is gone", gone)
        assert names_of(await witness.scan(Key(root, root), strict=True)) == []
        with pytest.raises(VersionConflict):
            await witness.put(key, b"theirs", expected=version)
        again = await witness.put(key, b"theirs", expected=ABSENT)
        assert again > version

        async def notified() -> bool:
            return bool(calls)

        await soon("on_lost was called on the silent client", notified)
        assert session.lost
        await link.heal()
        with pytest.raises(SessionLost):
            await in_time(put_through(link.store, key, session))
        assert await witness.get(key, strict=True) == Record(key, b"theirs", again)
        await in_time(session.close())
        await asyncio.sleep(0.2)
        assert len(calls) == 1

    @pytest.mark.slow
    async def test_a_session_outlives_its_timeout_while_its_process_lives(
        self, open_store: OpenStore, root: str
    ) -> None:
        one, two = await open_store(), await open_store()
        key, seconds = below(root, "a"), SHORT_MS / 1_000 / self.clock_speed
        for _ in range(ATTEMPTS_MAX):
            session, _, lost = await patiently(lambda: claim(one, key))
            longest = await longest_turn(two, key, 2.5 * seconds)
            if not lost or longest < seconds / 4:
                break  # otherwise this process was stopped for a while, and the session may be lost
        assert await two.get(key, strict=True) is not None
        assert not session.lost
        await session.close()
        await asyncio.sleep(0)
        assert lost == []

    async def test_another_sessions_put_takes_the_record_over(self, open_store: OpenStore, root: str) -> None:
        one, two = await open_store(), await open_store()
        key = below(root, "claim")
        first, second = await one.open_session(timeout_ms=LONG_MS), await two.open_session(timeout_ms=LONG_MS)
        version = await one.put(key, b"first", session=first)
        version = await two.put(key, b"second", expected=version, session=second)
        await first.close()
        assert await one.get(key, strict=True) == Record(key, b"second", version, True)
        await second.close()
        assert await one.get(key, strict=True) is None

    async def test_a_plain_put_makes_the_record_permanent(self, store: MetadataStore, root: str) -> None:
        key = below(root, "claim")
        session = await store.open_session(timeout_ms=LONG_MS)
        await store.put(key, b"1", session=session)
        version = await store.put(key, b"2")
        await session.close()
        assert await store.get(key, strict=True) == Record(key, b"2", version, False)

    async def test_a_deleted_and_recreated_record_does_not_follow_its_old_session(
        self, store: MetadataStore, root: str
    ) -> None:
        key = below(root, "claim")
        session = await store.open_session(timeout_ms=LONG_MS)
        await store.put(key, b"1", session=session)
        await store.delete(key)
        version = await store.put(key, b"2", expected=ABSENT)
        await session.close()
        assert await store.get(key, strict=True) == Record(key, b"2", version, False)

    async def test_versions_never_come_back_after_a_session_ends(self, store: MetadataStore, root: str) -> None:
        key = below(root, "claim")
        versions = []
        for _ in range(4):
            session = await store.open_session(timeout_ms=LONG_MS)
            versions.append(await store.put(key, b"1", expected=ABSENT, session=session))
            await session.close()
        assert versions == sorted(set(versions))

    @pytest.mark.parametrize(
        "timeout_ms", [0, METADATA_SESSION_TIMEOUT_MS_MIN - 1, METADATA_SESSION_TIMEOUT_MS_MAX + 1]
    )
    async def test_a_session_timeout_outside_the_limits_is_refused(self, store: MetadataStore, timeout_ms: int) -> None:
        with pytest.raises(InvalidArgument):
            await store.open_session(timeout_ms=timeout_ms)


async def claim(store: MetadataStore, key: Key) -> tuple[Session, int, list[None]]:
    """A short session with a record, the record's version, and a line for each time that the session was lost."""
    lost: list[None] = []
    session = await store.open_session(timeout_ms=SHORT_MS, on_lost=lambda: lost.append(None))
    try:
        return session, await store.put(key, b"mine", session=session), lost
    except SessionLost as error:
        raise MetadataUnavailable("put", key.path, "the session ended before its first record was written") from error


async def longest_turn(store: MetadataStore, key: Key, seconds: float) -> float:
    """Read for so long; how long the slowest turn took."""
    loop = asyncio.get_running_loop()
    ends, longest, before = loop.time() + seconds, 0.0, loop.time()
    while before < ends:
        await asyncio.sleep(seconds / 100)
        await store.get(key, strict=True)
        longest, before = max(longest, loop.time() - before), loop.time()
    return longest


async def put_through(store: MetadataStore, key: Key, session: Session) -> None:
    """Write with `session` as soon as the healed client has its connection back."""
    while True:
        try:
            await store.put(key, b"late", session=session)
            return
        except (MetadataUnavailable, MetadataUncertain):
            await asyncio.sleep(0.1)
