"""A key twice in one object, and half of a surrogate pair: found wherever they are, and named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llog.errors import InvalidArgument
from llog.http.json.body_check import duplicate_key, lone_surrogate
from llog.http.json.decode import decoded, decoded_produce
from llog.http.json.produce_encode import KAFKA, encoded_request
from llog.http.json.schemas import ConsumeBody, TopicCreate
from tests.unit.http.broker_double import BrokerDouble, client_of


class Pairs(list[tuple[str, Any]]):
    """A JSON object, with every key as often as it came."""


KEY = st.sampled_from(["a", "b", "key", "", 'qu"ote', "back\\slash", "Käse", "€", "😀", "\n", "a.b[0]"]) | st.text(
    max_size=3
)
VALUE: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | KEY,
    lambda inner: st.lists(inner, max_size=4) | st.lists(st.tuples(KEY, inner), max_size=5).map(Pairs),
    max_leaves=20,
)


def written(value: Any, *, escaped: bool) -> str:
    """As JSON; every second key has an escape more than it needs."""
    if isinstance(value, Pairs):
        texts = []
        for number, (key, inner) in enumerate(value):
            name = json.dumps(key, ensure_ascii=escaped)
            if number % 2 and key and key[0].isascii() and key[0].isalnum():
                name = f'"\\u{ord(key[0]):04x}{name[2:]}'
            texts.append(f"{name} : {written(inner, escaped=escaped)}")
        return "{" + ", ".join(texts) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(inner, escaped=escaped) for inner in value) + "]"
    return json.dumps(value, ensure_ascii=escaped)


def has_duplicate(value: Any) -> bool:
    if isinstance(value, Pairs):
        keys = [key for key, _ in value]
        return len(set(keys)) < len(keys) or any(has_duplicate(inner) for _, inner in value)
    return isinstance(value, list) and any(map(has_duplicate, value))


@settings(max_examples=300, deadline=None)
@given(VALUE, st.booleans())
def test_a_duplicate_is_found_exactly_where_there_is_one(value: Any, escaped: bool) -> None:
    body = written(value, escaped=escaped).encode()
    json.loads(body)
    assert (duplicate_key(body) is not None) == has_duplicate(value)
    assert lone_surrogate(body, "body") is None


@pytest.mark.parametrize("count", [2, 15, 16, 17, 18, 500])
def test_the_last_key_of_an_object_of_any_size_is_compared_with_all_others(count: int) -> None:
    names = [f"name-{number}" for number in range(count - 1)]
    for again in (names[0], names[-1], names[len(names) // 2]):
        pairs = Pairs((name, Pairs([("x", 1)])) for name in [*names, again])
        error = duplicate_key(written([0, pairs], escaped=True).encode())
        assert error is not None
        assert error.argument == f"[1].{again}"
    assert duplicate_key(written(Pairs((name, 1) for name in names), escaped=True).encode()) is None


GOOD = {"topic": "t", "partition": 0, "records": ["a"]}


def produce_text(records: str) -> bytes:
    return f'{{"topic_partitions": [{json.dumps(GOOD)}, {{"topic":"t","partition":1,"records":[{records}]}}]}}'.encode()


@pytest.mark.parametrize(
    ("records", "field"),
    [
        ('"x", {"value": "a", "key": "k", "value": "b"}', "topic_partitions[1].records[1].value"),
        ('{"value": "a", "headers": {"h": "1", "\\u0068": "2"}}', "topic_partitions[1].records[0].headers.h"),
        ('{"value": {"base64": "AA==", "base64": "AA=="}}', "topic_partitions[1].records[0].value.base64"),
        ('"x"], "records": ["y"', "topic_partitions[1].records"),
    ],
)
def test_a_produce_request_with_a_key_twice_is_refused_and_names_it(records: str, field: str) -> None:
    body = produce_text(records)
    for decode in (decoded_produce, lambda body: decoded_produce(body, 20), scanned):
        with pytest.raises(InvalidArgument, match="twice") as refusal:
            decode(body)
        assert refusal.value.argument == field


def scanned(body: bytes) -> object:
    """The kernel for plain bodies is tried first."""
    return encoded_request(body, encoding=KAFKA, now_ms=1, scan_bytes_min=0)


@pytest.mark.parametrize("escape", ["\\ud800", "\\uDBFF", "\\udc00", "\\ud800\\u0041", "\\ud800x", "\\udc00\\ud800"])
@pytest.mark.parametrize(
    ("records", "field"),
    [
        ('"x", "before %s behind"', "topic_partitions[1].records[1]"),
        ('"%s"', "topic_partitions[1].records[0]"),
        ('{"value": "a", "key": "%s"}', "topic_partitions[1].records[0].key"),
        ('{"value": "a", "headers": {"h": ["x", "%s"]}}', "topic_partitions[1].records[0].headers.h[1]"),
        ('{"value": "a", "headers": {"x": "y", "%s": "1"}}', "topic_partitions[1].records[0].headers"),
    ],
)
def test_half_of_a_surrogate_pair_is_named(records: str, field: str, escape: str) -> None:
    body = produce_text(records.replace("%s", escape))
    for decode in (decoded_produce, lambda body: decoded_produce(body, 20), scanned):
        with pytest.raises(InvalidArgument, match="surrogate") as refusal:
            decode(body)
        assert refusal.value.argument == field
        assert escape[:6] in refusal.value.reason


def test_whole_pairs_and_other_faults_are_not_called_surrogates() -> None:
    assert lone_surrogate(produce_text('"\\ud83d\\ude00"'), "body") is None
    for body in (b'{"topic": "\\ud83d\\ude00", ', b"\\ud800", b'{"a": \\"', b"[" * 100 + b'"\\ud800"'):
        with pytest.raises(InvalidArgument) as refusal:
            decoded(TopicCreate, body)
        assert "surrogate" not in refusal.value.reason


def test_other_requests_are_checked_too() -> None:
    wanted = '[{"topic": "t", "partition": 0, "fetch_offset": 1}]'
    with pytest.raises(InvalidArgument, match="max_bytes: the JSON object has this key twice"):
        decoded(ConsumeBody, f'{{"topic_partitions": {wanted}, "max_bytes": 1, "max_bytes": 2}}'.encode())
    with pytest.raises(InvalidArgument, match=r"config\.retention\.ms"):
        decoded(TopicCreate, b'{"topic": "t", "config": {"retention.ms": 1, "retention.ms": 2}}')


async def test_over_http_both_are_400_with_the_field() -> None:
    async with client_of(BrokerDouble()) as client:
        for records, field in (
            ('{"value":"a","value":"b"}', "topic_partitions[1].records[0].value"),
            ('"\\ud800"', "topic_partitions[1].records[0]"),
        ):
            answer = await client.post("/produce", content=produce_text(records))
            assert (answer.status_code, answer.json()["field"]) == (400, field)
