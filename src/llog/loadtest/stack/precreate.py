"""The topics of a scenario, created with all their logs before the load begins.

Without it, the first seconds of a run would measure the creation of logs. Repeating it changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from llog.concurrency import gather_bounded
from llog.loadtest.scenario.model import Scenario, Topic
from llog.log.context import LogContext
from llog.log.keys import Log, check_topic
from llog.log.topics.admin import alter_topic
from llog.log.topics.config import checked_config
from llog.log.topics.create import initialize
from llog.settings import Settings
from llog.wiring import opened_log

LOGS_IN_FLIGHT_MAX: Final = 128
OnLogs = Callable[[int, int], None]
"""Logs that are ready, and all."""


async def precreate(scenario: Scenario, environment: Mapping[str, str], on_logs: OnLogs) -> int:
    """Create the topics of `scenario` in the stores of `environment`; how many logs are ready."""
    for topic in scenario.topics:
        checked_config(topic.configs)
    settings = Settings.from_env(environment, client_identifier="loadtest-precreate")
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        on_logs(done, scenario.partitions)

    async with opened_log(settings) as opened:
        for topic in scenario.topics:
            await _create(opened.context, topic, count)
    return done


async def _create(context: LogContext, topic: Topic, on_log: Callable[[], None]) -> None:
    name = check_topic(topic.name)

    async def create(partition: int) -> None:
        await initialize(context, Log(name, partition))
        on_log()

    # The last partition first: it creates the topic with its full number of partitions, by one write.
    await create(topic.partitions - 1)
    if topic.configs:
        await alter_topic(context, name, put=topic.configs)
    await gather_bounded(range(topic.partitions - 1), create, limit=LOGS_IN_FLIGHT_MAX)
