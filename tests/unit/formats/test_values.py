from __future__ import annotations

import msgspec
import pytest

from llog.errors import InvalidField, UnsupportedFormat
from llog.formats.backup import VacuumHold
from llog.formats.values import VALUES, CompactionRecord, ControlRecord, IndexEntry, Value, decode_value, encode_value
from tests import samples


def test_every_kind_of_value_has_a_sample() -> None:
    assert {type(value) for value in samples.VALUE_SAMPLES} == set(VALUES)


@pytest.mark.parametrize("value", samples.VALUE_SAMPLES, ids=lambda v: type(v).__name__)
def test_every_value_comes_back_and_carries_its_version(value: Value) -> None:
    data = encode_value(value)
    assert decode_value(type(value), data, "key") == value
    assert msgspec.json.decode(data)["v"] == 1


@pytest.mark.parametrize("value", samples.VALUE_SAMPLES, ids=lambda v: type(v).__name__)
def test_a_value_of_a_newer_release_can_be_read_but_not_written_back(value: Value) -> None:
    newer = {**msgspec.json.decode(encode_value(value)), "v": 2, "a_field_of_tomorrow": [1]}
    read = decode_value(type(value), msgspec.json.encode(newer), "key")
    with pytest.raises(UnsupportedFormat, match="newer release"):
        encode_value(msgspec.structs.replace(read), "key")


def test_values_as_the_seeds_write_them_are_read() -> None:
    control = decode_value(ControlRecord, b'{"log_state":"OPEN","sequence_counter":48,"pending":null}', "key")
    assert (control.sequence_counter, control.incarnation, control.pending) == (48, 1, None)
    cursor = decode_value(CompactionRecord, b'{"offset":101}', "key")
    assert (cursor.offset, cursor.in_flight) == (101, None)
    entry = decode_value(
        IndexEntry,
        b'{"type":"COMPACTED","msg_count":3,"data_key":"s3://b/k","encoding":"bytes-batch-v1","created_at_ms":5}',
        "key",
    )
    assert (entry.byte_offset, entry.byte_length) == (None, None)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"log_state":"AJAR","sequence_counter":1}',
        b'{"log_state":"OPEN","sequence_counter":-1}',
        b'{"log_state":"OPEN","sequence_counter":true}',
        b'{"log_state":"OPEN","sequence_counter":"1"}',
        b'{"log_state":"OPEN","sequence_counter":99999999999999999999}',
        b'{"log_state":"OPEN","sequence_counter":1,"pending":{}}',
        b'{"log_state":"OPEN","sequence_counter":1}\xff',
        b"\xff\xfe",
    ],
)
def test_a_damaged_value_is_a_format_error_that_names_its_key(data: bytes) -> None:
    with pytest.raises(InvalidField, match="llog/orders"):
        decode_value(ControlRecord, data, "llog/orders/partitions/0/meta/control")


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("sequence_counter", 1.5),
        ("sequence_counter", 7.0),
        ("sequence_counter", True),
        ("sequence_counter", -1),
        ("log_start_offset", "1"),
        ("log_start_offset", 2**63),
        ("log_state", "AJAR"),
        ("fence_reason", None),
        ("fence_reason", "half a \ud83d pair"),
        ("pending", object()),
    ],
)
def test_a_value_that_could_not_be_decoded_is_not_written(field: str, wrong: object) -> None:
    """Nothing looks at the fields of a struct when it is made: a caller's mistake would stay in the store for ever."""
    control = ControlRecord(log_state="OPEN", sequence_counter=1)
    with pytest.raises(InvalidField, match="ControlRecord was not written"):
        encode_value(msgspec.structs.replace(control, **{field: wrong}), "orders/0/control")


def test_values_of_other_modules_are_looked_at_too() -> None:
    hold = VacuumHold(reason="r", held_at_ms=1.5, backup_id="b", recover_since_ms=0)  # type: ignore[arg-type]
    with pytest.raises(InvalidField, match=r"\$\.held_at_ms"):
        encode_value(hold)
