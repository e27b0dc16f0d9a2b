"""Topics on every metadata store."""

from __future__ import annotations

from tests.contract.on_stores import OnAtomicModel, OnCompareAndSetModel, OnLmdb, OnOxia, OnPostgres
from tests.contract.topic_suite import TopicContract


class TestTopicsOnAnAtomicModel(OnAtomicModel, TopicContract): ...


class TestTopicsOnACompareAndSetModel(OnCompareAndSetModel, TopicContract): ...


class TestTopicsOnLmdb(OnLmdb, TopicContract):
    stride = 7


class TestTopicsOnPostgres(OnPostgres, TopicContract):
    stride = 23


class TestTopicsOnOxia(OnOxia, TopicContract):
    stride = 41
    """A strict read waits for its turn to probe the shard."""
