"""The start of a stack: stores, brokers, compactors, and the files that describe them.

`stack.json` is written after every process that starts, so that `down` finds what runs, whenever the start ends.
"""

from __future__ import annotations

import asyncio
import os
import urllib.request
from collections.abc import Mapping
from typing import Final

from llog.errors import StackFailed
from llog.loadtest.artifacts import BrokerPlace, CompactorPlace
from llog.loadtest.progress import Progress
from llog.loadtest.routing import plan_routes
from llog.loadtest.scenario.model import Scenario
from llog.loadtest.stack import plan
from llog.loadtest.stack.processes import recorded_process
from llog.loadtest.stack.record import StackFile
from llog.loadtest.stack.snapshots import write_snapshots
from llog.loadtest.stack.stores import start_stores
from llog.testing.servers import free_port

READY_S_MAX: Final = 180.0
READY_POLL_S: Final = 0.05
READY_REQUEST_S_MAX: Final = 2.0


async def start_stack(stack: StackFile, scenario: Scenario, progress: Progress) -> None:
    """Returns when every broker and compactor is ready. Raises `StackFailed`."""
    run = stack.run
    progress.step("servers", f"starting the stores: {scenario.stack.metadata}, {scenario.stack.objects}")
    base = plan.inherited(os.environ, scenario)
    stores = await asyncio.to_thread(start_stores, stack, scenario, base)
    brokers, compactors = plan.plan_brokers(scenario, free_port), plan.plan_compactors(scenario, free_port)
    ports = plan.plan_ports(brokers, compactors, stores.ports)
    settings = plan.plan_settings(scenario, run.run_id, stores.settings, run.tail_cache)
    stack.change(brokers=brokers, compactors=compactors, settings=settings, ports=ports)
    run.write("ports.json", ports)
    run.write("broker-layout.json", brokers)
    run.write("routing-manifest.json", plan_routes(scenario, brokers))
    write_snapshots(run, base | settings)

    progress.step("brokers", f"starting {len(brokers)} brokers and {len(compactors)} compactors")
    for broker in brokers:
        start_broker(stack, scenario, broker)
    for compactor in compactors:
        start_compactor(stack, scenario, compactor)
    await until_ready(stack, progress)


def environment_of(stack: StackFile, scenario: Scenario) -> dict[str, str]:
    """Of every llog process of the run: what it inherits from the shell, and the settings of stack.json."""
    return plan.inherited(os.environ, scenario) | dict(stack.record.settings)


def start_broker(stack: StackFile, scenario: Scenario, place: BrokerPlace) -> None:
    environment = environment_of(stack, scenario) | plan.broker_settings(place)
    stack.launch(place.broker_id, "broker", plan.broker_command(place), environment)


def start_compactor(stack: StackFile, scenario: Scenario, place: CompactorPlace) -> None:
    environment = environment_of(stack, scenario) | plan.compactor_settings(place, scenario)
    stack.launch(f"compactor-{place.number}", "compactor", plan.compactor_command(), environment)


def ready_urls(stack: StackFile) -> dict[str, str]:
    """By the name of the process."""
    record = stack.record
    urls = {broker.broker_id: broker.http_url for broker in record.brokers}
    return urls | {f"compactor-{place.number}": place.http_url for place in record.compactors}


async def until_ready(stack: StackFile, progress: Progress, urls: Mapping[str, str] | None = None) -> None:
    """Wait until `/ready` answers 200 everywhere. Raises `StackFailed` for a process that ended, or needs too long."""
    waiting = dict(ready_urls(stack) if urls is None else urls)
    count, deadline = len(waiting), asyncio.get_running_loop().time() + READY_S_MAX
    while waiting:
        for name, url in list(waiting.items()):
            place = stack.place(name)
            if recorded_process(place.pid, place.started_s) is None:
                raise StackFailed(name, f"it ended while it started; {stack.log_tail(name)}")
            if await asyncio.to_thread(_is_ready, url):
                del waiting[name]
                progress.detail(f"{count - len(waiting)} of {count} ready")
        if asyncio.get_running_loop().time() > deadline:
            name = next(iter(waiting))
            raise StackFailed(name, f"it was not ready within {READY_S_MAX:.0f} s; {stack.log_tail(name)}")
        await asyncio.sleep(READY_POLL_S)


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=READY_REQUEST_S_MAX) as answer:
            return int(answer.status) == 200
    except OSError:
        return False
