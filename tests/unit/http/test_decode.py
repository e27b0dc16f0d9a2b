"""Bodies decoded in pieces: the same as in one go, whatever is in them."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llog.errors import InvalidArgument
from llog.http.json.decode import decoded, decoded_produce, field_label
from llog.http.json.schemas import ProduceRequest

TEXT = st.text(max_size=20)
BASE64 = st.binary(max_size=20).map(lambda raw: {"base64": base64.b64encode(raw).decode()})
JUNK: st.SearchStrategy[object] = st.sampled_from(
    [5, None, True, [], {}, {"base64": "*"}, {"value": 5}, {"x": 1}, {"value": "a", "headers": []}]
)
RECORD = st.one_of(TEXT, BASE64, st.fixed_dictionaries({"value": st.none() | TEXT, "key": TEXT}))
BATCH = st.fixed_dictionaries(
    {"topic": st.just("t"), "partition": st.integers(0, 3), "records": st.lists(RECORD, min_size=1, max_size=12)}
)


@settings(max_examples=60, deadline=None)
@given(st.lists(BATCH, min_size=1, max_size=3), st.integers(1, 200), st.booleans())
def test_pieces_give_what_one_go_gives(batches: list[object], piece_bytes: int, escaped: bool) -> None:
    body = json.dumps({"topic_partitions": batches}, ensure_ascii=escaped).encode()
    assert decoded_produce(body, piece_bytes) == decoded(ProduceRequest, body)


@settings(max_examples=60, deadline=None)
@given(st.lists(RECORD, max_size=12), JUNK, st.lists(RECORD, max_size=5), st.integers(1, 200))
def test_pieces_name_the_same_field(before: list[object], junk: object, behind: list[object], piece_bytes: int) -> None:
    batches = [{"topic": "t", "partition": 0, "records": [*before, junk, *behind]}]
    body = json.dumps({"topic_partitions": [*batches, *batches]}).encode()
    fields = []
    for piece in (piece_bytes, 1_000_000):
        try:
            decoded_produce(body, piece)
        except InvalidArgument as error:
            fields.append((error.argument, error.reason))
        else:
            fields.append(("", ""))
    assert fields[0] == fields[1]


@pytest.mark.parametrize(
    ("field", "label"),
    [
        ("topic_partitions[12].partition", "topic_partitions[].partition"),
        ("topic_partitions[0].records[3].headers[...]", "topic_partitions[].records[].headers[]"),
        ("topic_partitions[0].whatever a client sends", "topic_partitions[].?"),
        ("body", "body"),
        ("config retention.ms", "?.?"),
    ],
)
def test_a_label_holds_nothing_that_a_client_made_up(field: str, label: str) -> None:
    assert field_label(field) == label
