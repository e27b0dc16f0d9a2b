"""h31: the batches of a producer reach two brokers in the wrong order; none is lost, none is stored twice (I3).
h32: one append holds more batches of a producer than a log remembers; retries of the last five are recognised (I3).
h33: two processes take producer ids at the same time, or get no answer; no id is given twice (I1).
"""

from __future__ import annotations

from typing import Any

from llog.errors import LlogError, OutOfOrderSequence
from llog.formats.records.encode import encode_records
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.append.known import Growth
from llog.log.append.pieces import Landed, Piece
from llog.log.context import LogContext
from llog.log.producer_ids import ProducerIds
from llog.log.producers import WINDOW
from llog.testing.hazards.toolkit import (
    ORDERS,
    alone,
    append,
    attempt,
    claim,
    compact,
    context_of,
    doing,
    expect,
    expect_answers_hold,
    expect_compacts_to_the_end,
    expect_contents,
    expect_landed,
)
from llog.testing.sim import ActorContext, Script, SimFault, script
from llog.testing.sim.actor import ActorFunction

FIRST, SECOND = append(b"first", by=claim(0)), append(b"second", by=claim(1))


@script("h31", atomic_groups=False)
def the_second_batch_of_a_producer_comes_first(script: Script) -> None:
    slow = script.actor("broker A", FIRST).run_until("put_object")
    early = alone(script, SECOND, "broker B")
    expect(isinstance(early, OutOfOrderSequence), f"the second batch came first and got {early!r}")
    expect_landed(slow.finish(), 1)
    expect_landed(alone(script, SECOND, "broker B"), 2)
    # The answers were lost, and the client asks the other broker.
    expect_landed(alone(script, FIRST, "broker B"), 1)
    expect_landed(alone(script, SECOND, "broker A"), 2)
    expect_answers_hold(script)
    expect_contents(script, (1, b"first"), (2, b"second"))


BATCHES = 2 * WINDOW


def _append_all(first: int, count: int) -> ActorFunction:
    """One append of that many batches, each of one record."""
    bodies = [encode_records([b"%d" % sequence], timestamps_ms=5) for sequence in range(first, first + count)]
    pieces = tuple(Piece(1, len(body), claim(first + i)) for i, body in enumerate(bodies))
    group = EncodedGroup(ORDERS, count, "kafka-v2", bodies, 5, pieces=pieces)

    async def run(ctx: ActorContext) -> Any:
        appender = Appender(context_of(ctx), growth=Growth.HTTP)
        answer = await attempt(appender.append([group]))
        await appender.close()
        return answer if isinstance(answer, LlogError) else answer[0]

    return run


def _expect_repeats(script: Script, when: str) -> None:
    """A broker that knows nothing of the log yet recognises the last five batches, and where the producer stands."""
    for sequence in range(BATCHES - WINDOW, BATCHES):
        answer = alone(script, _append_all(sequence, 1), "retry")
        landed = answer.pieces[0] if isinstance(answer, Appended) else answer
        expected = Landed(sequence + 1, sequence + 1, repeated=True)
        expect(landed == expected, f"{when}, batch {sequence} sent again got {landed}, expected {expected}")


@script("h32", atomic_groups=False)
def an_append_of_many_batches_of_one_producer(script: Script) -> None:
    expect_landed(alone(script, _append_all(0, BATCHES), "broker"), 1)
    _expect_repeats(script, "after the append")
    alone(script, compact(), "compactor")
    _expect_repeats(script, "after compaction")
    expect_landed(alone(script, _append_all(BATCHES, 1), "broker"), BATCHES + 1)
    expect_contents(script, *((1 + n, b"%d" % n) for n in range(BATCHES + 1)))
    expect_compacts_to_the_end(script)


IDS = "*/@cluster/producer-ids"
IDS_PER_BLOCK = 3


async def _take_five(context: LogContext) -> list[int]:
    ids = ProducerIds(context, block_ids=IDS_PER_BLOCK)
    return [await ids.next() for _ in range(5)]


@script("h33", atomic_groups=False)
def two_processes_take_producer_ids(script: Script) -> None:
    given: list[int] = []
    for number, fault in enumerate((None, SimFault.LOST_REQUEST, SimFault.LOST_REPLY, SimFault.LATE_WRITE)):
        slow = script.actor(f"slow-{number}", doing(_take_five)).run_until("put", IDS)
        if fault is None:
            given += alone(script, doing(_take_five), "fast")  # it takes a block that the slow one has read as free
        else:
            slow.perform(fault)
            given += alone(script, doing(_take_five), "fast")
        given += slow.finish()
        expect(len(set(given)) == len(given), f"{fault}: an id was given twice: {sorted(given)}")
