"""Backup and restore on every metadata store, and from one kind to another."""

from __future__ import annotations

import time
from pathlib import Path

from llog.log.append.append import Appender
from llog.pipeline.compact.once import compact_once
from llog.stores.metadata.lmdb import LmdbStore
from llog.stores.objects.memory import MemoryObjectStore
from tests.contract.backup_suite import LOGS, BackupContract, backed_up, check_all, memory_context, restored
from tests.contract.log_suite import ORDERS, contents, context_on, group
from tests.contract.on_stores import OnAtomicModel, OnCompareAndSetModel, OnLmdb, OnOxia, OnPostgres, OpenStore


class TestBackupOnAnAtomicModel(OnAtomicModel, BackupContract): ...


class TestBackupOnACompareAndSetModel(OnCompareAndSetModel, BackupContract): ...


class TestBackupOnLmdb(OnLmdb, BackupContract): ...


class TestBackupOnOxia(OnOxia, BackupContract): ...


class TestBackupOnPostgres(OnPostgres, BackupContract):
    async def test_metadata_moves_from_lmdb_to_memory_to_postgres(self, open_store: OpenStore, tmp_path: Path) -> None:
        objects = MemoryObjectStore(f"memory://chain-{time.time_ns()}")
        async with await LmdbStore.open(tmp_path / "lmdb") as store:
            first = context_on(store, objects, 1)
            appender = Appender(first)
            for number in range(30):
                await appender.append([group(log, b"%d" % number, b"x" * number) for log in LOGS])
            await compact_once(first, ORDERS, max_offsets=21)
            await appender.close()
            written = [await contents(first, log) for log in LOGS]
            place = await backed_up(first, objects)
        second = memory_context(objects, atomic=False)
        await restored(second, place)
        third = context_on(await open_store(), objects, 3)
        await restored(third, await backed_up(second, objects))
        assert [await contents(third, log) for log in LOGS] == written
        await check_all(third)
