"""What the LMDB store costs over LMDB: one write() against bare puts of the same bytes in one transaction.

Both sides write the very same keys and stored bytes, in key order as the log does, with the same sync, each into a
database of its own on which both did the same before. Ours also checks every record's version, decides, frames, and
hops to the writer thread and back. From the second round on the versions of what this process moved last are known
without reading (`known.py`), as they are in a broker.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import lmdb

from llog.limits import MIB
from llog.stores.metadata.lmdb import LmdbStore
from llog.stores.metadata.lmdb.layout import U64, record_key
from llog.stores.metadata.port import ABSENT, GroupOutcome, Key, Put
from tests.benchmarks.harness import Duel, benchmark

PUTS = 2_048
# About the size of a control record and of an index entry.
VALUE = b"v" * 320
LOGS = sorted(f"llog/orders-{log % 64}/partitions/{log}" for log in range(PUTS))

Groups = list[tuple[Put, ...]]
Versions = dict[str, int]


def single_puts(versions: Versions, turn: int) -> Groups:
    """Move every log's control record."""
    return [(Put(Key(f"{log}/meta/control", log), VALUE, versions.get(log, ABSENT)),) for log in LOGS]


def pairs(versions: Versions, turn: int) -> Groups:
    """Move the control record and create an index entry, for half as many logs."""
    return [
        (
            Put(Key(f"{log}/index/{turn:020d}", log), VALUE, ABSENT),
            Put(Key(f"{log}/meta/control", log), VALUE, versions.get(log, ABSENT)),
        )
        for log in LOGS[::2]
    ]


@asynccontextmanager
async def duel(groups_of: Callable[[Versions, int], Groups]) -> AsyncIterator[Duel]:
    """Both sides write round after round; what a round writes is made outside the clock."""
    turns = itertools.count()
    versions: Versions = {}
    groups: Groups = []
    outcomes: list[GroupOutcome] = []
    items: list[tuple[bytes, bytes]] = []

    def prepare() -> None:
        """Both sides of a round share one turn, so this makes a new one before every second call."""
        turn, half = divmod(next(turns), 2)
        if half:
            return
        for group, outcome in zip(groups, outcomes, strict=True):
            assert isinstance(outcome, tuple), outcome
            versions[group[-1].key.route] = outcome[-1]
        groups[:] = groups_of(versions, turn)
        items[:] = [(record_key(put.key.path), U64.pack(7) + VALUE) for group in groups for put in group]

    async def ours() -> None:
        outcomes[:] = await store.write(groups)

    def baseline() -> None:
        with bare.begin(write=True) as txn:
            put = txn.put
            for key, value in items:
                put(key, value)

    with tempfile.TemporaryDirectory(prefix="llog-bench-") as directory:
        bare = lmdb.open(f"{directory}/bare", map_size=1024 * MIB)
        async with await LmdbStore.open(Path(directory) / "ours") as store:
            prepare()
            yield Duel(ours, baseline, PUTS, "puts", after_each=prepare)
        bare.close()


@benchmark("lmdb_batch", against="bare puts in one transaction", at_most=2.0, rounds=25)
def batch_of_single_puts() -> AbstractAsyncContextManager[Duel]:
    """2,048 conditional puts, each its own group."""
    return duel(single_puts)


@benchmark("lmdb_batch_pairs", against="bare puts in one transaction", at_most=2.0, rounds=25)
def batch_of_pairs() -> AbstractAsyncContextManager[Duel]:
    """1,024 groups of two: the shape of a flush."""
    return duel(pairs)
