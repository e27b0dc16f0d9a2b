"""Record groups that mean one incarnation of their topic, beside groups that take any: each is judged by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from llog.broker.produce.flush import Pacing
from llog.broker.produce.groups import join_groups, share_out
from llog.errors import LogDeleted, LogError, PartitionOutOfRange
from llog.formats.records.encode import encode_records
from llog.log.append.append import Appended, EncodedGroup
from llog.log.append.pieces import Landed, Piece
from llog.log.keys import Keys, Log
from llog.log.producers import ProducerClaim
from llog.log.topics.admin import create_topic
from llog.log.topics.create import load_topic
from llog.log.topics.delete import delete_topic
from tests.unit.broker.batching_bench import A, Bench, group

SLOW = Pacing(max_delay_ms=3_600_000, gather_ms=3_600_000)


def meant(log: Log, incarnation: int, payload: bytes = b"meant", claim: ProducerClaim | None = None) -> EncodedGroup:
    """One record for this incarnation of the topic alone."""
    body = encode_records([payload], timestamps_ms=7)
    return EncodedGroup(log, 1, "kafka-v2", [body], 7, pieces=(Piece(1, len(body), claim, 7, incarnation),))


@pytest.fixture(params=[True, False], ids=["atomic", "cas"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def bench(**options: object) -> Bench:
        benches.append(Bench(atomic=request.param, **options))  # type: ignore[arg-type]
        return benches[-1]

    yield bench
    for made in benches:
        await made.producer.close()
        await made.appender.close()
        assert made.pool.used == 0


async def outcomes(bench: Bench, *groups: EncodedGroup) -> list[Appended | LogError]:
    """Of calls that share a flush."""
    waiting = [bench.producer.submit([one]) for one in groups]
    await bench.producer.flush()
    return [answer.result().outcomes[0] for answer in waiting]


async def again(bench: Bench) -> None:
    """The topic is deleted and created again, by another process."""
    await delete_topic(bench.context, A.topic)
    await create_topic(bench.context, A.topic, partitions=A.partition + 1)


async def incarnation(bench: Bench) -> int | None:
    found = await load_topic(bench.context, A.topic, strict=True)
    return found[0].incarnation if found is not None and found[0].state == "LIVE" else None


def kinds(found: Sequence[Appended | LogError]) -> list[type]:
    return [type(one) for one in found]


async def test_a_group_that_means_an_incarnation_creates_no_topic_and_no_partition(make: Callable[..., Bench]) -> None:
    bench = make()
    await create_topic(bench.context, A.topic, partitions=1)
    [refused] = await outcomes(bench, meant(Log(A.topic, 1), 1))
    assert isinstance(refused, PartitionOutOfRange)
    await delete_topic(bench.context, A.topic)
    assert kinds(await outcomes(bench, meant(Log(A.topic, 0), 1))) == [LogDeleted]
    assert await incarnation(bench) is None


async def test_groups_of_one_log_are_judged_by_the_incarnation_that_each_means(make: Callable[..., Bench]) -> None:
    bench = make(pacing=SLOW)
    await create_topic(bench.context, A.topic)
    await bench.meet(A)
    await again(bench)
    found = await outcomes(
        bench, meant(A, 1, b"1"), group(A, b"2"), meant(A, 2, b"3"), meant(A, 1, b"4"), group(A, b"5")
    )
    assert kinds(found) == [LogDeleted, Appended, Appended, LogDeleted, Appended]
    assert await bench.contents(A) == [b"2", b"3", b"5"]


async def test_a_group_without_meaning_creates_the_topic_beside_one_that_means_the_deleted_one(
    make: Callable[..., Bench],
) -> None:
    bench = make(pacing=SLOW)
    await create_topic(bench.context, A.topic)
    await bench.meet(A)
    await delete_topic(bench.context, A.topic)
    assert kinds(await outcomes(bench, meant(A, 1), group(A, b"new"))) == [LogDeleted, Appended]
    assert await bench.contents(A) == [b"new"]
    assert await incarnation(bench) == 2


@pytest.mark.parametrize("first", ["meant", "any"])
async def test_groups_that_wait_for_one_look_up_are_judged_each_by_itself(
    make: Callable[..., Bench], first: str
) -> None:
    """The log is unknown to the broker, and its topic deleted: the look-up for one group does not decide the other."""
    bench = make()
    await create_topic(bench.context, A.topic)
    await delete_topic(bench.context, A.topic)
    groups = [meant(A, 1), group(A, b"new")]
    answers = [bench.producer.submit([one]) for one in (groups if first == "meant" else reversed(groups))]
    found = [(await answer).outcomes[0] for answer in answers]
    assert kinds(found) == ([LogDeleted, Appended] if first == "meant" else [Appended, LogDeleted])
    assert await bench.contents(A) == [b"new"]


async def test_knowledge_of_an_earlier_incarnation_does_not_refuse_a_later_one(make: Callable[..., Bench]) -> None:
    bench = make()
    await create_topic(bench.context, A.topic)
    assert kinds(await outcomes(bench, meant(A, 1))) == [Appended]
    await again(bench)
    assert kinds(await outcomes(bench, meant(A, 2), meant(A, 1))) == [Appended, LogDeleted]


async def test_a_topic_created_again_between_upload_and_commit_takes_nothing(make: Callable[..., Bench]) -> None:
    """The control record is found stale at the commit; the second look-up must not take the records either."""
    bench = make()
    await create_topic(bench.context, A.topic)
    await bench.meet(A)
    bench.objects.held = True
    answer = bench.producer.submit([meant(A, 1)])
    await bench.objects.begun(1)
    await again(bench)
    bench.objects.held = False
    for put in bench.objects.puts:
        put.set_result(None)
    assert kinds((await answer).outcomes) == [LogDeleted]
    assert await bench.contents(A) == []


def test_only_neighbours_that_mean_the_same_are_joined_and_each_group_gets_its_own_offsets() -> None:
    claim = ProducerClaim(9, 0, 0, 0)
    groups = [meant(A, 1), meant(A, 1), group(A, b"x"), group(A, b"y"), meant(A, 2), meant(A, 2, claim=claim)]
    lengths = [len(one.body[0]) for one in groups]
    joined = join_groups(groups, lengths, claimed=True)
    assert [(piece.msg_count, piece.incarnation) for piece in joined.pieces] == [(2, 1), (2, None), (1, 2), (1, 2)]
    gone = LogDeleted(*A, "gone")
    found = Appended(A, 5, 8, "k", "u", (gone, Landed(5, 6), Landed(7, 7), Landed(8, 8)))
    shared = share_out(joined, found, groups, Keys("llog"))
    starts = [one.start_offset if isinstance(one, Appended) else type(one) for one in shared]
    assert starts == [LogDeleted, LogDeleted, 5, 6, 7, 8]
