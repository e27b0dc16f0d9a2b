"""A store and the reference model perform the same operations in step; every answer must agree.

Operations are drawn from a seed, so a failure names the seed and the step and can be replayed. Versions differ between
the two (each store counts its own way), so they are compared through a table of pairs issued together.

    python -m llog.testing.model_check --schedules 200 --seed 7 --store lmdb
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import uuid

from llog.errors import MetadataStoreError
from llog.settings import Settings
from llog.stores.metadata.memory import MemoryStore
from llog.stores.metadata.port import ABSENT, ANY, Delete, GroupOutcome, Key, MetadataStore, Put, Record, Session, Write
from llog.wiring import open_metadata_store

STEPS = 120
NAMES = ["a", "b", "b!", "b0", "bb", "é", "00", "01"]


class Pair:
    """The store under test and the model, given the same operations."""

    def __init__(self, store: MetadataStore, root: str, seed: int) -> None:
        self.store, self.root, self.rng = store, root, random.Random(seed)
        self.model = MemoryStore(atomic_groups=store.capabilities.atomic_groups)
        self.paths = [root + "/" + a for a in NAMES] + [f"{root}/{a}/{b}" for a in NAMES[:4] for b in NAMES[:4]]
        self.real_of: dict[int, int] = {}  # the model's version → the store's
        self.issued: dict[str, list[int]] = {path: [] for path in self.paths}
        self.sessions: list[tuple[Session, Session]] = []

    def key(self) -> Key:
        return Key(self.rng.choice(self.paths), self.root)

    def same(self, theirs: Record | None, ours: Record | None) -> None:
        if ours is None or theirs is None:
            assert theirs is ours
            return
        assert theirs == ours._replace(version=self.real_of[ours.version])

    async def step(self) -> None:
        actions = [self.write] * 6 + [self.get, self.get_many, self.ceiling, self.scan, self.scan]
        await self.rng.choice([*actions, self.open_session, self.close_session])()

    async def get(self) -> None:
        key = self.key()
        self.same(await self.store.get(key), await self.model.get(key))

    async def get_many(self) -> None:
        keys = [self.key() for _ in range(self.rng.randint(0, 10))]
        for theirs, ours in zip(await self.store.get_many(keys), await self.model.get_many(keys), strict=True):
            self.same(theirs, ours)

    def parent(self) -> Key:
        return Key(self.rng.choice([self.root, *self.paths]), self.root)

    async def ceiling(self) -> None:
        parent, name = self.parent(), self.rng.choice(["", *NAMES, "b\x01", "zz"])
        self.same(await self.store.ceiling(parent, name), await self.model.ceiling(parent, name))

    async def scan(self) -> None:
        parent, start = self.parent(), self.rng.choice(["", *NAMES])
        stop, limit = self.rng.choice([None, None, *NAMES]), self.rng.choice([1, 2, 1_000])
        theirs = await self.store.scan(parent, start=start, stop=stop, limit=limit)
        ours = await self.model.scan(parent, start=start, stop=stop, limit=limit)
        assert [record.key for record in theirs] == [record.key for record in ours]
        for their, our in zip(theirs, ours, strict=True):
            self.same(their, our)

    async def open_session(self) -> None:
        if len(self.sessions) < 3:
            theirs, ours = [await s.open_session(timeout_ms=60_000) for s in (self.store, self.model)]
            self.sessions.append((theirs, ours))

    async def close_session(self) -> None:
        if self.sessions:
            for session in self.rng.choice(self.sessions):
                await session.close()
        if len(self.sessions) == 3:
            self.sessions.pop(0)

    async def write(self) -> None:
        paths = self.rng.sample(self.paths, self.rng.randint(1, 8))
        theirs: list[list[Write]] = []
        ours: list[list[Write]] = []
        while paths:
            size = self.rng.randint(1, 3) if self.store.capabilities.atomic_groups else 1
            writes = [self.one_write(path) for path in paths[:size]]
            theirs.append([write for write, _ in writes])
            ours.append([write for _, write in writes])
            paths = paths[size:]
        answers = zip(await self.store.write(theirs), await self.model.write(ours), ours, strict=True)
        for their, our, group in answers:
            self.compare(their, our, group)

    def one_write(self, path: str) -> tuple[Write, Write]:
        """The same write for the store and for the model, at the versions each of them knows."""
        key, known = Key(path, self.root), self.issued[path]
        choices: list[int | None] = [ANY, ANY, ABSENT, *known[-1:] * 3, *known[:1]]
        ours = self.rng.choice(choices)
        theirs = self.real_of[ours] if ours is not None and ours != ABSENT else ours
        if self.rng.random() < 0.3:
            if ours == ABSENT:
                ours = theirs = ANY
            return Delete(key, theirs), Delete(key, ours)
        value = self.rng.randbytes(self.rng.randint(1, 60))
        their_session, our_session = self.rng.choice([(None, None), (None, None), *self.sessions])
        return Put(key, value, theirs, their_session), Put(key, value, ours, our_session)

    def compare(self, theirs: GroupOutcome, ours: GroupOutcome, group: list[Write]) -> None:
        if isinstance(ours, MetadataStoreError):
            # A group with two faults may report either.
            assert isinstance(theirs, MetadataStoreError), f"{group}: refused by the model, written by the store"
            assert len(group) > 1 or _has_two_faults(group) or type(theirs) is type(ours), f"{theirs!r}, not {ours!r}"
            return
        assert isinstance(theirs, tuple), f"{group}: written by the model, refused by the store: {theirs!r}"
        for write, real, version in zip(group, theirs, ours, strict=True):
            if isinstance(write, Put):
                self.real_of[version] = real
                self.issued[write.key.path].append(version)
            else:
                assert real == version == 0

    async def compare_everything(self) -> None:
        theirs = {record.key.path: record async for record in self.store.scan_tree(self.root)}
        ours = {record.key.path: record async for record in self.model.scan_tree(self.root)}
        assert theirs.keys() == ours.keys()
        for path, record in ours.items():
            self.same(theirs[path]._replace(key=record.key), record)


def _has_two_faults(group: list[Write]) -> bool:
    return any(isinstance(write, Put) and write.session is not None and write.session.lost for write in group)


async def check_agreement(store: MetadataStore, root: str, seed: int, steps: int = STEPS) -> None:
    """Run one schedule below `root`; AssertionError names the seed and the step at which the two differ."""
    pair = Pair(store, root, seed)
    for step in range(steps):
        try:
            await pair.step()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {step}: {error}") from error
    await pair.compare_everything()


async def _open(kind: str, directory: str) -> MetadataStore:
    if kind == "sharded":
        return MemoryStore(shards=4, atomic_groups=False)
    url = {"lmdb": f"lmdb://{directory}/metadata", "memory": "memory://model-check"}.get(kind, kind)
    settings = Settings.from_env({}, metadata_url=url)
    return await open_metadata_store(settings.metadata_url, settings)


async def _run(kind: str, schedules: int, first_seed: int) -> str | None:
    with tempfile.TemporaryDirectory() as directory:
        async with await _open(kind, directory) as store:
            for seed in range(first_seed, first_seed + schedules):
                try:
                    await check_agreement(store, f"model/{uuid.uuid4().hex[:12]}", seed)
                except AssertionError as error:
                    return f"{error}\n    again: make model STORE={kind} SCHEDULES=1 SEED={seed}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="llog.testing.model_check")
    parser.add_argument("--schedules", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="the first one; the others follow")
    parser.add_argument("--store", default=None, help="lmdb, memory, sharded, or a metadata URL; default: those three")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**31)
    kinds = [arguments.store] if arguments.store else ["memory", "sharded", "lmdb"]
    failed = 0
    for kind in kinds:
        wrong = asyncio.run(_run(kind, arguments.schedules, seed))
        done = f"{arguments.schedules} schedules of {STEPS} steps from seed {seed}"
        print(f"sim: {kind}: {done}: {wrong or 'ok'}", flush=True)
        failed += wrong is not None
    print(f"{len(kinds) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
