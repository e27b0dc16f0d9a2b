from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llog.errors import InvalidArgument
from llog.limits import METADATA_KEY_BYTES_MAX
from llog.log.ids import created_at_ms_of, is_object_id, new_object_id
from llog.log.keys import (
    OFFSET_MAX,
    PARTITION_MAX,
    ROOT_BYTES_MAX,
    TOPIC_NAME_LENGTH_MAX,
    Keys,
    Log,
    ParsedKey,
    check_partition,
    check_topic,
    offset_name,
    offset_of,
)
from llog.pipeline.key_compact.aggregate import scratch_root
from llog.pipeline.sink.plan import CommitPlan, page_keys
from llog.pipeline.sink.query import head_key, query_key
from llog.stores.metadata.port import Key, check_key
from tests import samples

topics = st.from_regex(r"[A-Za-z0-9._-]{1,60}", fullmatch=True).filter(lambda t: t not in (".", "..", "wal-shared"))
logs = st.builds(Log, topics, st.integers(0, PARTITION_MAX))
offsets = st.integers(0, OFFSET_MAX)
object_ids = st.builds(
    lambda now_ms, seed: new_object_id(now_ms, random.Random(seed).getrandbits), st.integers(0, 2**48 - 1), offsets
)
names = st.text(min_size=1, max_size=12)
roots = st.sampled_from(["llog", "a", "team/prod"])


@given(roots, logs, offsets, offsets, object_ids)
def test_every_key_of_a_log_comes_back_and_shares_its_route(
    root: str, log: Log, offset: int, page: int, object_id: str
) -> None:
    keys = Keys(root)
    expected = {
        keys.topic(log.topic): ParsedKey("topic", topic=log.topic),
        keys.control(log): ParsedKey("control", log=log),
        keys.compaction(log): ParsedKey("compaction", log=log),
        keys.claim(log): ParsedKey("claim", log=log),
        keys.partition_delete(log): ParsedKey("partition_delete", log=log),
        keys.producers(log): ParsedKey("producers", log=log),
        keys.producer_page(log, offset, page): ParsedKey("producer_page", log=log, offset=offset, page=page),
        keys.index_entry(log, offset): ParsedKey("index_entry", log=log, offset=offset),
        keys.segment(log, object_id): ParsedKey("segment", log=log, object_id=object_id),
    }
    for key, parsed in expected.items():
        check_key(key)
        assert keys.parse(key.path) == parsed
        assert keys.key_of(key.path) == key
        assert key.route == ("@topics" if parsed.kind == "topic" else f"{log.topic}:{log.partition}")
    assert len({key.path for key in expected}) == len(expected)


@given(roots, names, names, offsets)
def test_every_cluster_key_comes_back(root: str, name: str, item: str, batch: int) -> None:
    keys = Keys(root)
    for key, parsed in [
        (keys.cluster_id(), ParsedKey("cluster_id")),
        (keys.producer_ids(), ParsedKey("producer_ids")),
        (keys.vacuum_hold(), ParsedKey("vacuum_hold")),
        (keys.chore_claim(name), ParsedKey("chore_claim", name=name)),
        (keys.broker(name), ParsedKey("broker", name=name)),
        (keys.node(batch % 2**31), ParsedKey("node", node_id=batch % 2**31)),
        (keys.coordinator(batch % 64), ParsedKey("coordinator", slot=batch % 64)),
        (keys.group(name), ParsedKey("group", name=name)),
        (keys.group_item(name, f"offset:{item}"), ParsedKey("group_item", name=name, item=f"offset:{item}")),
        (keys.group_item(name, f"page:{item}"), ParsedKey("group_page", name=name, item=f"page:{item}")),
        (keys.sink(name, batch), ParsedKey("sink", name=name, offset=batch)),
    ]:
        check_key(key)
        assert keys.parse(key.path) == parsed
        assert keys.key_of(key.path) == key


@given(roots, names, offsets, offsets)
def test_keys_that_the_sink_builds_below_its_own_are_known(root: str, query: str, batch: int, page: int) -> None:
    keys = Keys(root)
    plan = CommitPlan(
        query=query, batch=batch, plan_id="a1-b2", producer_id=1, first_epoch=0, slices=(), pages=2, created_at_ms=5
    )
    assert page_keys(keys, plan)[1].path.endswith(f"/a1-b2/{offset_name(1)}")
    for key, parsed in [
        (query_key(keys, query), ParsedKey("sink_query", name=query)),
        (head_key(keys, query), ParsedKey("sink_head", name=query)),
        (page_keys(keys, plan)[1], ParsedKey("sink_page", name=query, item="a1-b2", offset=batch, page=1)),
    ]:
        check_key(key)
        assert keys.parse(key.path) == parsed
        assert keys.key_of(key.path) == key
    assert keys.parse(f"{keys.sinks(query).path}/tail") is None
    assert keys.parse(f"{keys.sink(query, batch).path}//{offset_name(page)}") is None
    assert keys.parse(f"{root}/@cluster/probes/x") == ParsedKey("probe", name="x")


@given(roots, object_ids, object_ids)
def test_keys_of_jobs_and_probes_are_parsed(root: str, pass_id: str, object_id: str) -> None:
    keys = Keys(root)
    name = f"{scratch_root(root)}{pass_id}/{object_id}"
    assert keys.parse_object(name) == ParsedKey("scratch", name="key-compact", item=pass_id, object_id=object_id)
    assert keys.parse_object(f"{name}/more") is None
    assert keys.parse_object(f"{root}/@scratch/key-compact/{object_id}") is None
    assert keys.parse_object(f"{root}/@cluster/probes/x") == ParsedKey("probe", name="x")


@given(roots, logs, object_ids, offsets)
def test_every_object_name_comes_back(root: str, log: Log, object_id: str, part: int) -> None:
    keys = Keys(root)
    for name, parsed in [
        (keys.backup_part_object(object_id, part), ParsedKey("backup_part", object_id=object_id, page=part)),
        (keys.backup_manifest_object(object_id), ParsedKey("backup_manifest", object_id=object_id)),
        (keys.backup_schedule_object(object_id), ParsedKey("backup_schedule", object_id=object_id)),
    ]:
        assert keys.parse_object(name) == parsed
        assert name.startswith(keys.backups())
    assert keys.parse_object(keys.blob_object(object_id)) == ParsedKey("blob", object_id=object_id)
    assert keys.blob_object(object_id).startswith(keys.blobs())
    segment = keys.segment_object(log, object_id)
    assert keys.parse_object(segment) == ParsedKey("segment_object", log=log, object_id=object_id)
    assert segment.startswith(keys.segment_objects(log))
    legacy = segment.replace("/data/compacted/", "/data/wal/")
    assert keys.parse_object(legacy) == ParsedKey("legacy_wal", log=log, object_id=object_id)


def test_keys_are_the_documented_ones() -> None:
    keys = Keys()
    log = Log("orders", 0)
    assert keys.control(log) == Key("llog/orders/partitions/0/meta/control", "orders:0")
    assert keys.compaction(log).path == "llog/orders/partitions/0/meta/compaction-cursor"
    assert keys.claim(log).path == "llog/orders/partitions/0/meta/compactor-claim"
    assert keys.index_entry(log, 2).path == "llog/orders/partitions/0/index/00000000000000000002"
    assert keys.topic("orders") == Key("llog/@topics/orders", "@topics")
    assert keys.blob_object(samples.BLOB_ID) == f"llog/wal-shared/{samples.BLOB_ID}"
    segment = keys.segment_object(log, samples.SEGMENT_ID)
    assert segment == f"llog/orders/partitions/0/data/compacted/{samples.SEGMENT_ID}"


@given(st.lists(offsets, min_size=2, max_size=10))
def test_offset_names_sort_as_offsets_do(some: list[int]) -> None:
    assert [offset_of(name) for name in sorted(map(offset_name, some))] == sorted(some)


@given(st.text(max_size=80))
def test_no_text_makes_parsing_fail(text: str) -> None:
    keys = Keys()
    assert keys.parse(text) is None or keys.parse(text) == keys.parse("" + text)
    assert keys.parse_object(f"llog/{text}") is None or text


@pytest.mark.parametrize(
    "path",
    [
        "llog",
        "llog/",
        "other/@topics/orders",
        "llog/@topics/bad@name",
        "llog/orders/partitions/00/meta/control",
        "llog/orders/partitions/-1/meta/control",
        "llog/orders/partitions/99999999999/meta/control",
        "llog/orders/partitions/0/meta/else",
        "llog/orders/partitions/0/index/72",
        "llog/orders/partitions/0/index/0000000000000000007²",
        "llog/orders/partitions/0/index/99999999999999999999",
        "llog/orders/partitions/0/segments/abc",
        "llog/wal-shared/partitions/0/meta/control",
    ],
)
def test_a_key_that_is_not_ours_parses_to_nothing(path: str) -> None:
    assert Keys().parse(path) is None


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a b", "ü", "@x", "wal-shared", "x" * 250, "a\n"])
def test_topic_names_follow_kafkas_rules(topic: str) -> None:
    with pytest.raises(InvalidArgument, match="topic"):
        check_topic(topic)


@pytest.mark.parametrize("partition", [-1, 2**31, True, "0", 1.0])
def test_a_partition_is_a_small_natural_number(partition: int) -> None:
    with pytest.raises(InvalidArgument, match="partition"):
        check_partition(partition)


def test_the_longest_names_still_make_keys_that_every_store_holds() -> None:
    keys = Keys("r" * ROOT_BYTES_MAX)
    log = Log("t" * TOPIC_NAME_LENGTH_MAX, PARTITION_MAX)
    longest = keys.producer_page(log, OFFSET_MAX, OFFSET_MAX)
    check_key(longest)
    assert len(longest.path) <= METADATA_KEY_BYTES_MAX
    check_key(keys.group_item("g" * 160, "i" * 160))
    with pytest.raises(InvalidArgument, match="root prefix"):
        Keys("r" * (ROOT_BYTES_MAX + 1))
    with pytest.raises(InvalidArgument, match="group"):
        keys.group("g" * 161)
    with pytest.raises(InvalidArgument, match="UTF-8"):
        keys.group("g\udcff")


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**74 - 1))
def test_an_object_id_keeps_its_instant_and_sorts_by_it(now_ms: int, bits: int) -> None:
    object_id = new_object_id(now_ms, lambda _: bits)
    assert is_object_id(object_id)
    assert created_at_ms_of(object_id) == now_ms
    if now_ms:
        assert new_object_id(now_ms - 1, lambda n: (1 << n) - 1) < object_id


@pytest.mark.parametrize("text", ["", "x" * 32, "0" * 32, samples.BLOB_ID.upper(), samples.BLOB_ID[:-1], "٣" * 32])
def test_text_that_is_no_object_id_is_refused(text: str) -> None:
    assert not is_object_id(text)
    with pytest.raises(InvalidArgument):
        created_at_ms_of(text)
