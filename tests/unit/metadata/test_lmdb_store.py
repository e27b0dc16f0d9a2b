"""What the LMDB store promises beyond the contract: opening, growing, group commit, forks, full disks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import lmdb
import pytest

from llog.errors import (
    MetadataDenied,
    MetadataMisconfigured,
    MetadataStoreError,
    MetadataUnavailable,
    SettingsError,
    VersionConflict,
)
from llog.stores.metadata.lmdb import LmdbStore, environment, open_from_url, store, writer
from llog.stores.metadata.lmdb.environment import LMDB_MAP_BYTES_START, file_system_of, refuse_network_file_system
from llog.stores.metadata.lmdb.layout import BootClock, find_many
from llog.stores.metadata.lmdb.transaction import Transaction
from llog.stores.metadata.port import ABSENT, Delete, Key, Put, Record
from tests.patience import PATIENCE_SECONDS, until


def key(name: str) -> Key:
    return Key(f"unit/{name}")


# -- opening ----------------------------------------------------------------------------------------------------------
async def test_one_process_opens_a_directory_once_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    async with await open_from_url(f"lmdb://{tmp_path}/real") as one:
        async with await open_from_url(f"lmdb://{tmp_path}/link") as two:
            assert one.environment is two.environment
            await one.put(key("a"), b"1")
            assert await two.get(key("a")) is not None
        assert await one.get(key("a")) is not None
    async with await open_from_url(f"lmdb://{tmp_path}/real") as three:
        assert three.environment is not one.environment
        assert await three.get(key("a")) is not None


async def test_no_thread_outlives_the_last_store(tmp_path: Path) -> None:
    async with await LmdbStore.open(tmp_path / "db") as opened:
        _ = [record async for record in opened.scan_tree("")]
        assert any(thread.name.startswith("llog-lmdb") for thread in threading.enumerate())
    assert not any(thread.name.startswith("llog-lmdb") for thread in threading.enumerate())


@pytest.mark.parametrize("url", ["lmdb://", "lmdb:///", "lmdb://host/path", "lmdb:///path?x=1", "file:///path"])
async def test_a_url_without_an_absolute_path_is_refused(url: str) -> None:
    with pytest.raises(SettingsError):
        await open_from_url(url)


async def test_a_url_may_quote_blanks(tmp_path: Path) -> None:
    async with await open_from_url(f"lmdb://{tmp_path}/with%20blank"):
        assert (tmp_path / "with blank").is_dir()


async def test_a_directory_of_another_program_is_refused(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "theirs")) as theirs, theirs.begin(write=True) as txn:
        txn.put(b"their", b"data")
    with pytest.raises(MetadataMisconfigured, match="llog-lmdb"):
        await LmdbStore.open(tmp_path / "theirs")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MetadataMisconfigured):
        await LmdbStore.open(tmp_path / "file")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "data.mdb").write_bytes(b"not a database" * 1_000)
    with pytest.raises(MetadataMisconfigured):
        await LmdbStore.open(tmp_path / "broken")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_a_directory_we_may_not_use_is_denied(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(MetadataDenied):
        await LmdbStore.open(tmp_path / "locked" / "db")


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 254:0 / / rw - ext4 /dev/vda rw\n"
        "40 22 0:30 / /mnt/shared\\040disk rw,relatime shared:1 - nfs4 server:/x rw\n"
    )
    assert file_system_of(Path("/mnt/shared disk/db"), mounts) == "nfs4"
    assert file_system_of(Path("/mnt/shared disks/db"), mounts) == "ext4"
    assert file_system_of(tmp_path, tmp_path / "missing") == ""
    monkeypatch.setattr(environment, "file_system_of", lambda directory, mounts: "nfs4")
    with pytest.raises(MetadataMisconfigured, match="nfs4"):
        refuse_network_file_system(tmp_path, "lmdb:///x")


async def test_a_child_of_fork_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    opened = await LmdbStore.open(tmp_path / "db")
    await opened.put(key("a"), b"1")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = asyncio.new_event_loop().run_until_complete(in_child(opened, tmp_path / "db"))
        except BaseException as error:
            answer = repr(error)
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    answer = (await asyncio.to_thread(os.read, reading, 10_000)).decode()
    os.close(reading)
    await asyncio.to_thread(os.waitpid, child, 0)
    assert answer == "refused, refused, refused"
    await opened.put(key("b"), b"1")
    await opened.close()


async def in_child(inherited: LmdbStore, directory: Path) -> str:
    said = []
    for call in (inherited.get(key("a")), inherited.put(key("b"), b"2"), LmdbStore.open(directory)):
        try:
            await call
            said.append("done")
        except MetadataMisconfigured as error:
            said.append("refused" if "fork" in str(error) else repr(error))
    await inherited.close()
    return ", ".join(said)


# -- writing ----------------------------------------------------------------------------------------------------------
async def test_calls_that_wait_together_share_one_commit(tmp_path: Path) -> None:
    async with await LmdbStore.open(tmp_path / "db") as opened:
        await opened.put(key("first"), b"1")
        before = opened.environment.read(lambda txn: txn.id())
        with opened.environment.begin_write() as lock:
            # While another transaction holds the lock, calls pile up behind it.
            calls = [asyncio.ensure_future(opened.put(key(str(i)), b"1")) for i in range(50)]
            await asyncio.sleep(0)  # one turn: each call puts its job into the queue
            lock.abort()
        versions = await asyncio.gather(*calls)
        assert len(set(versions)) == 50
        assert opened.environment.read(lambda txn: txn.id()) - before <= 2


async def test_a_write_lock_held_elsewhere_makes_writes_unavailable_not_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LMDB_WAIT_MS_MAX", 100)
    async with await LmdbStore.open(tmp_path / "db") as opened:
        await opened.put(key("a"), b"1")
        with opened.environment.begin_write() as lock:
            with pytest.raises(MetadataUnavailable, match="write lock"):
                await opened.put(key("a"), b"2")
            record = await opened.get(key("a"))
            lock.abort()
        assert record is not None
        assert record.value == b"1", "reads go on"
        await opened.put(key("b"), b"1")  # jobs run in order: an earlier one would have been written by now
        again = await opened.get(key("a"))
        assert again == record, "a write that was reported unavailable must never happen"
        await opened.put(key("a"), b"3")


async def test_a_full_queue_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LMDB_WRITE_QUEUE_MAX", 3)
    async with await LmdbStore.open(tmp_path / "db") as opened:
        with opened.environment.begin_write() as lock:
            calls = [asyncio.ensure_future(opened.put(key(str(i)), b"1")) for i in range(5)]
            await until(lambda: sum(call.done() for call in calls) == 2, "two calls refused")
            lock.abort()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(answer, MetadataUnavailable) for answer in answers) == 2
        assert sum(isinstance(answer, int) for answer in answers) == 3


async def test_the_map_grows_while_reads_and_writes_go_on(tmp_path: Path) -> None:
    async with await LmdbStore.open(tmp_path / "db") as opened:
        names = [f"{i:03d}" for i in range(LMDB_MAP_BYTES_START * 2 // 900_000)]
        for first in range(0, len(names), 20):
            batch = names[first : first + 20]
            writing = asyncio.ensure_future(opened.write([(Put(key(name), b"x" * 900_000, ABSENT),) for name in batch]))
            found = await asyncio.gather(
                opened.scan(Key("unit"), limit=200), *(opened.get(key(name)) for name in names[:first])
            )
            assert None not in found
            assert all(isinstance(outcome, tuple) for outcome in await writing)
        assert opened.environment.map_bytes() > LMDB_MAP_BYTES_START
        assert [record.key.path async for record in opened.scan_all(Key("unit"))] == [key(n).path for n in names]


FULL_DISK = """
import asyncio, resource, sys
from pathlib import Path
from llog.errors import MetadataFull
from llog.stores.metadata.lmdb import LmdbStore
from llog.stores.metadata.port import ABSENT, Key

async def main():
    async with await LmdbStore.open(Path(sys.argv[1])) as store:
        kept = await store.put(Key("kept"), b"1")
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**21, 2**30))
        written = 0
        try:
            for i in range(100):
                await store.put(Key(f"k/{i}"), b"x" * 900_000, expected=ABSENT)
                written += 1
        except MetadataFull as error:
            print(type(error).__name__, len(await store.scan(Key("k"))) == written)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**30, 2**30))
        print(await store.put(Key("kept"), b"2", expected=kept) > kept)

asyncio.run(main())
"""


def test_a_full_disk_refuses_writes_and_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.stdout.split() == ["MetadataFull", "True", "True"], done.stderr


# -- versions remembered ----------------------------------------------------------------------------------------------
async def test_versions_remembered_from_the_last_commit_are_forgotten_when_another_process_wrote(
    tmp_path: Path,
) -> None:
    script = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from llog.stores.metadata.lmdb import LmdbStore\nfrom llog.stores.metadata.port import Key\n"
        "async def main():\n"
        "    async with await LmdbStore.open(Path(sys.argv[1])) as store:\n"
        "        print(await store.put(Key('unit/a'), b'theirs'))\n"
        "asyncio.run(main())\n"
    )
    async with await LmdbStore.open(tmp_path / "db") as opened:
        version = await opened.put(key("a"), b"0", expected=ABSENT)
        for _ in range(3):
            version = await opened.put(key("a"), b"ours", expected=version)
        command = [sys.executable, "-c", script, str(tmp_path / "db")]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        with pytest.raises(VersionConflict):
            await opened.put(key("a"), b"late", expected=version)
        assert await opened.get(key("a")) == Record(key("a"), b"theirs", int(done.stdout))


async def test_versions_remembered_follow_deletes_and_sessions(tmp_path: Path) -> None:
    async with await LmdbStore.open(tmp_path / "db") as opened:
        version = await opened.put(key("a"), b"0", expected=ABSENT)
        version = await opened.put(key("a"), b"1", expected=version)
        await opened.write([(Delete(key("a"), version),)])
        with pytest.raises(VersionConflict):
            await opened.put(key("a"), b"2", expected=version)
        version = await opened.put(key("a"), b"3", expected=ABSENT)
        version = await opened.put(key("a"), b"4", expected=version)
        session = await opened.open_session(timeout_ms=60_000)
        version = await opened.put(key("a"), b"5", expected=version, session=session)
        for never_a_version in (-2, -3, 1 << 70):
            with pytest.raises(VersionConflict):
                await opened.put(key("a"), b"6", expected=never_a_version)
        await session.close()
        with pytest.raises(VersionConflict):
            await opened.put(key("a"), b"6", expected=version)
        await opened.put(key("a"), b"7", expected=ABSENT)


async def test_a_failed_transaction_leaves_no_version_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await LmdbStore.open(tmp_path / "db") as opened:
        version = await opened.put(key("a"), b"0", expected=ABSENT)
        version = await opened.put(key("a"), b"1", expected=version)
        finish = Transaction.finish

        def fail(self: Transaction) -> None:
            finish(self)
            raise lmdb.Error("injected")

        monkeypatch.setattr(Transaction, "finish", fail)
        with pytest.raises(MetadataStoreError, match="injected"):
            await opened.put(key("a"), b"2", expected=version)
        monkeypatch.undo()
        assert await opened.put(key("a"), b"3", expected=version) > version


# -- reading ----------------------------------------------------------------------------------------------------------
async def test_a_slow_read_sends_the_next_ones_to_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await LmdbStore.open(tmp_path / "db") as opened:
        await opened.put(key("a"), b"1")
        monkeypatch.setattr(store, "LMDB_INLINE_SLOW_US", 0)
        readers = []

        def noting(*arguments: object) -> list[Record | None]:
            readers.append(threading.current_thread().name)
            return find_many(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr("llog.stores.metadata.lmdb.store.find_many", noting)
        for _ in range(3):
            assert await opened.get(key("a")) is not None
        assert readers[0] == threading.current_thread().name
        assert all(name.startswith("llog-lmdb-read") for name in readers[1:])


async def test_small_reads_hold_the_loop_for_microseconds(tmp_path: Path) -> None:
    async with await LmdbStore.open(tmp_path / "db") as opened:
        await opened.write([(Put(key(f"{i:04d}"), b"x" * 300),) for i in range(1_000)])
        samples = []
        for i in range(1_000):
            started = time.thread_time()
            await opened.get(key(f"{i:04d}"))
            samples.append(time.thread_time() - started)
        assert sorted(samples)[500] < 0.001


# -- sessions ---------------------------------------------------------------------------------------------------------
async def test_sessions_of_an_earlier_boot_are_dead(tmp_path: Path) -> None:
    class AnotherBoot(BootClock):
        def __init__(self) -> None:
            super().__init__()
            self.boot_id = bytes(16)

    async with await LmdbStore.open(tmp_path / "db", clock=AnotherBoot()) as before:
        session = await before.open_session(timeout_ms=60_000)
        await before.put(key("claim"), b"1", session=session)
        assert await before.get(key("claim")) is not None
        copy = tmp_path / "copy"
        copy.mkdir()
        before.environment._lmdb.copy(str(copy))  # what a crash leaves behind
    async with await LmdbStore.open(copy) as now:
        assert await now.get(key("claim")) is None
        await now.put(key("claim"), b"2", expected=ABSENT)


async def test_swept_sessions_leave_nothing_behind(tmp_path: Path) -> None:
    async with await LmdbStore.open(tmp_path / "db") as opened:
        await opened.put(key("other"), b"1")
        entries = opened.environment.read(lambda txn: txn.stat()["entries"])
        session = await opened.open_session(timeout_ms=60_000)
        await opened.write([(Put(key(str(i)), b"1", ABSENT, session),) for i in range(10)])
        await opened.put(key("0"), b"permanent")
        await session.close()
        assert opened.environment.read(lambda txn: txn.stat()["entries"]) == entries + 1
