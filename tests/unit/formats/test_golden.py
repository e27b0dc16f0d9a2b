"""Golden files: what earlier releases wrote is read, and this release still writes the same bytes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from llog.formats.records.bytes_batch import decode_bytes_batch
from llog.formats.records.record_batch import BatchRule, walk
from llog.formats.segment import parse_footer, verify_data
from llog.formats.shared_blob import parse_shared_blob
from llog.formats.values import GroupOffset, ProducerSnapshot, TopicRecord, decode_value
from llog.log.keys import Keys
from tests import samples
from tests.golden.write import BYTES_BATCH, FIRST, HERE, current, newest

NAMES = sorted(path.name for path in FIRST.iterdir())


def golden(name: str) -> bytes:
    return newest(name).read_bytes()


def test_there_is_a_golden_file_for_every_format_and_value() -> None:
    assert set(NAMES) == set(current())


@pytest.mark.parametrize("name", NAMES)
def test_this_release_writes_the_golden_bytes(name: str) -> None:
    assert current()[name] == golden(name)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_golden_blobs_are_read(version: str) -> None:
    header, slices = parse_shared_blob((HERE / version / "shared_blob.bin").read_bytes(), "golden")
    assert (header.created_at_ms, header.writer_id) == (samples.NOW_MS, "writer-1")
    assert [(s.topic, s.partition, s.msg_count) for s in slices] == [("orders", 7, 10), ("orders", 8, 4)]


def test_the_golden_bytes_batch_is_read() -> None:
    assert decode_bytes_batch(golden("bytes_batch.bin"), "golden").to_list() == BYTES_BATCH


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("segment")])
def test_the_golden_segments_are_read(name: str) -> None:
    data = golden(name)
    footer = parse_footer(data, len(data), "golden")
    verify_data([data[: footer.data_length]], footer, "golden")
    batches = walk(data[: footer.data_length], "golden", rule=BatchRule.COMPACTED)
    assert batches.base_offset.tolist() == footer.entries["base_offset"].tolist()
    assert batches.position.tolist() == footer.entries["byte_position"].tolist()


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("value")])
def test_the_golden_values_are_read(name: str) -> None:
    value = samples.VALUE_SAMPLES[int(name.split("_")[1])]
    assert decode_value(type(value), golden(name), name) == value


def test_a_topic_record_of_an_earlier_release_counts_as_created_explicitly() -> None:
    [name] = [name for name in NAMES if "TopicRecord" in name]
    before = decode_value(TopicRecord, (HERE / "v1" / name).read_bytes(), name)
    now = decode_value(TopicRecord, (HERE / "v2" / name).read_bytes(), name)
    assert (before.auto_created, now.auto_created) == (False, True)
    assert replace(before, auto_created=True) == now


def test_a_producer_snapshot_of_an_earlier_release_has_forgotten_nobody() -> None:
    [name] = [name for name in NAMES if "ProducerSnapshot" in name]
    before = decode_value(ProducerSnapshot, (HERE / "v1" / name).read_bytes(), name)
    now = decode_value(ProducerSnapshot, (HERE / "v2" / name).read_bytes(), name)
    assert (before.forgot, now.forgot) == (False, True)
    assert replace(before, forgot=True) == now


def test_the_golden_keys_are_parsed() -> None:
    keys = Keys()
    for line in golden("keys.txt").decode().splitlines():
        path, _, route = line.partition(" ")
        parsed = keys.parse(path) if route else keys.parse_object(path)
        assert parsed is not None, line


def test_a_position_of_an_earlier_release_was_committed_in_no_generation() -> None:
    [name] = [name for name in NAMES if "GroupOffset" in name]
    before = decode_value(GroupOffset, (HERE / "v1" / name).read_bytes(), name)
    now = decode_value(GroupOffset, (HERE / "v2" / name).read_bytes(), name)
    assert (before.generation, now.generation) == (-1, 4)
    assert replace(before, generation=4) == now
