"""The table of facts is that of the named kafka-clients package, and the classes are those of the table."""

from __future__ import annotations

import pytest

from llog.kafka.codec import table
from tests.kafka_schemas import facts, jar, structs
from tests.kafka_schemas.__main__ import CODEC

TEXT = (CODEC / "messages.txt").read_text("ascii")


def test_the_table_is_what_the_package_gives() -> None:
    try:
        package = jar.fetch()
    except jar.JarUnavailable as reason:
        pytest.skip(f"kafka-clients {jar.KAFKA_CLIENTS_VERSION}: {reason}")
    assert facts.table_text(jar.definitions(package)) == TEXT, "run make kafka-schemas"


def test_the_classes_are_what_the_table_gives() -> None:
    sources = structs.modules(table.parse(TEXT))
    written = {path.stem: path.read_text("utf-8") for path in (CODEC / "messages").glob("*.py")}
    del written["__init__"]
    assert written == sources, "run make kafka-schemas"


def test_the_table_holds_the_messages_of_the_plan_and_facts_only() -> None:
    messages = table.parse(TEXT)
    assert {one.key for one in messages.values() if one.kind == "request"} == facts.API_KEYS
    assert {one.key for one in messages.values() if one.kind == "response"} == facts.API_KEYS
    assert set(facts.OTHERS) == {one.name for one in messages.values() if one.key is None}
    assert max(map(len, TEXT.splitlines())) < 100  # no prose


FETCH = """
# a comment
request 1 FetchRequest 4-18 flexible=12+ listeners=broker,controller unstable
  struct Shared
    name string legacy
  cluster_id string? 12+ tag=0 default=null ignorable
  max_bytes int32 default=2147483647
  topics []FetchTopic? 4-12
    partitions []int32 7+ nullable=9-11
  first Shared
  others []Shared
"""


def test_the_notation_says_what_its_description_says() -> None:
    fetch = table.parse(FETCH)["FetchRequest"]
    assert (fetch.kind, fetch.key, fetch.versions, fetch.flexible) == ("request", 1, (4, 18), (12, 18))
    assert (fetch.listeners, fetch.unstable, fetch.module) == (("broker", "controller"), True, "fetch")
    cluster, size, topics, first, others = fetch.body.fields
    assert (cluster.versions, cluster.nullable, cluster.tag, cluster.default) == ((12, 18), (12, 18), 0, None)
    assert (cluster.ignorable, size.ignorable) == (True, False)
    assert (size.versions, size.nullable, size.tag, size.default) == ((4, 18), table.NO_VERSIONS, None, 2**31 - 1)
    assert topics.struct is not None
    assert (topics.array, topics.versions, topics.nullable) == (True, (4, 12), (4, 12))
    (partitions,) = topics.struct.fields
    assert (partitions.array, partitions.versions, partitions.nullable) == (True, (7, 12), (9, 11))
    assert first.struct is not None
    assert first.struct is others.struct
    assert (first.array, others.array, first.struct.fields[0].legacy) == (False, True, True)
    assert [field.name for field in fetch.body.at(4)] == ["max_bytes", "topics", "first", "others"]
    assert [field.name for field in fetch.body.tagged(12)] == ["cluster_id"]


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ({"name": "A", "type": "int128", "versions": "0+"}, "M.A: type int128"),
        ({"name": "A", "type": "[]bytes", "versions": "0+"}, "M.A: array of bytes"),
        (
            {"name": "A", "type": "int8", "versions": "0+", "tag": 0, "taggedVersions": "1+"},
            "of its versions only",
        ),
        ({"name": "A", "type": "int8", "versions": "0+", "novel": True}, r"M.A: unknown facts \['novel'\]"),
    ],
)
def test_a_definition_that_the_codec_does_not_support_is_refused(field: dict[str, object], reason: str) -> None:
    message = {"apiKey": 0, "type": "request", "name": "M", "validVersions": "0-3", "flexibleVersions": "0+"}
    with pytest.raises(facts.UnsupportedDefinition, match=reason):
        list(facts.paragraph({**message, "fields": [field]}))
