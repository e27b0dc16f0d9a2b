"""How a command's process ends: with the exit code of the command, also while the object store's native threads still
deliver answers. In the interpreter's finalization such a thread ends the process with SIGABRT or SIGSEGV."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

PENDING_REQUESTS: Final = 3_000
PROCESSES: Final = 6

_COMMAND: Final = """
import asyncio, atexit, sys, tempfile
import obstore
from obstore.store import LocalStore
import llog.cli, llog.cli.app

class Witness:
    def __del__(self):
        print("finalized", flush=True)

witness = Witness()

async def work(directory):
    store = LocalStore(directory)
    await obstore.put_async(store, "object", bytes(100_000))
    for _ in range(int(sys.argv[1])):
        obstore.get_async(store, "object")

def command(prog_name):
    atexit.register(print, "at exit")
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(work(directory))
    print("the result", end="")
    sys.exit(5)

llog.cli.app.app = command
llog.cli.main()
"""


def run(pending_requests: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _COMMAND, str(pending_requests)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_command_ends_before_the_interpreter_is_finalized_and_after_everything_registered_at_exit() -> None:
    done = run(0)
    assert (done.returncode, done.stdout) == (5, "the resultat exit\n"), done.stderr


@pytest.mark.slow
def test_a_command_keeps_its_exit_code_while_requests_are_under_way() -> None:
    ends = [run(PENDING_REQUESTS) for _ in range(PROCESSES)]
    assert {(done.returncode, done.stdout) for done in ends} == {(5, "the resultat exit\n")}, [d.stderr for d in ends]
