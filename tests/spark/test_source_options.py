"""Options and filters of the data source: what they mean, and errors that name the option."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from llog.errors import InvalidArgument
from llog.limits import SPLIT_BYTES_DEFAULT
from llog.log.keys import Log
from llog.pipeline.scan.plan import Narrowing, ScanRequest
from llog.pipeline.scan.splits import ScanRange
from llog.pipeline.scan.subscription import EARLIEST, LATEST, Subscription
from llog.spark.source.options import SourceOptions, parse_options

SUBSCRIBED = {"subscribe": "orders"}


def batch(**options: str) -> SourceOptions:
    return parse_options({**SUBSCRIBED, **options}, "batch")


def test_defaults_are_those_of_kafka_s_source() -> None:
    options = batch()
    request = options.request
    assert request.subscription == Subscription(("orders",))
    assert (request.starting.all_logs, request.ending.all_logs) == (EARLIEST, LATEST)
    assert (request.fail_on_data_loss, request.split_bytes) == (True, SPLIT_BYTES_DEFAULT)
    assert not options.push_filters
    assert parse_options(SUBSCRIBED, "stream").request.starting.all_logs == LATEST


def test_names_are_understood_in_any_case_and_options_survive_the_way_to_spark() -> None:
    given = {
        "SUBSCRIBE": "a, b,",
        "startingoffsets": '{"a": {"0": 5}, "b": {"0": -2}}',
        "EndingOffsetsByTimestamp": '{"a": {"0": 1}, "b": {"0": 2}}',
        "failOnDataLoss": "FALSE",
        "minPartitions": "8",
        "maxOffsetsPerTrigger": "1000",
        "maxBytesPerTrigger": "64m",
        "splitBytes": "4MiB",
        "pushFilters": "True",
        "groupId": "g",
        "llog.metadata.url": "lmdb:///x/metadata",
        "llog.objects.url": "file:///x/objects",
    }
    options = parse_options(given, "batch")
    assert options.request.subscription == Subscription(("a", "b")), "as in Kafka's source, an empty name is none"
    assert options.request.starting.by_log == {Log("a", 0): 5, Log("b", 0): EARLIEST}
    assert options.request.ending.timestamps_by_log == {Log("a", 0): 1, Log("b", 0): 2}
    assert options.request.ending.newer_than_all == "latest"
    assert (options.offsets_per_trigger, options.bytes_per_trigger, options.group) == (1_000, 64 << 20, "g")
    assert (options.request.splits_min, options.request.split_bytes) == (8, 4 << 20)
    assert options.push_filters
    assert options.settings_in_force().metadata_url == "lmdb:///x/metadata"
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "subscribe, subscribePattern, assign: none is given; .* not of a catalogue table"),
        ({"groupId": "g"}, "subscribe, subscribePattern, assign: none is given; give exactly one$"),
        ({"subscribe": "a", "assign": '{"a":[0]}'}, "subscribe and assign are given"),
        ({"subscribe": "a b"}, "subscribe: topic: 'a b' may only hold"),
        ({"subscribe": ""}, "^subscribe: is empty"),
        ({"subscribe": " , "}, "^subscribe: names no topic"),
        ({**SUBSCRIBED, "groupId": "g" * 161}, "^groupId: 'ggg.* longer than 160 bytes"),
        ({**SUBSCRIBED, "path": "orders"}, "path: load\\(\\) takes no path; name topics by the option subscribe"),
        ({**SUBSCRIBED, "topic": "orders"}, "topic: is an option of writes; name the topics to read by subscribe"),
        ({**SUBSCRIBED, "compression": "zstd"}, "compression: is an option of writes"),
        ({"subscribePattern": "("}, "subscribePattern: pattern '\\('"),
        ({"assign": "orders"}, "assign: 'orders' is not JSON"),
        ({"assign": '{"orders": 3}'}, 'assign: orders: must be of the form {"orders": \\[0, 1\\]}'),
        ({**SUBSCRIBED, "startingOffsets": "newest"}, "startingOffsets: 'newest' is not JSON"),
        ({**SUBSCRIBED, "startingOffsets": "latest"}, "startingOffsets: latest \\(-1\\) is the end of a batch read"),
        ({**SUBSCRIBED, "startingOffsets": '{"orders": {"0": -1}}'}, "startingOffsets: latest"),
        (
            {**SUBSCRIBED, "startingOffsets": '{"orders": {"0": -3}}'},
            "startingOffsets: orders:0: -3 is neither an offset",
        ),
        (
            {**SUBSCRIBED, "startingOffsets": '{"orders": {"x": 1}}'},
            "startingOffsets: orders: 'x': 1 must be a partition",
        ),
        ({**SUBSCRIBED, "endingOffsets": "earliest"}, "endingOffsets: earliest \\(-2\\) is the start of a batch read"),
        ({**SUBSCRIBED, "startingTimestamp": "-5"}, "startingTimestamp: -5 must be from 0"),
        ({**SUBSCRIBED, "startingOffsetsByTimestampStrategy": "x"}, "startingOffsetsByTimestampStrategy: 'x'"),
        ({**SUBSCRIBED, "minPartitions": "many"}, "minPartitions: 'many' must be a number"),
        ({**SUBSCRIBED, "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: 0 must be from 1"),
        ({**SUBSCRIBED, "splitBytes": "1"}, "splitBytes: 1 must be from"),
        ({**SUBSCRIBED, "splitBytes": "wide"}, "splitBytes: "),
        ({**SUBSCRIBED, "failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe' must be true or false"),
        (
            {**SUBSCRIBED, "startingOfsets": "earliest"},
            "startingofsets: is not an option.*did you mean startingOffsets",
        ),
        ({**SUBSCRIBED, "kafka.bootstrap.servers": "x:1"}, "kafka.bootstrap.servers: is for Kafka brokers"),
        ({**SUBSCRIBED, "llog.metdata.url": "x"}, "llog.metdata.url: there is no setting LLOG_METDATA_URL"),
        (
            {**SUBSCRIBED, "llog.s3.secret.access.key": "x"},
            "set a secret in the environment, as LLOG_S3_SECRET_ACCESS_KEY",
        ),
        (
            {**SUBSCRIBED, "llog.metadata.url": "postgresql://me:pw@h/d"},
            "set a secret in the environment, as LLOG_METADATA_URL",
        ),
    ],
)
def test_an_option_that_cannot_be_used_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        parse_options(given, "batch")


def test_a_stream_has_no_ending_options() -> None:
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        with pytest.raises(InvalidArgument, match=f"{name}: a stream has no end"):
            parse_options({**SUBSCRIBED, name: "latest"}, "stream")


# -- filters ---------------------------------------------------------------------------------------------------------

INSTANT = datetime(2026, 5, 1, 12, 0, 0, 123_457, tzinfo=UTC)
INSTANT_US = 1_777_636_800_123_457


def pushed(*filters: Any) -> tuple[ScanRequest, list[Any]]:
    from llog.spark.source.filters import push_filters

    return push_filters(ScanRequest(subscription=Subscription(("orders",))), filters)


def test_comparisons_become_bounds_and_the_rest_is_given_back() -> None:
    source = pytest.importorskip("pyspark.sql.datasource")
    other = source.EqualTo(("value",), b"x")
    request, left = pushed(
        source.IsNotNull(("offset",)),
        source.GreaterThan(("offset",), 5),
        source.LessThanOrEqual(("offset",), 9),
        source.GreaterThanOrEqual(("timestamp",), INSTANT),
        source.LessThan(("timestamp",), INSTANT.replace(tzinfo=None, year=2027)),
        source.In(("partition",), (1, 2, None)),
        source.EqualTo(("partition",), 2),
        other,
    )
    assert left == [other]
    assert request.narrowing == Narrowing(partitions=frozenset({2}), offset_from=6, offset_before=10)
    assert request.shape.since_us == INSTANT_US
    assert request.shape.before_us is not None
    assert request.shape.before_us > INSTANT_US


def test_a_list_of_offsets_narrows_and_is_given_back() -> None:
    source = pytest.importorskip("pyspark.sql.datasource")
    listed = source.In(("offset",), (9, 4))
    request, left = pushed(listed)
    assert left == [listed]
    assert (request.narrowing.offset_from, request.narrowing.offset_before) == (4, 10)


@pytest.mark.parametrize("kind", ["IsNull", "Not"])
def test_what_bounds_cannot_say_is_given_back(kind: str) -> None:
    source = pytest.importorskip("pyspark.sql.datasource")
    condition = source.IsNull(("offset",)) if kind == "IsNull" else source.Not(source.EqualTo(("offset",), 3))
    request, left = pushed(condition, source.EqualTo(("offset",), None))
    assert len(left) == 2
    assert request.narrowing == Narrowing()


def test_narrowing_cuts_ranges_and_leaves_logs_out() -> None:
    wanted = ScanRange(Log("orders", 3), 10, 20)
    assert Narrowing(offset_from=12, offset_before=15).of(wanted) == ScanRange(Log("orders", 3), 12, 15)
    assert Narrowing(partition_from=4).of(wanted) is None
    assert Narrowing(partition_before=3).of(wanted) is None
    assert Narrowing(topics=frozenset({"visits"})).of(wanted) is None
    assert Narrowing(offset_from=20).of(wanted) is None
