"""The compactor as a process: it stops gracefully at the first signal and at once at the second."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llog.compactor.backends import Backends
from llog.compactor.jobs import CompactorJobs
from llog.compactor.service import serve
from llog.log.context import LogContext
from llog.settings import Settings
from llog.telemetry.metrics import BrokerMetrics

_log = logging.getLogger("llog.compactor")


async def run_compactor(
    settings: Settings,
    *,
    metrics: BrokerMetrics | None = None,
    make_jobs: Callable[[LogContext, Backends], CompactorJobs] = CompactorJobs,
    on_started: Callable[[str], None] | None = None,
) -> None:
    """Returns after a graceful stop; a second signal raises `asyncio.CancelledError`."""
    stop = asyncio.Event()
    with stopped_by_signals(stop):
        await serve(settings, stop, metrics=metrics, make_jobs=make_jobs, on_started=on_started)


@contextmanager
def stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set `stop`; a second one cancels the task that entered the context."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def on_signal() -> None:
        if stop.is_set() and task is not None:
            _log.warning("stopping at once")
            task.cancel()
        stop.set()

    signals = (signal.SIGTERM, signal.SIGINT)
    for one in signals:
        loop.add_signal_handler(one, on_signal)
    try:
        yield
    finally:
        for one in signals:
            loop.remove_signal_handler(one)
