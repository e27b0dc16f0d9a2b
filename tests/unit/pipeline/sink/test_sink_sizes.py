"""A row that its topic does not accept fails the batch before anything of it is planned; sizes are the encoder's."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llog.errors import RecordTooLarge
from llog.formats.arrow import to_arrow
from llog.formats.records.encode import encode_columns, record_bytes
from llog.formats.records.encode import largest_record_bytes as http_size
from llog.formats.records.record_batch import Codec
from llog.formats.records.record_columns import BinaryColumn, Header, HeaderColumn, columns_from_rows
from llog.log.keys import Log
from llog.log.topics.admin import create_topic
from llog.pipeline.sink import targets as sink_targets
from llog.pipeline.sink.commit import commit_batch
from llog.pipeline.sink.plan import plan_key
from llog.pipeline.sink.query import SinkBatch
from llog.pipeline.sink.rows import RoundRobin, Router, encode_groups
from tests.unit.pipeline.sink.sink_stage import Stage, rows

LOG = Log("small", 0)
LIMIT = 200

some_bytes = st.none() | st.binary(max_size=80) | st.sampled_from([63, 64, 8_191, 8_192, 1_048_576]).map(bytes)
some_headers = st.lists(st.tuples(st.text(max_size=70), st.none() | st.binary(max_size=70)), max_size=70)
some_rows = st.lists(st.tuples(some_bytes, some_bytes, some_headers), min_size=1, max_size=4)


@settings(deadline=None)  # the encoder is loaded when it is first used
@given(some_rows)
def test_sizes_are_what_the_encoder_writes_for_each_record_alone(
    given_rows: list[tuple[bytes | None, bytes | None, list[Header]]],
) -> None:
    keys, values, headers = (list(column) for column in zip(*given_rows, strict=True))
    columns = columns_from_rows(values, keys=keys, headers=headers, timestamps_ms=5)
    alone = [
        len(encode_columns(columns_from_rows([value], keys=[key], headers=[own], timestamps_ms=5)))
        for key, value, own in given_rows
    ]
    assert record_bytes(columns).tolist() == alone
    assert http_size(values, keys, headers) == max(alone)

    def encode(limits: dict[str, int]) -> int:
        router = Router(LOG.topic, {}, RoundRobin())
        table = to_arrow(columns).select(["key", "value", "headers"])
        [group] = encode_groups(table, router, codec=Codec.NONE, timestamp_ms=5, message_bytes_max=limits)
        return group.largest_record_bytes

    assert (encode({}), encode({LOG.topic: max(alone)})) == (max(alone), 0)
    with pytest.raises(RecordTooLarge):
        encode({LOG.topic: max(alone) - 1})


def test_columns_cut_out_of_longer_ones_are_judged_alone() -> None:
    whole = columns_from_rows(
        [b"x" * 500, b"y", None],
        keys=[None, b"k", None],
        headers=[[("a", b"z" * 500)], [], [("b", None)]],
        timestamps_ms=5,
    )
    tail = type(whole)(
        offsets=whole.offsets[1:],
        timestamps_ms=whole.timestamps_ms[1:],
        timestamp_types=whole.timestamp_types[1:],
        keys=_from(whole.keys, 1),
        values=_from(whole.values, 1),
        headers=HeaderColumn(whole.headers.offsets[1:], whole.headers.keys, whole.headers.values),
    )
    assert record_bytes(tail).tolist() == record_bytes(whole).tolist()[1:]


def _from(column: BinaryColumn, row: int) -> BinaryColumn:
    return column.from_row(row)


# -- in the sink -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def stage() -> Stage:
    stage = Stage(atomic=True)
    await create_topic(stage.context, LOG.topic, partitions=1, config={"max.message.bytes": str(LIMIT)})
    return stage


async def refused(stage: Stage, table: pa.Table, topic: str | None) -> RecordTooLarge:
    """Why, and that nothing of it was uploaded or planned."""
    stage.objects.puts = 0
    with pytest.raises(RecordTooLarge) as caught:
        await stage.commit(SinkBatch("q", 0), table, topic=topic)
    assert await stage.context.metadata.get(plan_key(stage.context.keys, "q", 0)) is None
    return caught.value


@pytest.mark.parametrize("topic", [LOG.topic, None])
async def test_a_row_that_is_too_large_for_its_topic_fails_its_task(stage: Stage, topic: str | None) -> None:
    table = rows("fine", "x" * LIMIT, topic=None if topic else LOG.topic)
    error = await refused(stage, table, topic)
    assert stage.objects.puts == 0
    assert (error.topic, error.limit, error.size > LIMIT) == (LOG.topic, LIMIT, True)
    assert "small:0: a record takes 270 bytes, more than the topic's max.message.bytes of 200" in str(error)


async def test_rows_are_judged_one_by_one_and_uncompressed(stage: Stage) -> None:
    await stage.commit(SinkBatch("q", 0), rows(*["y" * 100] * 50), topic=LOG.topic)
    assert len(await stage.values(LOG)) == 50


async def test_a_topic_that_no_task_knew_is_judged_by_the_driver(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_targets, "SINK_LOGS_LISTED_MAX", 0)
    error = await refused(stage, rows("x" * LIMIT, topic=LOG.topic), None)
    assert (error.topic, error.limit) == (LOG.topic, LIMIT)
    await stage.commit(SinkBatch("q", 0), rows("fine", topic=LOG.topic))
    assert await stage.values(LOG) == [b"fine"]


async def test_a_topic_that_is_not_there_yet_has_the_default(stage: Stage) -> None:
    error = await refused(stage, rows("x" * 1_100_000, topic="fresh"), None)
    assert (error.topic, error.limit) == ("fresh", 1_048_588)
    uploads = await stage.upload(rows("x" * 1_000_000, topic="fresh"))
    assert (await commit_batch(stage.context, SinkBatch("q", 0), uploads)).records == 1
