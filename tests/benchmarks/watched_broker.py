"""A broker with a watched event loop: `python -m tests.benchmarks.watched_broker`, settings from the environment.

A task ticks every millisecond. Each line on standard input is answered by a JSON line with how long the loop was held
at worst since the last: `lag_ms` by the clock, and `held_ms`, which is no more than the processor time that the whole
process used meanwhile. On a machine that has other work the clock also counts what others did; `held_ms` does not.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Final

import uvloop

from llog.process.serve import serve
from llog.process_memory import freeze_start_up_objects, keep_freed_memory
from llog.settings import Settings

TICK_SECONDS: Final = 0.001


class Watch:
    def __init__(self) -> None:
        self.lag_ms = self.held_ms = 0.0

    async def run(self) -> None:
        while True:
            began, used = time.perf_counter(), time.process_time()
            await asyncio.sleep(TICK_SECONDS)
            lag = time.perf_counter() - began - TICK_SECONDS
            self.lag_ms = max(self.lag_ms, lag * 1_000)
            self.held_ms = max(self.held_ms, min(lag, time.process_time() - used) * 1_000)

    def report(self) -> str:
        answer = json.dumps({"lag_ms": self.lag_ms, "held_ms": self.held_ms})
        self.lag_ms = self.held_ms = 0.0
        return answer


async def run() -> None:
    watch, stop = Watch(), asyncio.Event()
    ticking = asyncio.create_task(watch.run())

    def asked() -> None:
        if sys.stdin.readline():
            print(watch.report(), flush=True)
        else:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            stop.set()

    def started(url: str, _broker: object) -> None:
        freeze_start_up_objects()
        print(url, flush=True)
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), asked)

    await serve(Settings.from_env(), stop, on_started=started)
    ticking.cancel()


if __name__ == "__main__":
    keep_freed_memory()
    uvloop.run(run())
