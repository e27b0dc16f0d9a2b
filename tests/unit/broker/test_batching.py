"""The batching producer: few blobs, a true answer for every call, order, and bounds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from llog.broker.produce import flush as batching_flush
from llog.broker.produce.buffer import CallGroup, LogGroups, ProduceCall, Timings
from llog.broker.produce.flush import (
    BATCH_GATHER_MS,
    BATCH_PAUSE_MS_MAX,
    BATCH_SMALL_BYTES_MAX,
    FlushDue,
    Pacing,
    pacing_of,
    pause_of,
    plan_flush,
)
from llog.broker.produce.groups import CommittedBatch, share_out, stretches_of
from llog.broker.produce.producer import BATCH_FLUSHES_MAX, BATCH_GROUP_OVERHEAD_BYTES
from llog.errors import (
    AppendNotCommitted,
    AppendUncertain,
    BackPressureRejected,
    InvalidArgument,
    LogError,
    LogFenced,
    MetadataUnavailable,
    ObjectStoreUnavailable,
    OutOfOrderSequence,
    ValueTooLarge,
)
from llog.formats.buffers import total_length
from llog.limits import KIB, LOG_CLAIMS_PER_APPEND_MAX, MIB
from llog.log.append.append import Appended, EncodedGroup
from llog.log.append.pieces import Landed, PieceOutcome
from llog.log.fence import fence
from llog.log.keys import Keys, Log
from llog.log.producers import WINDOW, ProducerClaim
from llog.stores.metadata.memory import MemoryStore
from llog.stores.metadata.port import GroupOutcome, Key, Record, Write
from llog.testing import batching_scenarios
from llog.testing.sim import check_repeatable, find, run_seed
from tests.patience import PATIENCE_SECONDS
from tests.unit.broker.batching_bench import A, B, Bench, C, bare, group, numbered, settle_down

SLOW = Pacing(max_delay_ms=3_600_000, gather_ms=3_600_000)
"""Flushes only full batches, or on request of a test."""


def offsets(outcome: Appended | LogError) -> tuple[int, int]:
    assert isinstance(outcome, Appended), outcome
    return outcome.start_offset, outcome.end_offset


async def together(bench: Bench, *calls: Sequence[EncodedGroup]) -> list[list[Appended | LogError]]:
    """Submit calls that share one flush; `bench` has the pacing SLOW."""
    await bench.meet(*{g.log for call in calls for g in call})
    waiting = [bench.producer.submit(call) for call in calls]
    await bench.producer.flush()
    return [answer.result().outcomes for answer in waiting]


@pytest.fixture(params=[True, False], ids=["atomic", "cas"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def bench(**options: object) -> Bench:
        benches.append(Bench(atomic=request.param, **options))  # type: ignore[arg-type]
        return benches[-1]

    yield bench
    for made in benches:
        made.objects.held = False
        for put in made.objects.puts:
            if not put.done():
                put.set_result(None)
        await made.producer.close()
        await made.appender.close()
        assert made.pool.used == 0, "bytes were not given back"
        assert made.metrics.buffered == (0, 0)


# -- joining and sharing out ---------------------------------------------------------------------------------------


async def test_requests_of_many_callers_go_into_one_blob_and_each_learns_its_own_offsets(
    make: Callable[..., Bench],
) -> None:
    bench = make(pacing=SLOW)
    answers = await together(
        bench, [group(A, b"a1", b"a2"), group(B, b"b1")], [group(A, b"a3")], [group(B, b"b2"), group(A, b"a4")]
    )
    assert [[offsets(outcome) for outcome in answer] for answer in answers] == [
        [(1, 2), (1, 1)],
        [(3, 3)],
        [(2, 2), (4, 4)],
    ]
    assert len(bench.objects.blobs) == 1
    assert await bench.contents(A) == [b"a1", b"a2", b"a3", b"a4"]
    [flush] = bench.metrics.flushes
    assert (flush.groups, flush.records) == (2, 6)


async def test_every_answer_names_the_entry_and_the_blob_that_hold_its_records(make: Callable[..., Bench]) -> None:
    bench = make(pacing=SLOW)
    answers = await together(bench, *([group(A, b"x", b"y")] for _ in range(3)))
    await bench.appender.close()
    for [outcome] in answers:
        assert isinstance(outcome, Appended)
        assert outcome.index_key == bench.context.keys.index_entry(A, 6).path
        assert await bench.context.metadata.get(Key(outcome.index_key, str(A))) is not None
        assert await bench.objects.head(bench.objects.name_of(outcome.wal_uri))


async def test_bodies_are_uploaded_as_the_very_buffers_that_came(make: Callable[..., Bench]) -> None:
    bench = make(pacing=SLOW)
    groups = [group(A, b"one"), group(A, b"two")]
    await together(bench, *([g] for g in groups))
    [[_, *bodies]] = bench.objects.blobs
    assert [id(buffer) for buffer in bodies] == [id(g.body[0]) for g in groups]


async def test_repeats_and_gaps_are_answered_to_their_senders(make: Callable[..., Bench]) -> None:
    bench = make(pacing=SLOW)
    [first] = await together(bench, [numbered(A, 0, 1)])
    again, gap, plain, following = await together(
        bench, [numbered(A, 1)], [numbered(A, 5)], [group(A, b"plain")], [numbered(A, 2, 9, 3)]
    )
    assert offsets(first[0]) == (1, 2)
    [repeat] = again
    assert isinstance(repeat, Appended)
    assert repeat.pieces == (Landed(2, 2, repeated=True),)
    assert isinstance(gap[0], OutOfOrderSequence)
    assert offsets(plain[0]) == (3, 3)
    [mixed] = following
    assert isinstance(mixed, Appended)
    assert (mixed.pieces[0], mixed.pieces[2]) == (Landed(4, 4), Landed(5, 5))
    assert isinstance(mixed.pieces[1], OutOfOrderSequence)
    assert await bench.contents(A) == [b"1/0", b"1/1", b"plain", b"1/2", b"1/3"]
    cached = [(c.start_offset, c.end_offset) for c in bench.committed]
    assert cached == [(1, 2), (3, 4), (5, 5)]


async def test_errors_are_not_shared_between_callers(make: Callable[..., Bench]) -> None:
    bench = make(pacing=SLOW)
    await together(bench, [group(A, b"x")])
    await fence(bench.context, A)
    [one], [other] = await together(bench, [group(A, b"y")], [group(A, b"z")])
    assert isinstance(one, LogFenced)
    assert isinstance(other, LogFenced)
    assert one is not other
    assert str(one) == str(other)
    assert one.outcomes == other.outcomes == []


async def test_one_fenced_log_does_not_harm_the_others_of_the_flush(make: Callable[..., Bench]) -> None:
    bench = make()
    await bench.producer.append([group(A, b"x")])
    await fence(bench.context, A)
    refused, landed = await bench.producer.append([group(A, b"y"), group(B, b"z")])
    assert isinstance(refused, LogFenced)
    assert offsets(landed) == (1, 1)


async def test_the_cache_is_filled_before_the_caller_is_answered(make: Callable[..., Bench]) -> None:
    bench = make()
    [outcome] = await bench.producer.append([group(A, b"x", b"y", timestamp_ms=99)])
    assert bench.committed == [CommittedBatch(A, 1, 2, "kafka-v2", bench.committed[0].body, 99)]
    assert offsets(outcome) == (1, 2)


async def test_a_cache_that_fails_changes_no_answer(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make()

    def fall(batch: CommittedBatch) -> None:
        raise RuntimeError("no cache today")

    bench.on_committed = fall
    [outcome] = await bench.producer.append([group(A, b"x")])
    assert offsets(outcome) == (1, 1)
    assert bench.metrics.counted == {"batching_listener_failures": 1}
    assert "no cache today" in caplog.text


async def test_bare_batches_and_other_encodings_of_one_log_wait_for_the_next_flush(make: Callable[..., Bench]) -> None:
    bench = make(pacing=SLOW)
    await bench.meet(A, B)
    sent = [bare(A, b"1"), bare(A, b"2"), group(A, b"3"), group(B, b"b"), group(A, b"4")]
    waiting = [bench.producer.submit([g]) for g in sent]
    await bench.producer.flush()
    assert [offsets(w.result().outcomes[0]) for w in waiting] == [(1, 1), (2, 2), (3, 3), (1, 1), (4, 4)]
    assert await bench.contents(A) == [b"1", b"2", b"3", b"4"]
    assert [(flush.groups, flush.records) for flush in bench.metrics.flushes] == [(2, 2), (1, 1), (1, 2)]


async def test_a_log_with_more_claims_than_one_append_may_carry_goes_on_in_the_next_flush(
    make: Callable[..., Bench],
) -> None:
    bench = make(pacing=SLOW)
    await bench.meet(A)
    count = LOG_CLAIMS_PER_APPEND_MAX + 10
    waiting = [bench.producer.submit([group(A, b"x", claim=ProducerClaim(n, 0, 0, 0))]) for n in range(count)]
    await bench.producer.flush()
    assert [offsets(w.result().outcomes[0]) for w in waiting] == [(n, n) for n in range(1, count + 1)]
    assert [flush.records for flush in bench.metrics.flushes] == [LOG_CLAIMS_PER_APPEND_MAX, 10]
    keys = {outcome.index_key for w in waiting for outcome in w.result().outcomes if isinstance(outcome, Appended)}
    assert keys == {bench.context.keys.index_entry(A, end).path for end in (LOG_CLAIMS_PER_APPEND_MAX, count)}


async def test_pipelined_batches_of_one_producer_share_one_flush(make: Callable[..., Bench]) -> None:
    bench = make(pacing=SLOW)
    await bench.meet(A)
    count = 3 * LOG_CLAIMS_PER_APPEND_MAX
    waiting = [bench.producer.submit([group(A, b"x", claim=ProducerClaim(7, 0, n, n))]) for n in range(count)]
    await bench.producer.flush()
    assert [offsets(w.result().outcomes[0]) for w in waiting] == [(n, n) for n in range(1, count + 1)]
    assert [flush.records for flush in bench.metrics.flushes] == [count]


async def test_a_producer_with_five_claims_in_a_full_flush_still_joins_it(make: Callable[..., Bench]) -> None:
    bench = make(pacing=SLOW)
    await bench.meet(A)
    full = [(7, n) for n in range(WINDOW)] + [(100 + n, 0) for n in range(LOG_CLAIMS_PER_APPEND_MAX - WINDOW)]
    sent = [*full, (7, WINDOW), (99, 0), (7, WINDOW + 1)]
    waiting = [bench.producer.submit([group(A, b"x", claim=ProducerClaim(p, 0, n, n))]) for p, n in sent]
    await bench.producer.flush()
    assert [offsets(w.result().outcomes[0]) for w in waiting] == [(n, n) for n in range(1, len(sent) + 1)]
    assert [flush.records for flush in bench.metrics.flushes] == [LOG_CLAIMS_PER_APPEND_MAX + 1, 2]


def test_a_stretch_ends_where_another_writer_or_a_refused_piece_comes_between() -> None:
    error = OutOfOrderSequence(*A, "no")
    pieces: list[PieceOutcome] = [
        Landed(1, 2),
        Landed(3, 3),
        error,
        Landed(4, 4),
        Landed(9, 9),
        Landed(2, 2, repeated=True),
        Landed(10, 11),
    ]
    assert [(s.first, s.last, s.start_offset, s.end_offset) for s in stretches_of(pieces)] == [
        (0, 1, 1, 3),
        (3, 3, 4, 4),
        (4, 4, 9, 9),
        (6, 6, 10, 11),
    ]


async def test_a_refused_request_of_several_pieces_learns_of_each() -> None:
    groups = [numbered(A, 7, 8), numbered(A, 3)]
    log_groups = LogGroups()
    for g in groups:
        log_groups.add(CallGroup(ProduceCall(1, 1, 0.0, lambda _: None), 0, g, total_length(g.body)))
    errors = [OutOfOrderSequence(*A, f"sequence {n}") for n in (7, 8, 3)]
    errors[0].outcomes = list(errors)
    first, second = share_out(log_groups.join(), errors[0], groups, Keys())
    assert isinstance(first, OutOfOrderSequence)
    assert isinstance(second, OutOfOrderSequence)
    assert [str(error) for error in first.outcomes] == [str(error) for error in errors[:2]]
    assert (second.reason, second.outcomes) == ("sequence 3", [])


# -- when a flush begins -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "due"),
    [
        ({}, FlushDue(101)),
        ({"now_ms": 101}, FlushDue(101, "idle")),
        ({"uploading": True}, FlushDue(110)),
        ({"uploading": True, "now_ms": 110}, FlushDue(110, "delay")),
        ({"full": True, "uploading": True}, FlushDue(100, "size")),
        ({"urgency": "pressure", "uploading": True}, FlushDue(100, "pressure")),
        ({"last_start_ms": 99}, FlushDue(101)),
    ],
)
def test_a_local_store_waits_only_while_it_is_busy(state: dict[str, object], due: FlushDue) -> None:
    asked = {"now_ms": 100, "first_ms": 100, "last_start_ms": 0, "uploading": False, "full": False, "urgency": ""}
    assert plan_flush(pacing_of("file", 10), **(asked | state)) == due  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "due"),
    [
        ({"last_start_ms": -10_000, "now_ms": 101}, FlushDue(101, "idle")),
        ({"last_start_ms": 50}, FlushDue(300)),
        ({"last_start_ms": 50, "now_ms": 300}, FlushDue(300, "idle")),
        ({"last_start_ms": 50, "uploading": True}, FlushDue(600)),
        ({"last_start_ms": 590}, FlushDue(600)),
    ],
)
def test_where_puts_cost_money_a_trickle_is_flushed_four_times_a_second(
    state: dict[str, object], due: FlushDue
) -> None:
    asked = {"now_ms": 100, "first_ms": 100, "last_start_ms": 0, "uploading": False, "full": False, "urgency": ""}
    assert plan_flush(pacing_of("s3", 500), **(asked | state)) == due  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "due"),
    [
        ({"last_start_ms": 95, "pause_ms": 8.0}, FlushDue(103)),
        ({"last_start_ms": 95, "pause_ms": 8.0, "now_ms": 103}, FlushDue(103, "idle")),
        ({"last_start_ms": 99, "pause_ms": 50.0}, FlushDue(110)),
        ({"last_start_ms": 99, "pause_ms": 50.0, "full": True}, FlushDue(100, "size")),
    ],
)
def test_a_small_flush_pauses_after_the_last_one_but_not_beyond_the_promised_delay(
    state: dict[str, object], due: FlushDue
) -> None:
    asked = {"now_ms": 100, "first_ms": 100, "last_start_ms": 0, "uploading": False, "full": False, "urgency": ""}
    assert plan_flush(pacing_of("file", 10), **(asked | state)) == due  # type: ignore[arg-type]


def test_the_pause_grows_with_the_cost_of_the_last_flush_up_to_a_bound() -> None:
    local = pacing_of("file", 10)
    lone, usual, large = (pause_of(local, logs, groups) for logs, groups in ((1, 1), (8, 20), (1_000, 8_000)))
    assert lone < usual < large == BATCH_PAUSE_MS_MAX
    assert pause_of(pacing_of("s3", 500), 1_000, 8_000) == 0


async def test_a_small_call_after_a_flush_waits_and_a_large_one_does_not(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching_flush, "BATCH_PAUSE_MS_MAX", 3_600_000)
    bench = make(pacing=Pacing(3_600_000, gather_ms=0, core_fraction=1e-9))
    await bench.meet(A)
    assert offsets((await bench.producer.append([group(A, b"first")]))[0]) == (1, 1)
    small = bench.producer.submit([group(A, b"small")])
    await settle_down()
    assert len(bench.objects.blobs) == 1
    large = bench.producer.submit([group(A, b"x" * BATCH_SMALL_BYTES_MAX)])
    assert [offsets((await call).outcomes[0]) for call in (small, large)] == [(2, 2), (3, 3)]
    assert len(bench.objects.blobs) == 2


async def test_a_full_batch_is_flushed_at_once(make: Callable[..., Bench]) -> None:
    bench = make(max_bytes=64 * KIB, pacing=SLOW)
    await bench.meet(A, B)
    waiting = [bench.producer.submit([group(log, bytes(16 * KIB))]) for log in (A, B, A, B, A)]
    await asyncio.wait(waiting[:3], timeout=PATIENCE_SECONDS)
    assert [w.done() for w in waiting] == [True, True, True, False, False]
    assert bench.metrics.reasons() == ["size"]


async def test_a_group_larger_than_a_batch_has_a_flush_of_its_own(make: Callable[..., Bench]) -> None:
    bench = make(max_bytes=64 * KIB, pacing=SLOW)
    await bench.meet(A, B)
    small, large = bench.producer.submit([group(A, b"s")]), bench.producer.submit([group(B, bytes(100 * KIB))])
    await asyncio.wait_for(asyncio.gather(small, large), PATIENCE_SECONDS)
    assert [(flush.reason, flush.groups) for flush in bench.metrics.flushes] == [("size", 1), ("size", 1)]


async def test_the_delay_counts_from_the_first_buffered_record_even_while_another_flush_is_stuck(
    make: Callable[..., Bench],
) -> None:
    bench = make(max_delay_ms=100)
    await bench.meet(A, B)
    bench.objects.held = True
    stuck = bench.producer.submit([group(A, b"x")])
    await bench.objects.begun(1)
    later = bench.producer.submit([group(B, b"y")])
    await bench.objects.begun(2)
    bench.objects.puts[1].set_result(None)
    assert offsets((await later).outcomes[0]) == (1, 1)
    assert not stuck.done()
    assert bench.metrics.reasons() == ["delay"]
    assert bench.metrics.flushes[0].queue_wait_ms >= 99, "it waits for the upload, or for its delay"


async def test_an_upload_that_ends_lets_the_next_begin(make: Callable[..., Bench]) -> None:
    bench = make(max_delay_ms=3_600_000)
    await bench.meet(A, B)
    bench.objects.held = True
    bench.producer.submit([group(A, b"x")])
    await bench.objects.begun(1)
    bench.producer.submit([group(B, b"y")])
    # The absence of an upload has no signal; without one under way, the second would begin after BATCH_GATHER_MS.
    await asyncio.sleep(5 * BATCH_GATHER_MS / 1_000)
    await settle_down()
    assert len(bench.objects.puts) == 1
    bench.objects.puts[0].set_result(None)
    await bench.objects.begun(2)


async def test_a_lone_request_does_not_wait_for_the_delay_of_an_earlier_one(make: Callable[..., Bench]) -> None:
    bench = make(max_delay_ms=3_600_000)
    await bench.meet(A, B)
    bench.objects.held = True
    first = bench.producer.submit([group(A, b"x")])
    await bench.objects.begun(1)
    second = bench.producer.submit([group(B, b"y")])  # to be woken for in an hour
    bench.objects.held = False
    bench.objects.puts[0].set_result(None)
    await asyncio.wait_for(asyncio.gather(first, second), PATIENCE_SECONDS)
    await asyncio.wait_for(bench.producer.append([group(A, b"z")]), PATIENCE_SECONDS)
    assert bench.metrics.reasons() == ["idle"] * 3


async def test_uploads_and_flushes_are_bounded(make: Callable[..., Bench]) -> None:
    bench = make(max_bytes=KIB, uploads_max=3)
    logs = [Log("many", n) for n in range(BATCH_FLUSHES_MAX + 8)]
    await bench.meet(*logs)
    bench.objects.held = True
    waiting = [bench.producer.submit([group(log, bytes(KIB))]) for log in logs]
    await settle_down()
    assert len(bench.objects.puts) == 3
    for _ in logs:
        await settle_down()
        for put in bench.objects.puts:
            if not put.done():
                put.set_result(None)
    await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_SECONDS)
    assert len(bench.metrics.flushes) == len(logs)


# -- order ---------------------------------------------------------------------------------------------------------


async def test_commits_of_one_log_keep_the_order_of_calls_when_the_second_upload_ends_first(
    make: Callable[..., Bench],
) -> None:
    bench = make(max_bytes=KIB)
    await bench.meet(A)
    bench.objects.held = True
    first, second = (bench.producer.submit([group(A, name, bytes(KIB))]) for name in (b"first", b"second"))
    await settle_down()
    bench.objects.puts[1].set_result(None)
    await settle_down()
    assert not second.done()
    bench.objects.puts[0].set_result(None)
    assert offsets((await first).outcomes[0]) == (1, 2)
    assert offsets((await second).outcomes[0]) == (3, 4)


async def test_a_flush_that_fails_early_does_not_let_the_third_pass_the_first(make: Callable[..., Bench]) -> None:
    bench = make(max_bytes=KIB)
    await bench.meet(A)
    bench.objects.held = True
    first, second, third = (bench.producer.submit([group(A, name, bytes(KIB))]) for name in (b"1", b"2", b"3"))
    await settle_down()
    bench.objects.puts[1].set_exception(ObjectStoreUnavailable("put", "blob", "gone"))
    bench.objects.puts[2].set_result(None)
    await settle_down()
    assert isinstance((await second).outcomes[0], AppendNotCommitted)
    assert not third.done()
    bench.objects.puts[0].set_result(None)
    assert offsets((await first).outcomes[0]) == (1, 2)
    assert offsets((await third).outcomes[0]) == (3, 4)


async def test_a_flush_that_waits_for_one_log_is_not_passed_at_another(make: Callable[..., Bench]) -> None:
    bench = make(max_bytes=KIB)
    await bench.meet(A, B)
    bench.objects.held = True
    one = bench.producer.submit([group(A, b"a1", bytes(KIB))])
    two = bench.producer.submit([group(A, b"a2"), group(B, b"b1")])
    three = bench.producer.submit([group(B, b"b2", bytes(KIB))])
    await settle_down()
    for put in bench.objects.puts[1:]:
        put.set_result(None)
    await settle_down()
    assert not three.done()
    for put in bench.objects.puts:
        if not put.done():
            put.set_result(None)
    bench.objects.held = False
    await asyncio.gather(one, two, three)
    assert [p[:2] for p in await bench.contents(B) if p] == [b"b1", b"b2", b"\0\0"]


# -- memory --------------------------------------------------------------------------------------------------------


async def test_a_call_without_room_is_refused_whole_and_leaves_nothing_behind(make: Callable[..., Bench]) -> None:
    bench = make(pool_bytes=100 * KIB)
    await bench.meet(A, B)
    bench.objects.held = True
    accepted = bench.producer.submit([group(A, bytes(60 * KIB))])
    used = bench.pool.used
    refused = await bench.producer.append([group(A, b"small"), group(B, bytes(60 * KIB))])
    assert [type(outcome) for outcome in refused] == [BackPressureRejected, BackPressureRejected]
    assert all(isinstance(outcome, LogError) and outcome.retriable for outcome in refused)
    assert bench.pool.used == used
    assert bench.metrics.counted == {"batching_rejections": 1}
    await bench.objects.begun(1)
    bench.objects.puts[0].set_result(None)
    bench.objects.held = False
    await accepted
    assert await bench.contents(A) == [bytes(60 * KIB)]
    assert isinstance((await bench.producer.append([group(B, bytes(60 * KIB))]))[0], Appended)


async def test_bytes_are_given_back_only_when_the_outcome_is_known(make: Callable[..., Bench]) -> None:
    bench = make()
    await bench.meet(A)
    bench.objects.held = True
    body = group(A, bytes(5 * KIB))
    waiting = bench.producer.submit([body])
    charge = total_length(body.body) + BATCH_GROUP_OVERHEAD_BYTES
    await bench.objects.begun(1)
    assert (bench.pool.used, bench.metrics.buffered) == (charge, (charge, 1))
    bench.objects.puts[0].set_result(None)
    await waiting
    assert bench.pool.used == 0


async def test_at_three_quarters_nothing_waits_any_longer(make: Callable[..., Bench]) -> None:
    bench = make(pool_bytes=100 * KIB, pacing=SLOW)
    await bench.meet(A)
    waiting = [bench.producer.submit([group(A, bytes(30 * KIB))]) for _ in range(2)]
    await settle_down()
    assert not any(w.done() for w in waiting)
    waiting.append(bench.producer.submit([group(A, bytes(20 * KIB))]))
    await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_SECONDS)
    assert set(bench.metrics.reasons()) == {"pressure"}


async def test_an_invalid_group_is_the_callers_error_and_harms_no_other_call(make: Callable[..., Bench]) -> None:
    bench = make(pool_bytes=MIB)
    with pytest.raises(InvalidArgument, match="occurs twice"):
        bench.producer.submit([group(A, b"x"), group(A, b"y")])
    with pytest.raises(InvalidArgument, match="topic"):
        bench.producer.submit([group(Log("no/topic", 0), b"x")])
    with pytest.raises(ValueTooLarge):
        bench.producer.submit([group(A, bytes(MIB))])
    assert await bench.producer.append([]) == []
    assert bench.pool.used == 0


# -- trouble -------------------------------------------------------------------------------------------------------


async def test_a_flush_whose_upload_fails_answers_everybody_that_nothing_was_committed(
    make: Callable[..., Bench],
) -> None:
    bench = make()
    await bench.meet(A, B)
    bench.objects.held = True
    waiting = [bench.producer.submit([group(log, b"x")]) for log in (A, B, A)]
    await bench.objects.begun(1)
    bench.objects.puts[0].set_exception(ObjectStoreUnavailable("put", "blob", "the store is down"))
    for answer in await asyncio.gather(*waiting):
        assert isinstance(answer.outcomes[0], AppendNotCommitted)
        assert "the store is down" in str(answer.outcomes[0])
    assert bench.metrics.counted == {"batching_flush_failures": 1}
    bench.objects.held = False
    assert offsets((await bench.producer.append([group(A, b"y")]))[0]) == (1, 1)


async def test_a_cancelled_callers_records_land_all_the_same(make: Callable[..., Bench]) -> None:
    bench = make()
    await bench.meet(A)
    bench.objects.held = True
    caller = asyncio.create_task(bench.producer.append([group(A, b"x")]))
    await bench.objects.begun(1)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    bench.objects.puts[0].set_result(None)
    bench.objects.held = False
    await bench.producer.flush()
    assert await bench.contents(A) == [b"x"]


class DeafStore(MemoryStore):
    """Reads and writes of one log get no answer, or an error."""

    def __init__(self, deaf: Log, error: Exception | None = None) -> None:
        super().__init__(atomic_groups=False)
        self._deaf, self._error = str(deaf), error
        self.is_deaf = True

    async def _listen(self, keys: Sequence[Key]) -> None:
        if self.is_deaf and any(key.route == self._deaf for key in keys):
            if self._error is not None:
                raise self._error
            await asyncio.Event().wait()

    async def get_many(self, keys: Sequence[Key], *, strict: bool = False) -> list[Record | None]:
        await self._listen(keys)
        return await super().get_many(keys, strict=strict)

    async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
        await self._listen([write.key for group in groups for write in group])
        return await super().write(groups)


async def test_a_new_log_that_cannot_be_looked_up_delays_no_other_log() -> None:
    metadata = DeafStore(A)
    bench = Bench(metadata=metadata)
    stuck = bench.producer.submit([group(A, b"x"), group(B, b"y")])
    behind = bench.producer.submit([group(A, b"z")])
    assert offsets((await bench.producer.append([group(B, b"b")]))[0]) == (2, 2)
    assert not stuck.done()
    assert not behind.done()
    await close_soon(bench)
    first, second = stuck.result().outcomes
    assert isinstance(first, AppendNotCommitted)
    assert offsets(second) == (1, 1)
    assert isinstance(behind.result().outcomes[0], AppendNotCommitted)


async def test_new_logs_of_one_request_share_a_blob(make: Callable[..., Bench]) -> None:
    bench = make(pacing=SLOW)
    waiting = bench.producer.submit([group(log, b"x") for log in (A, B, C)])
    await bench.producer.flush()
    assert [offsets(outcome) for outcome in waiting.result().outcomes] == [(1, 1)] * 3
    assert len(bench.objects.blobs) == 1
    await bench.producer.close()


async def test_a_new_log_that_fails_gets_its_own_error() -> None:
    bench = Bench(metadata=DeafStore(A, PermissionError("a bug")))
    failed, landed = await bench.producer.append([group(A, b"x"), group(B, b"y")])
    assert isinstance(failed, AppendNotCommitted)
    assert offsets(landed) == (1, 1)
    await bench.producer.close()
    bench = Bench(metadata=DeafStore(A, MetadataUnavailable("get", "control", "away")), max_delay_ms=0)
    waiting = bench.producer.submit([group(A, b"x")])
    assert offsets((await bench.producer.append([group(C, b"y")]))[0]) == (1, 1)
    await close_soon(bench)
    assert isinstance(waiting.result().outcomes[0], AppendNotCommitted)


# -- the end -------------------------------------------------------------------------------------------------------


async def close_soon(bench: Bench) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llog.broker.produce.producer.BATCH_CLOSE_WAIT_MS", 50)
        await asyncio.wait_for(bench.producer.close(), PATIENCE_SECONDS)
    assert bench.pool.used == 0


async def test_close_flushes_the_buffer_and_then_refuses(make: Callable[..., Bench]) -> None:
    bench = make(pacing=SLOW)
    await bench.meet(A)
    known, new = bench.producer.submit([group(A, b"x")]), bench.producer.submit([group(B, b"y")])
    await bench.producer.close()
    assert offsets(known.result().outcomes[0]) == offsets(new.result().outcomes[0]) == (1, 1)
    assert bench.metrics.reasons() == ["close"] * len(bench.metrics.flushes)
    [refused] = await bench.producer.append([group(A, b"late")])
    assert isinstance(refused, AppendNotCommitted)
    await bench.producer.close()
    assert await bench.contents(A) == [b"x"]


async def test_close_waits_for_a_bounded_time_and_then_answers_every_call() -> None:
    bench = Bench(max_bytes=KIB, uploads_max=1)
    await bench.meet(A, B)
    bench.objects.held = True
    uploading, queued = bench.producer.submit([group(A, bytes(KIB))]), bench.producer.submit([group(B, bytes(KIB))])
    await settle_down()
    await close_soon(bench)
    for answer in (uploading, queued):
        assert isinstance(answer.result().outcomes[0], AppendNotCommitted)


async def test_a_commit_that_never_ends_is_uncertain_at_close() -> None:
    metadata = DeafStore(A)
    metadata.is_deaf = False
    bench = Bench(metadata=metadata)
    await bench.meet(A, B)
    metadata.is_deaf = True
    waiting = bench.producer.submit([group(A, b"x")])
    await bench.objects.begun(1)
    await settle_down()
    await close_soon(bench)
    assert isinstance(waiting.result().outcomes[0], AppendUncertain)


async def test_flush_returns_when_all_that_was_accepted_is_answered(make: Callable[..., Bench]) -> None:
    bench = make(pacing=SLOW)
    waiting = [bench.producer.submit([group(log, b"x")]) for log in (A, B, C)]
    await bench.producer.flush()
    assert all(w.done() for w in waiting)
    assert set(bench.metrics.reasons()) == {"call"}, "logs that are looked up meanwhile are flushed for the call too"
    await bench.producer.flush()


@pytest.mark.parametrize("limit", ["BATCH_LOGS_PER_COMMIT", "BATCH_LOGS_ANSWERED_PER_TURN"])
async def test_very_many_logs_are_committed_and_answered_in_steps_with_other_tasks_in_between(
    make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(batching_flush, limit, 4)
    logs = [Log("wide", partition) for partition in range(10)]
    bench = make(pacing=SLOW)
    await bench.meet(*logs)
    turns, over = 0, asyncio.Event()

    async def others() -> None:
        nonlocal turns
        while not over.is_set():
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(others())
    committed_at: dict[int, int] = {}
    bench.on_committed = lambda batch: committed_at.update({batch.log.partition: turns})
    [outcomes] = await together(bench, [group(log, b"a", b"b") for log in logs])
    over.set()
    await counting
    assert [offsets(outcome) for outcome in outcomes] == [(1, 2)] * 10
    assert len(bench.objects.blobs) == 1
    assert len(set(committed_at.values())) >= 3, committed_at
    for log in logs:
        assert await bench.contents(log) == [b"a", b"b"]


async def test_a_failed_step_leaves_earlier_steps_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    class FailsLater(MemoryStore):
        steps = 0

        async def write(self, groups: Sequence[Sequence[Write]]) -> list[GroupOutcome]:
            if len(groups) == 4:
                self.steps += 1
            if self.steps > 1:
                raise MetadataUnavailable("write", "memory", "gone")
            return await super().write(groups)

    monkeypatch.setattr(batching_flush, "BATCH_LOGS_PER_COMMIT", 4)
    logs = [Log("wide", partition) for partition in range(8)]
    bench = Bench(metadata=FailsLater(), pacing=SLOW)
    [outcomes] = await together(bench, [group(log, b"a") for log in logs])
    assert [offsets(outcome) for outcome in outcomes[:4]] == [(1, 1)] * 4
    assert all(isinstance(outcome, AppendNotCommitted | AppendUncertain) for outcome in outcomes[4:]), outcomes
    assert bench.pool.used == 0
    await bench.producer.close()


async def test_a_caller_learns_where_its_time_went(make: Callable[..., Bench]) -> None:
    bench = make(pacing=Pacing(max_delay_ms=20, gather_ms=20))
    await bench.meet(A)
    bench.objects.held = True
    waiting = asyncio.create_task(bench.producer.append_timed([group(A, b"x")]))
    await bench.objects.begun(1)
    await asyncio.sleep(0.03)  # how long the upload takes
    bench.objects.puts[0].set_result(None)
    timings = (await waiting).timings
    assert timings.queue_ms >= 20
    assert timings.upload_ms >= 29
    assert timings.commit_ms >= 0
    assert Timings(1, 5, 2).longest(Timings(3, 4, 1)) == Timings(3, 5, 2)


# -- everything at once ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["batching-atomic", "batching-cas"])
def test_under_many_faults_every_answer_is_true_and_nothing_accepted_is_unanswered(name: str) -> None:
    what = find(name)
    assert what.module == batching_scenarios.__name__
    for seed in range(1, 2_001 if os.environ.get("LLOG_SOAK") == "1" else 26):
        run = run_seed(what, seed, keep_trace=False)
        assert run.ok, f"{name}, seed {seed}: {run.error}\n{run.printed}"


def test_a_simulated_broker_is_repeatable() -> None:
    check_repeatable(find("batching-cas"), 3)
