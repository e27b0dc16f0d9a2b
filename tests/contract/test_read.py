"""Reading on every metadata store."""

from __future__ import annotations

from tests.contract.on_stores import OnAtomicModel, OnCompareAndSetModel, OnLmdb, OnOxia, OnPostgres
from tests.contract.read_suite import ReadContract


class TestReadOnAnAtomicModel(OnAtomicModel, ReadContract): ...


class TestReadOnACompareAndSetModel(OnCompareAndSetModel, ReadContract): ...


class TestReadOnLmdb(OnLmdb, ReadContract): ...


class TestReadOnPostgres(OnPostgres, ReadContract): ...


class TestReadOnOxia(OnOxia, ReadContract): ...
