"""Every way out of the batching producer is counted once: what landed, and what failed with which error."""

from __future__ import annotations

import asyncio

from llog.errors import ObjectStoreUnavailable
from llog.formats.buffers import total_length
from llog.log.fence import fence
from llog.log.keys import Log
from llog.log.producers import ProducerClaim
from tests.unit.broker.batching_bench import Bench, group, numbered

A, B = Log("orders", 0), Log("orders", 1)


async def test_appends_are_counted_by_group_record_and_byte() -> None:
    bench = Bench()
    groups = [group(A, b"x", b"y"), group(B, b"z")]
    await asyncio.gather(bench.producer.append(groups), bench.producer.append([group(A, b"w")]))
    sizes = sum(total_length(one.body) for one in (*groups, group(A, b"w")))
    assert bench.metrics.appended == {"groups": 3, "records": 4, "bytes": sizes}
    assert not bench.metrics.failures


async def test_a_repeat_lands_and_its_records_are_not_counted_again() -> None:
    bench = Bench()
    claimed = group(A, b"x", claim=ProducerClaim(1, 0, 0, 0))
    for _ in range(2):
        await bench.producer.append([claimed])
    assert (bench.metrics.appended["groups"], bench.metrics.appended["records"]) == (2, 1)
    assert bench.metrics.appended["bytes"] == total_length(claimed.body)


async def test_a_batch_refused_among_others_is_a_failure_of_its_own() -> None:
    bench = Bench()
    await bench.producer.append([numbered(A, 0, 5, 1)])
    assert (bench.metrics.appended["groups"], bench.metrics.appended["records"]) == (1, 2)
    assert bench.metrics.failures == {"OutOfOrderSequence": 1}


async def test_refusals_are_counted_by_their_error() -> None:
    bench = Bench(pool_bytes=4_096)
    await bench.meet(A)
    await fence(bench.context, A)
    await bench.producer.append([group(A, b"x")])
    assert bench.metrics.failures == {"LogFenced": 1}
    assert bench.pool.try_take(4_000)
    await bench.producer.append([group(A, b"x"), group(B, b"x")])
    assert bench.metrics.failures == {"LogFenced": 1, "BackPressureRejected": 2}
    bench.pool.give(4_000)
    await bench.producer.close()
    await bench.producer.append([group(A, b"x")])
    assert bench.metrics.failures["AppendNotCommitted"] == 1
    assert not bench.metrics.appended


async def test_a_flush_that_fails_counts_each_of_its_groups() -> None:
    bench = Bench()
    await bench.meet(A, B)
    bench.objects.held = True
    waiting = [bench.producer.submit([group(log, b"x")]) for log in (A, B, A)]
    await bench.objects.begun(1)
    bench.objects.puts[0].set_exception(ObjectStoreUnavailable("put", "blob", "away"))
    await asyncio.gather(*waiting)
    assert bench.metrics.failures == {"AppendNotCommitted": 3}
