"""The log on every metadata store."""

from __future__ import annotations

from tests.contract.log_suite import LogContract
from tests.contract.on_stores import OnAtomicModel, OnCompareAndSetModel, OnLmdb, OnOxia, OnPostgres


class TestLogOnAnAtomicModel(OnAtomicModel, LogContract): ...


class TestLogOnACompareAndSetModel(OnCompareAndSetModel, LogContract): ...


class TestLogOnLmdb(OnLmdb, LogContract): ...


class TestLogOnPostgres(OnPostgres, LogContract): ...


class TestLogOnOxia(OnOxia, LogContract): ...
