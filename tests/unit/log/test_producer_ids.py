from __future__ import annotations

import asyncio
import random

import pytest

from llog.errors import MetadataUnavailable
from llog.formats.values import ProducerIdBlock, decode_value, encode_value
from llog.log.context import LogContext
from llog.log.producer_ids import PRODUCER_ID_FIRST, ProducerIds
from llog.stores.metadata.faulty import FaultRates, FaultyMetadataStore
from llog.stores.metadata.memory import MemoryStore
from llog.stores.metadata.port import MetadataStore
from llog.stores.objects.memory import MemoryObjectStore
from tests.contexts import log_context


def context_on(metadata: MetadataStore, seed: int = 0) -> LogContext:
    return log_context(metadata, MemoryObjectStore("memory://ids"), seed=seed)


async def stored(context: LogContext) -> int:
    record = await context.metadata.get(context.keys.producer_ids())
    assert record is not None
    return decode_value(ProducerIdBlock, record.value, "block").next_producer_id


async def test_ids_are_taken_in_blocks_and_each_is_given_once() -> None:
    metadata = MemoryStore()
    processes = [ProducerIds(context_on(metadata, seed), block_ids=10) for seed in range(3)]
    given = await asyncio.gather(*(ids.next() for ids in processes for _ in range(25)))
    assert len(set(given)) == 75
    assert min(given) == PRODUCER_ID_FIRST
    assert await stored(context_on(metadata)) == PRODUCER_ID_FIRST + 90


async def test_one_block_serves_all_who_wait_for_it() -> None:
    metadata = MemoryStore()
    ids = ProducerIds(context_on(metadata), block_ids=10)
    assert sorted(await asyncio.gather(*(ids.next() for _ in range(10)))) == list(
        range(PRODUCER_ID_FIRST, PRODUCER_ID_FIRST + 10)
    )
    assert await stored(context_on(metadata)) == PRODUCER_ID_FIRST + 10


async def test_ids_go_on_where_a_restore_left_them() -> None:
    context = context_on(MemoryStore())
    await context.metadata.put(context.keys.producer_ids(), encode_value(ProducerIdBlock(next_producer_id=2**40)))
    assert await ProducerIds(context).next() == 2**40


@pytest.mark.parametrize("seed", range(5))
async def test_lost_requests_and_replies_give_no_id_twice(seed: int) -> None:
    metadata = MemoryStore()
    rates = FaultRates(unavailable=0.1, lost_reply=0.2, lost_request=0.2)
    processes = [
        ProducerIds(
            context_on(FaultyMetadataStore(metadata, random_source=random.Random(f"{seed}:{i}"), rates=rates), i),
            block_ids=2,
        )
        for i in range(4)
    ]
    given = await asyncio.gather(*(ids.next() for ids in processes for _ in range(20)))
    assert len(set(given)) == 80


async def test_a_store_that_stays_away_ends_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llog.log.producer_ids.PRODUCER_IDS_ROUNDS_MAX", 3)
    rates = FaultRates(unavailable=1.0)
    metadata = FaultyMetadataStore(MemoryStore(), random_source=random.Random(1), rates=rates)
    ids = ProducerIds(context_on(metadata))
    with pytest.raises(MetadataUnavailable):
        await ids.next()
    metadata.rates = FaultRates()
    assert await ids.next() == PRODUCER_ID_FIRST, "the next caller tries again"
