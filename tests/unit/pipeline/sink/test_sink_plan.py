"""Plans as values: numbering, claims, pages, keys; and what a query's record does when its store is away."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from llog.errors import InvalidArgument, MetadataUnavailable, SinkBusy, SinkPlanLost, ValueTooLarge
from llog.formats.values import SinkPlan, decode_value, encode_value
from llog.log.ids import new_object_id
from llog.log.inspect.describe import describe_record
from llog.log.keys import Keys, Log
from llog.log.producer_ids import PRODUCER_ID_FIRST
from llog.log.producers import WINDOW, Judgement, judge_claim, with_batch
from llog.pipeline.sink import plan as sink_plan
from llog.pipeline.sink.commit import commit_batch
from llog.pipeline.sink.plan import (
    CommitPlan,
    PlanSlice,
    UploadedSlice,
    claimed_slices,
    epochs_needed,
    page_keys,
    paged,
    plan_key,
    plan_slices,
)
from llog.pipeline.sink.query import SINK_EPOCHS_MAX, SinkBatch, admit, allot_producer_id, head_key
from llog.pipeline.sink.uploads import group_by_blob
from llog.stores.metadata.port import Record
from tests.unit.pipeline.sink.sink_stage import Stage, rows

A, B = Log("orders", 0), Log("orders", 1)
KEYS = Keys()


def uploaded(log: Log, count: int = 3, *, byte_length: int = 10) -> UploadedSlice:
    blob = new_object_id(1_000, random.Random(f"{log}{count}{byte_length}").getrandbits)
    return UploadedSlice(
        topic=log.topic,
        partition=log.partition,
        incarnation=1,
        data_key=f"memory://x/{blob}",
        encoding="kafka-v2",
        byte_offset=0,
        byte_length=byte_length,
        msg_count=count,
    )


def planned(slices: tuple[PlanSlice, ...], *, first_epoch: int = 4) -> CommitPlan:
    return CommitPlan(
        query="q", batch=7, plan_id="p", producer_id=9, first_epoch=first_epoch, slices=slices, created_at_ms=1
    )


def test_slices_are_numbered_per_log_in_the_order_of_uploads() -> None:
    slices = plan_slices("q", 7, [uploaded(A, 1), uploaded(B, 2), uploaded(A, 3)])
    assert [(part.log, part.n, part.msg_count) for part in slices] == [(A, 0, 1), (B, 0, 2), (A, 1, 3)]
    assert len({part.append_id for part in slices}) == 3
    assert plan_slices("q", 7, [uploaded(A, 1)])[0].append_id == slices[0].append_id, "the same for the same bytes"
    assert plan_slices("q", 8, [uploaded(A, 1)])[0].append_id != slices[0].append_id


def test_a_log_takes_the_claims_of_a_plan_in_order_and_recognises_each_again() -> None:
    """By the rules that `reserve` uses."""
    slices = plan_slices("q", 7, [uploaded(A, 2) for _ in range(2 * WINDOW + 3)])
    assert epochs_needed(slices) == 3
    claims = [claimed.claim for claimed in claimed_slices(planned(slices), slices)[A]]
    state = None
    for number, claim in enumerate(claims):
        assert judge_claim(state, claim).judgement is Judgement.NEW
        state = with_batch(state, claim.at(2 * number), 0)
        for earlier in claims[: number + 1]:
            again = judge_claim(state, earlier).judgement
            assert again is (Judgement.REPEAT if earlier.epoch == claim.epoch else Judgement.OLD_EPOCH)
        later = [judge_claim(state, skipped).judgement for skipped in claims[number + 2 : number + 3]]
        assert all(j is Judgement.OUT_OF_ORDER or claims[number + 2].first_sequence == 0 for j in later)
    assert all(one.epoch <= other.epoch for one, other in pairwise(claims))


def test_a_plan_whose_slices_are_out_of_order_is_refused() -> None:
    slices = plan_slices("q", 7, [uploaded(A), uploaded(A)])
    with pytest.raises(InvalidArgument, match="slice 1 where 0 should be"):
        claimed_slices(planned(slices), tuple(reversed(slices)))


def test_pages_hold_all_slices_in_order_and_their_number_is_bounded() -> None:
    slices = plan_slices("q", 7, [uploaded(A) for _ in range(50)])
    pages = paged(slices, 2_000)
    assert len(pages) > 5
    assert [part for page in pages for part in page] == list(slices)
    assert paged(()) == [()]
    with pytest.raises(ValueTooLarge):
        paged(plan_slices("q", 7, [uploaded(A) for _ in range(1_001)]), 1)


def test_keys_have_the_route_of_their_query_also_after_a_listing() -> None:
    plan = CommitPlan(
        query="a b/c", batch=3, plan_id="p", producer_id=1, first_epoch=0, slices=(), pages=2, created_at_ms=1
    )
    keys = [head_key(KEYS, "a b/c"), plan_key(KEYS, "a b/c", 3), *page_keys(KEYS, plan)]
    assert len(set(keys)) == 4
    for key in keys:
        assert KEYS.key_of(key.path) == key


def test_a_plan_is_shown_by_who_knows_only_the_common_fields() -> None:
    slices = plan_slices("q", 7, [uploaded(A)])
    value = encode_value(planned(slices))
    seen = decode_value(SinkPlan, value, "plan")
    assert (seen.query, seen.batch, seen.slices[0].append_id) == ("q", 7, slices[0].append_id)
    described = describe_record(KEYS, Record(plan_key(KEYS, "q", 7), value, 1))
    assert (described.kind, described.problem) == ("sink", "")


def test_copies_go_together_as_long_as_no_log_comes_twice_and_the_blob_is_not_too_large() -> None:
    slices = [uploaded(A, byte_length=4), uploaded(B, byte_length=4), uploaded(A, byte_length=4)]
    assert [len(group) for group in group_by_blob(slices, 100)] == [2, 1]
    assert [len(group) for group in group_by_blob(slices[:2], 5)] == [1, 1]
    assert group_by_blob([], 5) == []


async def test_producer_ids_are_given_once_and_far_from_made_up_ones() -> None:
    stage = Stage(atomic=False)
    given = [await allot_producer_id(stage.context, SinkBatch("q", 0)) for _ in range(3)]
    assert given == [PRODUCER_ID_FIRST, PRODUCER_ID_FIRST + 1, PRODUCER_ID_FIRST + 2]


async def test_more_epochs_than_a_producer_has_are_refused() -> None:
    with pytest.raises(ValueTooLarge):
        await admit(Stage(atomic=True).context, SinkBatch("q", 0), epochs=SINK_EPOCHS_MAX + 1)


async def test_a_store_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(atomic=True)

    async def away(*_: object, **__: object) -> None:
        raise MetadataUnavailable("get", "x", "no connection")

    monkeypatch.setattr(stage.context.metadata, "get_many", away)
    with pytest.raises(SinkBusy, match="no connection") as given_up:
        await admit(stage.context, SinkBatch("q", 5), epochs=1)
    assert given_up.value.retriable
    assert (given_up.value.query, given_up.value.batch) == ("q", 5)


async def test_every_record_of_the_sink_is_shown_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(atomic=True)
    monkeypatch.setattr(sink_plan, "paged", lambda slices: paged(slices, 200))
    uploads = await stage.upload(*(rows(f"{n}", topic="orders", partition=n) for n in range(3)))

    async def no_performance(*_: object) -> None:
        raise SinkPlanLost("q", 0, "for this test")

    monkeypatch.setattr("llog.pipeline.sink.commit.perform", no_performance)
    with pytest.raises(SinkPlanLost):
        await commit_batch(stage.context, SinkBatch("q", 0), uploads)
    keys = stage.context.keys
    described = [
        describe_record(keys, r) async for r in stage.context.metadata.scan_tree(f"{keys.root}/@cluster/sinks")
    ]
    assert sorted(one.kind for one in described) == [
        "sink",
        "sink_head",
        "sink_page",
        "sink_page",
        "sink_page",
        "sink_query",
    ]
    assert {one.problem for one in described} == {""}
    by_kind = {one.kind: one.value for one in described}
    assert (by_kind["sink_query"]["query"], by_kind["sink_head"]["batch"]) == ("q", 0)
    assert by_kind["sink_page"]["slices"][0]["topic"] == "orders"
