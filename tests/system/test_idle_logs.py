"""A compactor beside many idle logs notices the append of another process, and reads only the log that changed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import pytest

from llog.log.append.append import Appender
from llog.settings import Settings
from llog.testing.servers import ServerUnavailable
from llog.wiring import Use, opened_log
from tests.benchmarks.idle_compactor import append, count, seed, segments_in, stores
from tests.patience import until
from tests.system.broker_process import LlogProcess

KINDS: Final = ("lmdb", "oxia", "postgres") if os.environ.get("LLOG_SOAK") == "1" else ("lmdb", "oxia")
LOGS: Final = 200
# A service that begins reads every log. After that it looks at each once within five minutes; this is much faster.
QUIET_SECONDS: Final = 8.0
QUIET_KEYS_MAX: Final = LOGS // 4

pytestmark = [pytest.mark.slow]


def guards_read(compactor: LlogProcess) -> int:
    """Control and compaction records that inspections read, and discoveries."""
    return count(compactor, None).keys_by_operation.get("get_many", 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_append_of_another_process_to_one_of_many_idle_logs_is_compacted(kind: str, tmp_path: Path) -> None:
    try:
        with stores(kind, tmp_path, "1h") as settings:
            logs = await seed(settings, LOGS)
            with LlogProcess("compactor", settings=settings, log=tmp_path / "log") as compactor:
                objects = tmp_path / "objects"
                await until(lambda: segments_in(objects) >= LOGS, "compact every log", pause_seconds=0.2)

                async def is_quiet() -> bool:
                    before = guards_read(compactor)
                    await asyncio.sleep(QUIET_SECONDS)
                    return guards_read(compactor) - before < QUIET_KEYS_MAX

                await until(is_quiet, "read few logs")
                before = guards_read(compactor)
                async with opened_log(Settings.from_env(dict(settings)), blobs=Use.PUT) as opened:
                    appender = Appender(opened.context)
                    await append(appender, [logs[LOGS // 2]], opened.context.now_ms())
                    await appender.close()
                await until(lambda: segments_in(objects) > LOGS, "compact the append", pause_seconds=0.05)
                await until(lambda: count(compactor, None).lagging == 0, "report it", pause_seconds=0.2)
                assert guards_read(compactor) - before < LOGS, "the other logs were read too"
    except ServerUnavailable as error:
        pytest.skip(str(error))
