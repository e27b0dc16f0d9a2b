"""Kill -9 a process that writes to a directory store, many times over.

Claims: every put that returned is there and whole; nothing partial is ever visible under any name; what the dead
left behind is outside every listing. (That the bytes survive a power cut cannot be shown by a kill; the order of the
syncs is held in tests/unit/objects/test_file_store.py.)
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llog.stores.objects import file
from llog.stores.objects.port import checked

ROUNDS = 200 if os.environ.get("LLOG_SOAK") == "1" else 10

# Each object holds a digest and the bytes it is of; a line is printed only after its put returned.
WRITER = """
import asyncio, hashlib, os, sys
from llog.stores.objects import file
from llog.stores.objects.port import checked

async def write(store, worker, round_number):
    for i in range(1_000_000):
        body = [os.urandom(1 + (i * 7919) % 40_000) for _ in range(1 + i % 20)]
        digest = hashlib.sha256(b"".join(body)).digest()
        name = f"round-{round_number}/{worker}/{i}"
        await store.put(name, [digest, *body], if_absent=i % 2 == 0)
        os.write(1, (name + "\\n").encode())

async def main():
    store = await checked(await file.open_from_url(sys.argv[1]))
    await asyncio.gather(*(write(store, worker, sys.argv[2]) for worker in range(4)))

asyncio.run(main())
"""


def run_until_killed(url: str, round_number: int, rng: random.Random) -> list[str]:
    """Names whose put returned before the kill."""
    child = subprocess.Popen([sys.executable, "-c", WRITER, url, str(round_number)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    acknowledged = [child.stdout.readline()]  # it has started
    time.sleep(rng.uniform(0.0, 0.15))
    child.send_signal(signal.SIGKILL)
    acknowledged += child.stdout.readlines()
    child.wait()
    child.stdout.close()
    assert child.returncode == -signal.SIGKILL
    return [line.strip() for line in acknowledged if line.endswith("\n")]


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_acknowledged_puts_survive_kill_9_and_nothing_partial_is_visible(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/objects"
    rng = random.Random(20)
    acknowledged: set[str] = set()
    interrupted = 0
    for round_number in range(20 * ROUNDS):
        if round_number >= ROUNDS and interrupted:
            break
        acknowledged |= set(run_until_killed(url, round_number, rng))
        interrupted += sum(1 for _ in (tmp_path / "objects" / ".llog-tmp").iterdir())
        async with await checked(await file.open_from_url(url)) as store:
            visible = {meta.name async for meta in store.list(f"round-{round_number}/")}
            for name in visible:
                content = bytes(await store.get(name))
                assert hashlib.sha256(content[32:]).digest() == content[:32], f"{name} is partial"
    async with await checked(await file.open_from_url(url)) as store:
        assert acknowledged <= {meta.name async for meta in store.list()}
    assert len(acknowledged) > ROUNDS
    assert interrupted > 0, "no kill hit a put: the test proved nothing"
