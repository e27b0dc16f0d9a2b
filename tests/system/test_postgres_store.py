"""The PostgreSQL store against a real server: opening it, and the situations only a server can make."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import psycopg
import pytest

from llog.errors import (
    MetadataDenied,
    MetadataMisconfigured,
    MetadataStoreError,
    MetadataUnavailable,
    MetadataUncertain,
    VersionConflict,
)
from llog.stores.metadata.port import ABSENT, ChangeKind, Delete, Key, Put
from llog.stores.metadata.postgres import PostgresStore, open_from_url
from llog.stores.metadata.postgres import watch as watch_module
from llog.testing.metadata_contract.base import patiently
from llog.testing.servers import PostgresServer, free_port
from tests.patience import PATIENCE_SECONDS, until
from tests.servers import started

pytestmark = pytest.mark.server

Open = Callable[..., Awaitable[PostgresStore]]


class Settings:
    client_identifier = "system-test"

    def __init__(self, request_timeout_ms: int = 10_000) -> None:
        self.request_timeout_ms = request_timeout_ms


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    yield from started(PostgresServer)


@pytest.fixture
def table() -> str:
    return f"t_{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def open_store(server: PostgresServer, table: str) -> AsyncIterator[Open]:
    opened: list[PostgresStore] = []

    async def open_one(extra: str = "", *, request_timeout_ms: int = 10_000) -> PostgresStore:
        url = f"{server.url}?llog_table={table}{extra}"
        opened.append(await open_from_url(url, Settings(request_timeout_ms)))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
async def admin(server: PostgresServer) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
        yield connection


Admin = psycopg.AsyncConnection[Any]


async def waiting_backend(admin: Admin, event: str) -> int:
    """The backend of ours that waits for `event`, as soon as there is one."""

    async def find() -> tuple[int] | None:
        cursor = await admin.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'system-test' AND wait_event = %s", (event,)
        )
        return await cursor.fetchone()

    [pid] = await until(find, f"a backend that waits for {event}", pause_seconds=0.02)
    return int(pid)


def write_call(table: str, parent: str, sessions: str) -> bytes:
    """Creates `parent`/a, in a transaction that the test ends."""
    columns = f"ARRAY[0], ARRAY['{parent}'], ARRAY['a'], ARRAY['1'::bytea], ARRAY[-1], {sessions}"
    return f"SELECT {table}_write({columns})".encode()


# -- opening ------------------------------------------------------------------------------------------------------


async def test_stores_that_start_together_make_one_schema(open_store: Open) -> None:
    stores = await asyncio.gather(*(open_store() for _ in range(8)))
    version = await stores[0].put(Key("a"), b"1", expected=ABSENT)
    for store in stores:
        record = await store.get(Key("a"))
        assert record is not None
        assert record.version == version


async def test_a_schema_of_its_own_is_made(server: PostgresServer, table: str) -> None:
    url = f"{server.url}?llog_table=s{table}.{table}"
    async with await open_from_url(url, Settings()) as one, await open_from_url(url, Settings()) as two:
        await one.put(Key("a"), b"1")
        assert await two.get(Key("a")) is not None


async def test_a_newer_schema_is_refused(open_store: Open, admin: Admin, table: str) -> None:
    await (await open_store()).put(Key("a"), b"1")
    await admin.execute(f"UPDATE {table}_schema SET version = 99".encode())
    with pytest.raises(MetadataMisconfigured, match="version 99"):
        await open_store()


async def test_a_role_that_may_not_create_opens_an_existing_store_only(
    open_store: Open, admin: Admin, server: PostgresServer, table: str
) -> None:
    await open_store()
    await admin.execute(f"CREATE ROLE r{table} LOGIN".encode())
    await admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO r{table}".encode())
    await admin.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO r{table}".encode())
    base = server.url.replace("llog@", f"r{table}@")
    async with await open_from_url(f"{base}?llog_table={table}", Settings()) as store:
        await store.put(Key("a"), b"1")
    with pytest.raises(MetadataDenied):
        await open_from_url(f"{base}?llog_table={table}_other", Settings())


async def test_a_lost_privilege_is_denied_not_uncertain(
    open_store: Open, admin: Admin, server: PostgresServer, table: str
) -> None:
    await open_store()
    await admin.execute(f"CREATE ROLE r{table} LOGIN".encode())
    await admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO r{table}".encode())
    url = f"{server.url.replace('llog@', f'r{table}@')}?llog_table={table}"
    async with await open_from_url(url, Settings()) as store:
        with pytest.raises(MetadataDenied):
            await store.put(Key("a"), b"1")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (("llog@", "stranger@"), MetadataDenied),
        (("/postgres", "/nowhere"), MetadataMisconfigured),
        (("llog_table=", "options=-c%20default_transaction_read_only%3Don&llog_table="), MetadataMisconfigured),
    ],
)
async def test_a_wrong_address_says_what_is_wrong(
    server: PostgresServer, change: tuple[str, str], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        await open_from_url(f"{server.url}?llog_table=x".replace(*change), Settings(2_000))


async def test_nobody_there_is_unavailable_within_the_deadline() -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(MetadataUnavailable):
            await open_from_url(f"postgresql://llog@127.0.0.1:{free_port()}/postgres", Settings(500))


async def test_a_database_that_is_not_utf8_is_refused(admin: Admin, server: PostgresServer, table: str) -> None:
    await admin.execute(f"CREATE DATABASE d{table} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'".encode())
    with pytest.raises(MetadataMisconfigured, match="LATIN1"):
        await open_from_url(server.url.replace("/postgres", f"/d{table}"), Settings())


async def test_commits_are_durable_whatever_the_database_says(open_store: Open) -> None:
    isolation = "-c%20default_transaction_isolation%3Dserializable"
    store = await open_store(f"&options=-c%20synchronous_commit%3Doff%20{isolation}")
    await store.put(Key("a"), b"1")
    [link] = store._pool._idle
    for setting, value in (("synchronous_commit", "on"), ("default_transaction_isolation", "read committed")):
        cursor = await link.connection.execute("SELECT current_setting(%s)", (setting,))
        assert await cursor.fetchone() == (value,)


# -- writes -------------------------------------------------------------------------------------------------------


async def test_versions_grow_while_clients_create_and_delete_one_key(open_store: Open) -> None:
    """The order in which versions are drawn is the order in which the key changed, or a reader sees a step back."""
    stores = await asyncio.gather(*(open_store() for _ in range(4)))
    seen: list[int] = []
    done = asyncio.Event()

    async def create_and_delete(store: PostgresStore) -> None:
        for turn in range(60):
            if turn % 3 == 0:
                await store.delete(Key("k"))
                continue
            try:
                await store.put(Key("k"), b"1", expected=ABSENT if turn % 3 == 1 else None)
            except VersionConflict:
                pass

    async def look() -> None:
        while not done.is_set():
            record = await stores[0].get(Key("k"))
            if record is not None:
                seen.append(record.version)

    looking = asyncio.ensure_future(look())
    await asyncio.gather(*(create_and_delete(store) for store in stores for _ in range(2)))
    done.set()
    await looking
    assert seen == sorted(seen)
    assert len(set(seen)) > 10


async def test_overlapping_batches_do_not_deadlock_and_lose_no_update(open_store: Open) -> None:
    stores = await asyncio.gather(*(open_store() for _ in range(3)))
    keys = [Key(f"k/{i:02d}") for i in range(20)]
    await stores[0].write([(Put(key, b"0"),) for key in keys])

    async def raise_all(store: PostgresStore, forwards: bool) -> int:
        won = 0
        for _ in range(15):
            records = await store.get_many(keys if forwards else keys[::-1])
            found = [record for record in records if record is not None]
            group = tuple(Put(r.key, str(int(r.value) + 1).encode(), r.version) for r in found)
            [outcome] = await store.write([group])
            assert isinstance(outcome, tuple | VersionConflict), outcome
            won += isinstance(outcome, tuple)
        return won

    wins = sum(await asyncio.gather(*(raise_all(store, bool(i % 2)) for i, store in enumerate(stores))))
    records = await stores[0].get_many(keys)
    assert {int(record.value) for record in records if record is not None} == {wins}


async def test_keys_are_locked_in_key_order(open_store: Open, server: PostgresServer, admin: Admin, table: str) -> None:
    store = await open_store()
    await store.write([(Put(Key(name), b"1"),) for name in ("a", "b", "c")])
    async with await psycopg.AsyncConnection.connect(server.url) as blocker:
        await blocker.execute(f"SELECT FROM {table} WHERE name = 'b' FOR UPDATE".encode())
        writing = asyncio.ensure_future(store.write([(Put(Key(name), b"2"),) for name in ("c", "b", "a")]))
        await waiting_backend(admin, "transactionid")
        probe = f"SELECT FROM {table} WHERE name = %s FOR UPDATE NOWAIT".encode()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            await admin.execute(probe, ("a",))
        await admin.execute(probe, ("c",))
    assert all(isinstance(outcome, tuple) for outcome in await writing)


async def test_waiting_for_a_lock_ends_with_nothing_done(open_store: Open, server: PostgresServer, table: str) -> None:
    store, patient = await open_store(request_timeout_ms=1_000), await open_store()
    version = await patient.put(Key("a"), b"1")
    async with await psycopg.AsyncConnection.connect(server.url) as blocker:
        await blocker.execute(f"SELECT FROM {table} FOR UPDATE".encode())
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(MetadataUnavailable):
                await store.put(Key("a"), b"2")
    record = await patient.get(Key("a"))
    assert record is not None
    assert record.version == version


async def test_a_deadlock_victim_is_asked_again(
    open_store: Open, server: PostgresServer, admin: Admin, table: str
) -> None:
    store = await open_store("&options=-c%20deadlock_timeout%3D100ms")
    await store.write([(Put(Key("a"), b"1"), Put(Key("b"), b"1"))])
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as other, other.transaction():
        await other.execute(f"SELECT FROM {table} WHERE name = 'b' FOR UPDATE".encode())
        writing = asyncio.ensure_future(store.write([(Put(Key("a"), b"2"), Put(Key("b"), b"2"))]))
        await waiting_backend(admin, "transactionid")
        # The store holds a and waits for b; now the other waits for a. The store's deadlock timeout is the shorter one.
        await other.execute(f"SELECT FROM {table} WHERE name = 'a' FOR UPDATE".encode())
    [outcome] = await writing
    assert isinstance(outcome, tuple)


@pytest.fixture
async def absent_standby(server: PostgresServer, admin: Admin) -> AsyncIterator[None]:
    """Commits wait for a standby that never comes: they are written, but not answered."""
    async with await open_from_url(f"{server.url}?llog_table=made_before", Settings()):
        pass  # its schema must be there before commits stop
    for setting in ("SET synchronous_standby_names = 'ghost'", "RESET synchronous_standby_names"):
        if setting.startswith("RESET"):
            yield
        await admin.execute(f"ALTER SYSTEM {setting}".encode())
        await admin.execute("SELECT pg_reload_conf()")
        await asyncio.sleep(0.3)  # the checkpointer applies the setting and shows nowhere that it has


@pytest.mark.parametrize("end", ["pg_cancel_backend", "pg_terminate_backend"])
async def test_a_commit_that_did_not_wait_for_its_standby_is_uncertain(
    server: PostgresServer, admin: Admin, absent_standby: None, end: str
) -> None:
    """Cancelled, the server warns and answers as if all were well. Ended, it has already sent most of a long answer."""
    url = f"{server.url}?llog_table=made_before"
    async with await open_from_url(url, Settings()) as store:
        writing = asyncio.ensure_future(store.write([(Put(Key(f"k/{i}"), b"1"),) for i in range(4_000)]))
        pid = await waiting_backend(admin, "SyncRep")
        await admin.execute(f"SELECT {end}(%s)".encode(), (pid,))
        outcomes = await writing
        assert {type(outcome) for outcome in outcomes} == {MetadataUncertain}
        assert await store.get(Key("k/1")) is not None, "and yet it happened"


async def test_a_commit_nobody_hears_of_is_uncertain_at_the_deadline(
    server: PostgresServer, absent_standby: None
) -> None:
    url = f"{server.url}?llog_table=made_before"
    async with await patiently(lambda: open_from_url(url, Settings(500))) as store, asyncio.timeout(PATIENCE_SECONDS):
        error: MetadataStoreError = MetadataUnavailable("put", "a")
        while isinstance(error, MetadataUnavailable):  # a busy machine may not even have sent it by then
            with pytest.raises((MetadataUncertain, MetadataUnavailable)) as raised:
                await store.put(Key("a"), b"2")
            error = raised.value


async def test_a_busy_pool_is_unavailable_within_the_deadline(
    open_store: Open, server: PostgresServer, table: str
) -> None:
    store, patient = await open_store(request_timeout_ms=1_000), await open_store()
    await patient.put(Key("a"), b"1")
    async with await psycopg.AsyncConnection.connect(server.url) as blocker:
        await blocker.execute(f"LOCK TABLE {table}".encode())
        calls = [store.put(Key("a"), b"2") for _ in range(40)]
        answers = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), PATIENCE_SECONDS)
    assert {type(answer) for answer in answers} <= {MetadataUnavailable, MetadataUncertain}
    assert any("busy" in str(answer) for answer in answers)
    await patient.put(Key("a"), b"3")


async def test_deletes_and_refusals_leave_no_placeholder(open_store: Open, admin: Admin, table: str) -> None:
    store = await open_store()
    refused_pair = (Put(Key("b"), b"1"), Put(Key("c"), b"1", 5))
    await store.write([(Delete(Key("none")),), (Put(Key("a"), b"1", 5),), refused_pair])
    cursor = await admin.execute(f"SELECT count(*) FROM {table}".encode())
    assert await cursor.fetchone() == (0,)


# -- sessions and watches -----------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_watchers_hear_of_records_whose_session_ran_out(open_store: Open) -> None:
    store, dying = await open_store(), await open_store()
    session = await dying.open_session(timeout_ms=2_000)
    await dying.put(Key("claims/a"), b"1", session=session)
    async with store.watch("claims") as changes:
        session._heartbeats.cancel()  # type: ignore[attr-defined]
        change = await asyncio.wait_for(anext(changes), PATIENCE_SECONDS)
    assert (change.kind, change.path) == (ChangeKind.DELETED, "claims/a")


async def test_a_session_does_not_end_around_a_write_bound_to_it(
    open_store: Open, server: PostgresServer, table: str
) -> None:
    """Else the write would leave a record that no session's end ever removes."""
    store = await open_store()
    session = await store.open_session(timeout_ms=60_000)
    async with await psycopg.AsyncConnection.connect(server.url) as writer:
        await writer.execute(write_call(table, "c", f"ARRAY[{session.id}]"))
        closing = asyncio.ensure_future(session.close())
        done, _ = await asyncio.wait([closing], timeout=0.3)
        assert not done
        await writer.commit()
    await closing
    assert await store.get(Key("c/a")) is None
    async with await psycopg.AsyncConnection.connect(server.url) as reader:
        cursor = await reader.execute(f"SELECT count(*) FROM {table}".encode())
        assert await cursor.fetchone() == (0,)


async def test_a_watch_begins_only_when_writes_that_did_not_know_of_it_have_ended(
    open_store: Open, server: PostgresServer, table: str
) -> None:
    """Such a write announces nothing, so it must be in what the watcher reads first."""
    store = await open_store()
    async with await psycopg.AsyncConnection.connect(server.url) as writer:
        await writer.execute(write_call(table, "w", "NULL"))
        context = store.watch("w")
        entering = asyncio.ensure_future(context.__aenter__())
        done, _ = await asyncio.wait([entering], timeout=0.5)
        assert not done, "the watch began while a write was under way that it will not hear of"
        await writer.commit()
        changes = await asyncio.wait_for(entering, PATIENCE_SECONDS)
    assert await store.get(Key("w/a")) is not None
    await store.put(Key("w/b"), b"1")
    assert (await asyncio.wait_for(anext(changes), PATIENCE_SECONDS)).path == "w/b"
    await context.__aexit__(None, None, None)


async def test_a_forgotten_lease_ends_in_a_resync(
    open_store: Open, admin: Admin, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "POSTGRES_WATCH_RENEW_INTERVAL_MS", 200)
    store = await open_store()
    async with store.watch("a") as changes:
        await admin.execute(f"DELETE FROM {table}_sessions".encode())
        await store.put(Key("a/unheard"), b"1")
        assert (await asyncio.wait_for(anext(changes), PATIENCE_SECONDS)).kind is ChangeKind.RESYNC
        await store.put(Key("a/heard"), b"1")
        assert (await asyncio.wait_for(anext(changes), PATIENCE_SECONDS)).path == "a/heard"


async def test_a_forgotten_lease_is_noticed_by_the_next_watch(open_store: Open, admin: Admin, table: str) -> None:
    store = await open_store()
    async with store.watch("a") as first:
        await admin.execute(f"DELETE FROM {table}_sessions".encode())
        async with store.watch("b") as second:
            await store.put(Key("b/x"), b"1")
            assert (await asyncio.wait_for(anext(first), PATIENCE_SECONDS)).kind is ChangeKind.RESYNC
            while (await asyncio.wait_for(anext(second), PATIENCE_SECONDS)).path != "b/x":
                pass


async def test_a_silent_listening_connection_is_found_out(
    open_store: Open, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "POSTGRES_WATCH_RENEW_INTERVAL_MS", 200)
    store = await open_store()
    async with store.watch("a") as changes:
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'system-test'"
        )
        assert (await asyncio.wait_for(anext(changes), PATIENCE_SECONDS)).kind is ChangeKind.RESYNC


async def test_unwatched_changes_are_not_announced(open_store: Open, admin: Admin) -> None:
    store = await open_store()
    await admin.execute(f"LISTEN {store.names.channel}".encode())
    async with store.watch("seen"):
        await store.write([(Put(Key("unseen/a"), b"1"),), (Put(Key("seen/a"), b"1"),), (Put(Key("seenot"), b"1"),)])
        await admin.execute(f"NOTIFY {store.names.channel}, 'x the end'".encode())
        heard = []
        async for notification in admin.notifies(timeout=PATIENCE_SECONDS):
            heard.append(notification.payload.partition(" ")[2])
            if heard[-1] == "the end":
                break
    assert heard == ["seen/a", "the end"]


async def test_a_strangers_notification_ends_in_a_resync(open_store: Open, admin: Admin) -> None:
    store = await open_store()
    async with store.watch("a") as changes:
        await admin.execute("SELECT pg_notify(%s, 'hello')", (store.names.channel,))
        assert (await asyncio.wait_for(anext(changes), PATIENCE_SECONDS)).kind is ChangeKind.RESYNC


async def test_the_longest_keys_fit_the_notifications_of_a_large_commit(open_store: Open) -> None:
    store = await open_store()
    keys = [Key(f"é/{i:04d}" + "é" * 230) for i in range(200)]
    async with store.watch("é") as changes:
        await store.write([(Put(key, b"1"),) for key in keys])
        seen = {(await asyncio.wait_for(anext(changes), PATIENCE_SECONDS)).path for _ in keys}
    assert seen == {key.path for key in keys}
