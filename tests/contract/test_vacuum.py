"""Merge and vacuum on every metadata store."""

from __future__ import annotations

from tests.contract.on_stores import OnAtomicModel, OnCompareAndSetModel, OnLmdb, OnOxia, OnPostgres
from tests.contract.vacuum_suite import VacuumContract


class TestVacuumOnAnAtomicModel(OnAtomicModel, VacuumContract): ...


class TestVacuumOnACompareAndSetModel(OnCompareAndSetModel, VacuumContract): ...


class TestVacuumOnLmdb(OnLmdb, VacuumContract): ...


class TestVacuumOnPostgres(OnPostgres, VacuumContract): ...


class TestVacuumOnOxia(OnOxia, VacuumContract): ...
