"""Object stores against the bare calls below them: what our adapters and the meter cost."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from llog.stores.objects import file, s3
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore, checked
from llog.stores.objects.wrappers import MeteredObjectStore
from llog.testing.servers import ACCESS_KEY, SECRET_KEY, VersityGateway
from tests.benchmarks.harness import Duel, benchmark

OBJECT_BYTES = 8 << 20
BUFFERS = 1_000
# Enough for a tenth of a second or more on either side, so that one hiccup of the machine decides nothing.
FILE_PUTS, S3_PUTS = 16, 4
MB = OBJECT_BYTES / 1e6


def parts_of(content: bytes) -> list[memoryview]:
    """The content as a flush holds it: many slices of other memory."""
    step = -(-len(content) // BUFFERS)
    return [memoryview(content[i : i + step]) for i in range(0, len(content), step)]


def bare_durable_write(directory: str, name: str, content: bytes) -> None:
    """What any durable put into a directory must at least do, with the bytes already in one piece."""
    temporary, target = f"{directory}/tmp-{name}", f"{directory}/{name}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        written = 0
        while written < len(content):
            written += os.write(descriptor, memoryview(content)[written:])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(temporary, target)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@benchmark(
    "file_put", against="a bare write, fsync, rename and directory fsync of the joined bytes", at_least=0.8, rounds=15
)
@asynccontextmanager
async def file_put() -> AsyncIterator[Duel]:
    directory = tempfile.mkdtemp(prefix="llog-bench-")
    content = os.urandom(OBJECT_BYTES)
    parts, names = parts_of(content), itertools.count()
    bare = os.path.join(directory, "bare")
    await asyncio.to_thread(os.mkdir, bare)

    def tidy() -> None:
        for place in (bare, os.path.join(directory, "ours")):
            for name in os.listdir(place):
                if not name.startswith("."):
                    os.unlink(os.path.join(place, name))

    async with await checked(await file.open_from_url(f"file://{directory}/ours")) as store:

        async def ours() -> None:
            for _ in range(FILE_PUTS):
                await store.put(f"{next(names)}", parts)

        def baseline() -> None:
            for _ in range(FILE_PUTS):
                bare_durable_write(bare, f"{next(names)}", content)

        try:
            yield Duel(ours, baseline, FILE_PUTS * MB, "MB", after_each=tidy)
        finally:
            await asyncio.to_thread(shutil.rmtree, directory)


@dataclass
class Settings:
    s3_endpoint_url: str | None
    s3_region_name: str | None = "us-east-1"
    s3_access_key_id: str | None = ACCESS_KEY
    s3_secret_access_key: str | None = SECRET_KEY
    s3_session_token: str | None = None
    request_timeout_ms: int | None = 10_000


@benchmark("s3_put", against="a bare obstore put_async of the joined bytes (versitygw)", at_least=0.9, rounds=21)
@asynccontextmanager
async def s3_put() -> AsyncIterator[Duel]:
    from obstore.store import S3Store

    content = os.urandom(OBJECT_BYTES)
    parts, names = parts_of(content), itertools.count()
    with VersityGateway() as server:
        bare = S3Store(
            server.bucket,
            endpoint=server.endpoint,
            region="us-east-1",
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            client_options={"allow_http": True, "timeout": timedelta(seconds=30)},
        )
        async with await checked(await s3.open_from_url(f"s3://{server.bucket}", Settings(server.endpoint))) as store:

            async def ours() -> None:
                for _ in range(S3_PUTS):
                    await store.put(f"ours/{next(names) % 64}", parts)

            async def baseline() -> None:
                for _ in range(S3_PUTS):
                    await bare.put_async(f"bare/{next(names) % 64}", content, use_multipart=False)

            yield Duel(ours, baseline, S3_PUTS * MB, "MB")
        server.process.kill()  # a polite stop waits for idle connections


@benchmark("metered_get", against="the same 64 KiB reads from a directory without the meter", at_least=0.9)
@asynccontextmanager
async def metered_get() -> AsyncIterator[Duel]:
    calls = 300
    directory = tempfile.mkdtemp(prefix="llog-bench-")
    async with await checked(await file.open_from_url(f"file://{directory}")) as plain:
        metered = MeteredObjectStore(plain)
        await plain.put("a", [os.urandom(1 << 20)])

        async def read(store: ObjectStore) -> None:
            for i in range(calls):
                await store.get_range("a", i * 1_024, 65_536)

        try:
            yield Duel(lambda: read(metered), lambda: read(plain), calls, "reads")
        finally:
            await asyncio.to_thread(shutil.rmtree, directory)


@benchmark("metered_call", against="a bare memory store's head; the meter's cost by itself", at_most=4)
@asynccontextmanager
async def metered_call() -> AsyncIterator[Duel]:
    calls = 20_000
    plain = MemoryObjectStore("memory://bench")
    metered = MeteredObjectStore(plain)
    await plain.put("a", [b"x"])

    async def ours() -> None:
        for _ in range(calls):
            await metered.head("a")

    async def baseline() -> None:
        for _ in range(calls):
            await plain.head("a")

    yield Duel(ours, baseline, calls, "calls")
