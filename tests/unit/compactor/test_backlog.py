"""What waits in a log is counted as a run would take it, and each entry about once."""

from __future__ import annotations

from typing import Any

import pytest

from llog.compactor.backlog import Backlogs, BadLog
from llog.compactor.plan import LogBacklog, Rules
from llog.errors import MetadataDenied
from llog.log.cleanup.retention import delete_records
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.topics.delete import delete_topic
from llog.pipeline.compact.once import compact_once
from llog.stores.metadata.port import Key, Record
from tests.unit.compactor.stage import ORDERS, START_MS, Cluster, Writer, die_at, leave_pending

RULES = Rules(trigger_bytes=1 << 20, trigger_age_ms=60_000, min_age_ms=20_000, max_offsets_per_run=1_000)


async def view_of(backlogs: Backlogs, log: Log = ORDERS) -> LogBacklog:
    [view] = await backlogs.inspect([log])
    assert isinstance(view, LogBacklog)
    return view


def counted_scans(context: LogContext) -> list[int]:
    """The number of records of each scan from now on."""
    scans: list[int] = []
    store: Any = context.metadata
    scan = store.scan

    async def counting(parent: Key, **bounds: Any) -> list[Record]:
        page: list[Record] = await scan(parent, **bounds)
        scans.append(len(page))
        return page

    store.scan = counting
    return scans


async def test_entries_count_once_they_are_old_enough() -> None:
    cluster = Cluster()
    context = cluster.open()
    backlogs, writer = Backlogs(context, RULES), Writer(context)
    await writer.append(ORDERS)
    cluster.clock.now += 15_000
    await writer.append(ORDERS)
    view = await view_of(backlogs)
    assert (view.ready_entries, view.ready_bytes, view.oldest_created_at_ms, view.lag_offsets) == (0, 0, None, 2)
    cluster.clock.now += 5_000
    view = await view_of(backlogs)
    assert (view.ready_entries, view.ready_offsets, view.oldest_created_at_ms) == (1, 1, START_MS)
    cluster.clock.now += 15_000
    view = await view_of(backlogs)
    assert (view.ready_entries, view.ready_offsets, view.lag_offsets) == (2, 2, 2)
    assert view.ready_bytes > 200


async def test_an_idle_log_and_entries_that_are_still_young_cost_no_scan() -> None:
    cluster = Cluster()
    context = cluster.open()
    backlogs, writer = Backlogs(context, RULES), Writer(context)
    await writer.append(ORDERS)
    await view_of(backlogs)
    scans = counted_scans(context)
    for _ in range(5):
        await writer.append(ORDERS)
        cluster.clock.now += 1_000
        await view_of(backlogs)
    assert scans == []
    cluster.clock.now += 20_000
    assert (await view_of(backlogs)).ready_entries == 6
    assert len(scans) == 1
    await writer.append(ORDERS)
    cluster.clock.now += 20_000
    assert (await view_of(backlogs)).ready_entries == 7
    assert scans[1:] == [1], "only what came since"


async def test_a_compacted_or_cut_log_is_counted_anew() -> None:
    cluster = Cluster()
    context = cluster.open()
    backlogs, writer = Backlogs(context, RULES), Writer(context)
    for _ in range(4):
        await writer.append(ORDERS)
    cluster.clock.now += 20_000
    assert (await view_of(backlogs)).ready_entries == 4
    await compact_once(context, ORDERS, max_offsets=1)
    view = await view_of(backlogs)
    assert (view.ready_entries, view.lag_offsets, view.segments_since_merge) == (3, 3, 1)
    await delete_records(context, ORDERS, 4)
    view = await view_of(backlogs)
    assert (view.ready_entries, view.lag_offsets) == (1, 1)


async def test_counting_ends_with_a_full_run() -> None:
    cluster = Cluster()
    context = cluster.open()
    rules = Rules(trigger_bytes=1 << 20, trigger_age_ms=60_000, min_age_ms=0, max_offsets_per_run=3)
    writer = Writer(context)
    for _ in range(10):
        await writer.append(ORDERS)
    view = await view_of(Backlogs(context, rules))
    assert (view.ready_offsets, view.lag_offsets) == (3, 10)


async def test_an_old_pending_append_counts_although_its_entry_is_not_written() -> None:
    cluster = Cluster(atomic=False)
    await leave_pending(cluster, ORDERS)
    view = await view_of(backlogs := Backlogs(cluster.open(), RULES))
    assert (view.ready_entries, view.pending_is_old, view.lag_offsets) == (0, False, 1)
    cluster.clock.now += 20_000
    view = await view_of(backlogs)
    assert (view.ready_entries, view.ready_offsets, view.pending_is_old) == (1, 1, True)
    assert view.oldest_created_at_ms == START_MS


@pytest.mark.parametrize(
    ("dies_at", "after", "state"),
    [
        ("/index/", False, "WRITING_COMPACTED_INDEX"),
        ("/index/", True, "UPDATING_CURSOR"),
        ("DELETING_OLD", True, "DELETING_OLD"),
    ],
)
async def test_a_run_in_flight_shows_with_its_state(dies_at: str, after: bool, state: str) -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS)
    die_at(context, dies_at, after=after)
    with pytest.raises(MetadataDenied):
        await compact_once(context, ORDERS)
    assert (await view_of(Backlogs(cluster.open(), RULES))).run_state == state


async def test_deleted_and_unknown_logs_are_not_there_and_a_damaged_one_is_named() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS, Log("visits", 0), Log("clicks", 0))
    await delete_topic(context, "visits")
    await context.metadata.put(context.keys.control(Log("clicks", 0)), b"damaged")
    looked = await Backlogs(context, RULES).inspect([Log("visits", 0), Log("clicks", 0), Log("none", 0), ORDERS])
    assert [view.log for view in looked] == [Log("clicks", 0), ORDERS]
    assert isinstance(looked[0], BadLog)


async def test_logs_no_longer_wanted_are_forgotten() -> None:
    cluster = Cluster()
    context = cluster.open()
    await Writer(context).append(ORDERS, Log("visits", 0))
    backlogs = Backlogs(context, RULES)
    await backlogs.inspect([ORDERS, Log("visits", 0)])
    assert backlogs.keep([ORDERS]) == [Log("visits", 0)]
    assert backlogs.keep([ORDERS]) == []
