"""The segment catalogue on every metadata store."""

from __future__ import annotations

from tests.contract.catalogue_suite import CatalogueContract
from tests.contract.on_stores import OnAtomicModel, OnCompareAndSetModel, OnLmdb, OnOxia, OnPostgres


class TestCatalogueOnAnAtomicModel(OnAtomicModel, CatalogueContract): ...


class TestCatalogueOnACompareAndSetModel(OnCompareAndSetModel, CatalogueContract): ...


class TestCatalogueOnLmdb(OnLmdb, CatalogueContract):
    stride = 5


class TestCatalogueOnPostgres(OnPostgres, CatalogueContract):
    stride = 11


class TestCatalogueOnOxia(OnOxia, CatalogueContract):
    stride = 23
    """A strict read waits for its turn to probe the shard."""
