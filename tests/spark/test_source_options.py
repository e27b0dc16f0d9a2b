"""Options of the data source: what they mean, and errors that name the option."""

from __future__ import annotations

import pickle

import pytest

from llog.errors import InvalidArgument
from llog.limits import SPLIT_BYTES_DEFAULT
from llog.log.keys import Log
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
    assert options.settings_in_force().metadata_url == "lmdb:///x/metadata"
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "subscribe, subscribePattern, assign: none is given; .* a catalogue table: use llog.spark.views"),
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
        (
            {**SUBSCRIBED, "pushFilters": "true"},
            "^pushfilters: was removed: .* narrow a read by assign, ",
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
