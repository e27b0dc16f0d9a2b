"""Bodies of plain form are read by a kernel. It accepts what the decoder accepts, or it does not answer."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llog.errors import InvalidArgument, LlogError
from llog.http.json.plain_scan import scan
from llog.http.json.produce_encode import KAFKA, EncodedRequest, encoded_request
from llog.limits import HTTP_TOPIC_PARTITIONS_MAX

NEVER = 1 << 60
NOW_MS = 1_760_000_000_000


def encoded(body: bytes, scan_bytes_min: int) -> object:
    """Everything that becomes of a body, in a form that can be compared."""
    try:
        encoded = encoded_request(body, encoding=KAFKA, now_ms=NOW_MS, scan_bytes_min=scan_bytes_min)
    except LlogError as error:
        return type(error), str(error)
    if not isinstance(encoded, EncodedRequest):  # a batch leaves its partition to the keys of its records
        return type(encoded), encoded.topics
    return shown(encoded)


def shown(encoded: EncodedRequest) -> object:
    groups = [
        (group.log, group.msg_count, group.encoding, b"".join(group.body), group.max_timestamp_ms, group.pieces)
        for group in encoded.groups
    ]
    return groups, encoded.batches


def both_ways(body: bytes) -> object:
    fast = encoded(body, 0)
    assert fast == encoded(body, NEVER), body
    return fast


PLAIN = st.text(st.characters(blacklist_characters='"\\', min_codepoint=0x20, blacklist_categories=["Cs"]), max_size=80)
RECORD = st.one_of(PLAIN, PLAIN, PLAIN, st.text(max_size=20), st.just({"value": "v", "key": "k"}), st.none())
NUMBER = st.one_of(
    st.integers(-1, 5), st.sampled_from([2**15 - 1, 2**15, 2**31 - 1, 2**31, 2**63 - 1, 2**63, True, 1.5])
)


@st.composite
def batches(draw: st.DrawFn) -> dict[str, Any]:
    batch: dict[str, Any] = {
        "topic": draw(st.sampled_from(["orders", "visits", "a.b-c_d", "", "..", "é", "x" * 249, "x" * 250])),
        "partition": draw(st.one_of(st.integers(0, 3), NUMBER)),
        "records": draw(st.one_of(st.lists(PLAIN, min_size=1, max_size=12), st.lists(RECORD, max_size=6))),
    }
    for name in ("producer_id", "epoch", "sequence"):
        if draw(st.booleans()):
            batch[name] = draw(NUMBER)
    if draw(st.integers(0, 9)) == 0:
        batch[draw(st.sampled_from(["extra", "record", "topics"]))] = 1
    if draw(st.integers(0, 9)) == 0:
        del batch[draw(st.sampled_from(sorted(batch)))]
    names = draw(st.permutations(sorted(batch)))
    return {name: batch[name] for name in names}


@settings(max_examples=400, deadline=None)
@given(st.lists(batches(), max_size=5), st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_both_ways_of_reading_say_the_same(wanted: list[dict[str, Any]], ascii_only: bool, indent: Any) -> None:
    both_ways(json.dumps({"topic_partitions": wanted}, ensure_ascii=ascii_only, indent=indent).encode())


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_damaged_body_is_never_accepted_by_one_and_refused_by_the_other(data: st.DataObject) -> None:
    wanted = [
        {"topic": "orders", "partition": 1, "records": ["one", "two ü", "x" * 50], "producer_id": 7},
        {"topic": "t", "partition": 20, "records": [""], "producer_id": 1, "epoch": 0, "sequence": 9},
    ]
    body = bytearray(json.dumps({"topic_partitions": wanted}, ensure_ascii=False).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        piece = data.draw(
            st.sampled_from([b"", b'"', b"\\", b",", b"]", b"}", b"0", b"\x00", b"\xff", b"\xc3", b" ", b"-"])
        )
        body[at : at + data.draw(st.integers(0, 2))] = piece
    both_ways(bytes(body))


@pytest.mark.parametrize("cut", [0, 1, 17, 31, 32, 33, 63, 64, 100])
def test_a_body_that_ends_anywhere_is_refused(cut: int) -> None:
    body = json.dumps({"topic_partitions": [{"topic": "t", "partition": 0, "records": ["x" * 90]}]}).encode()
    assert scan(body) is not None
    assert scan(body[:cut]) is None
    with pytest.raises(InvalidArgument):
        encoded_request(body[:cut], encoding=KAFKA, now_ms=0, scan_bytes_min=0)


def test_the_end_of_a_string_is_found_wherever_it_lies() -> None:
    for length in range(140):
        body = b'{"topic_partitions":[{"topic":"t","partition":0,"records":["%b","y"]}]}' % (b"x" * length)
        scanned = scan(body)
        assert scanned is not None
        assert scanned.payloads.sizes.tolist() == [length, 1]


@pytest.mark.parametrize("byte", [0x00, 0x1F, 0x0A, 0x5C])
def test_what_may_not_stand_in_a_string_is_seen_wherever_it_lies(byte: int) -> None:
    for length in range(70):
        body = b'{"topic_partitions":[{"topic":"t","partition":0,"records":["%b"]}]}' % (
            b"x" * length + bytes([byte]) + b"x"
        )
        assert scan(body) is None


def test_text_that_is_not_utf_8_is_refused_and_text_that_is_comes_through() -> None:
    plain = b'{"topic_partitions":[{"topic":"t","partition":0,"records":["%b"]}]}'
    assert scan(plain % b"\xed\xa0\x80") is None
    assert scan(plain % (b"x" * 40 + b"\xff")) is None
    assert scan(plain % "grüße, 世界 🎉".encode()) is not None
    both_ways(plain % ("世界" * 50).encode())


def test_many_short_records_are_read_too() -> None:
    texts = [str(random.Random(row).randrange(100)) for row in range(5_000)]
    body = json.dumps({"topic_partitions": [{"topic": "t", "partition": 0, "records": texts}]}).encode()
    scanned = scan(body)
    assert scanned is not None
    assert scanned.msg_counts == [5_000]
    both_ways(body)


def test_more_logs_than_a_request_may_name_are_left_to_the_decoder() -> None:
    named = [{"topic": "t", "partition": n, "records": ["x"]} for n in range(HTTP_TOPIC_PARTITIONS_MAX + 1)]
    assert scan(json.dumps({"topic_partitions": named[:-1]}).encode()) is not None
    assert scan(json.dumps({"topic_partitions": named}).encode()) is None


def test_one_log_named_twice_gets_its_batches_as_pieces_in_order() -> None:
    named = [{"topic": "t", "partition": n % 2, "records": [f"{n}" * 30]} for n in range(5)]
    both_ways(json.dumps({"topic_partitions": named}).encode())
