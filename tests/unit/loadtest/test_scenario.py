"""Scenarios: every wrong field is named, hostile files are refused, and what is accepted survives its JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llog.errors import ScenarioInvalid
from llog.loadtest.scenario import Scenario, read_scenario, shipped
from llog.loadtest.scenario.read import FILE_BYTES_MAX, parse_scenario

NOTHING_FITS = {"wrong": {"deeply": "wrong"}}
PARTS = {  # where the structs inside a scenario are, as the path of an error shows them
    "": (),
    "stack": ("stack",),
    "stack.compactor": ("stack", "compactor"),
    "topics[0]": ("topics", 0),
    "records": ("records",),
    "load": ("load",),
    "load.search": ("load", "search"),
    "producers": ("producers",),
    "consumers": ("consumers",),
    "routing": ("routing",),
    "faults[0]": ("faults", 0),
    "targets": ("targets",),
    "collect": ("collect",),
}


def documents(path: tuple[str | int, ...], field: str, value: Any) -> dict[str, Any]:
    """A scenario in which only this field is wrong."""
    content: Any = {field: value}
    for step in reversed(path):
        content = [content] if isinstance(step, int) else {step: content}
    if path[:1] == ("faults",):
        content["faults"][0] = {"at_s": 1, "kind": "kill_broker"} | content["faults"][0]
    return {"name": "x", **content}


def struct_at(path: tuple[str | int, ...]) -> type:
    found: Any = msgspec.inspect.type_info(Scenario)
    for step in path:
        if isinstance(step, int):
            found = found.item_type
        else:
            [found] = [field.type for field in found.fields if field.name == step]
        while isinstance(found, msgspec.inspect.UnionType):
            found = next(one for one in found.types if not isinstance(one, msgspec.inspect.NoneType))
    return found.cls  # type: ignore[no-any-return]


def every_field() -> Iterator[tuple[str, tuple[str | int, ...], str]]:
    for prefix, path in PARTS.items():
        for field in msgspec.structs.fields(struct_at(path)):
            yield f"{prefix}.{field.name}".removeprefix("."), path, field.name


FIELDS = list(every_field())


@pytest.mark.parametrize(("shown", "path", "field"), FIELDS, ids=[shown for shown, _, _ in FIELDS])
def test_a_value_of_the_wrong_type_names_its_field(shown: str, path: tuple[str | int, ...], field: str) -> None:
    # A mapping for what is none; a list for what is a mapping.
    for wrong in (NOTHING_FITS, [NOTHING_FITS]):
        with pytest.raises(ScenarioInvalid) as caught:
            parse_scenario(msgspec.yaml.encode(documents(path, field, wrong)).decode())
        assert caught.value.field.startswith(shown)
        assert shown in str(caught.value)


@pytest.mark.parametrize("prefix", PARTS)
def test_an_unknown_field_is_named(prefix: str) -> None:
    with pytest.raises(ScenarioInvalid) as caught:
        parse_scenario(msgspec.yaml.encode(documents(PARTS[prefix], "brokres", 1)).decode())
    assert caught.value.field == f"{prefix}.brokres".removeprefix(".")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("stack: {brokers: 0}", "stack.brokers"),
        ("stack: {brokers: 65}", "stack.brokers"),
        ("stack: {roles: []}", "stack.roles"),
        ("stack: {roles: [leader]}", "stack.roles[0]"),
        ("stack: {metadata: sqlite}", "metadata"),
        ("stack: {objects: ftp://x}", "objects"),
        ("stack: {metadata: lmdb, zones: [a]}", "zones"),
        ("stack: {settings: {PATH: x}}", "settings"),
        ("stack: {settings: {LLOG_X: [1]}}", "stack.settings"),
        ("stack: {settings: {1: 2}}", "stack.settings"),
        ("stack: {compactor: {count: -1}}", "stack.compactor.count"),
        ("topics: []", "topics"),
        ("topics: [{name: a}, {name: a}]", "topics"),
        ("topics: [{name: 'a b'}]", "topics[0].name"),
        ("topics: [{name: a, partitions: 60000}, {name: b, partitions: 60000}]", "topics"),
        ("records: {bytes: 10}", "records.bytes"),
        ("records: {compressibility: 1.5}", "records.compressibility"),
        ("records: {compression: zstd}", "records.compression"),
        ("load: {engine: librdkafka}", "engine"),
        ("load: {target_mb_per_s: 1, search: {}}", "target_mb_per_s"),
        ("load: {target_mb_per_s: 0}", "load.target_mb_per_s"),
        ("load: {duration_s: .nan}", "load.duration_s"),
        ("load: {duration_s: .inf}", "load.duration_s"),
        ("load: {search: {start_mb_per_s: 2, highest_mb_per_s: 1}}", "start_mb_per_s"),
        ("producers: {in_flight: 2}", "producers.in_flight"),
        ("producers: {clients: 1, processes: 2}", "producers.processes"),
        ("producers: {partitions_per_request: 2}", "producers.partitions_per_request"),
        ("topics: [{partitions: 9}]\nproducers: {partitions_per_request: 9, records_per_request: 8}", "records_per"),
        ("consumers: {begin: later}", "consumers.begin"),
        ("routing: {seed: 99999999999999999999}", "routing.seed"),
        ("faults: [{at_s: 1}]", "faults[0].kind"),
        ("faults: [{at_s: 1, kind: kill_broker, broker: 1}]", "faults[0].broker"),
        ("faults: [{at_s: 1, kind: stall_objects}]", "faults[0]"),
        ("faults: [{at_s: 30, kind: kill_broker}]", "faults[0].at_s"),
        ("load: {target_mb_per_s: 1}\nstack: {roles: [read]}", "stack.roles"),
        ("consumers: {clients: 1}\nstack: {roles: [write]}", "stack.roles"),
        ("stack: {settings: {LLOG_X: .nan}}", "stack.settings.LLOG_X"),
        ("load: {protocol: http}\nload: {protocol: kafka}", "load"),
        ("stack: {brokers: 1, brokers: 2}", "brokers"),
        ("1: 2", "a name in it"),
    ],
)
def test_a_wrong_value_names_its_field(text: str, named: str) -> None:
    with pytest.raises(ScenarioInvalid) as caught:
        parse_scenario(f"name: x\n{text}")
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[1]",
        "just words",
        "name: x\nstack: *a",
        "a: &a [x]\nb: &b [*a, *a]\nc: &c [*b, *b]",
        "!!python/object/apply:os.system [touch /tmp/x]",
        "name: !!python/name:os.system",
        "[" * 50_000,
        "{a: " * 20_000,
        "- " * 20_000,
        "name: x\nrecords: {bytes: " + "9" * 10_000 + "}",
        "\x00",
        "name: \ud800",
        "? [a]\n: b",
        "name: !!binary aGk=",
        "name: 2026-01-01",
        "--- {name: a}\n--- {name: b}",
        "name: 'x",
    ],
    ids=range(19),
)
def test_hostile_files_are_refused_in_little_time(text: str) -> None:
    began_s = time.process_time()
    with pytest.raises(ScenarioInvalid):
        parse_scenario(text)
    assert time.process_time() - began_s < 5


@pytest.mark.parametrize(
    "change",
    ["", "=1", "stack.brokers", "a..b=1", "[0]=1", "topics[1].name=x", "topics[-1].name=x", "topics[²].name=x",
     "stack.brokers.x=1", "stack.brokers=*a", "stack.brokers={", "name=", "topics.name=x"],
)  # fmt: skip
def test_hostile_changes_are_refused(change: str) -> None:
    with pytest.raises(ScenarioInvalid):
        parse_scenario("name: x\ntopics: [{name: a}]", [change])


def test_changes_reach_every_place() -> None:
    changes = ["stack.brokers=3", "topics[1].partitions=8", "stack.settings={LLOG_X: 1}", "load.search={}", "name=y"]
    scenario = parse_scenario("name: x\ntopics: [{name: a}, {name: b}]", changes)
    assert (scenario.name, scenario.stack.brokers, scenario.topics[1].partitions) == ("y", 3, 8)
    assert scenario.stack.settings == {"LLOG_X": 1}
    assert scenario.load.search is not None


@pytest.mark.parametrize("name", shipped())
def test_shipped_scenarios_are_valid_and_survive_their_json(name: str) -> None:
    scenario = read_scenario(name)
    assert scenario.name == name
    assert scenario.description
    assert msgspec.json.decode(msgspec.json.encode(scenario), type=Scenario) == scenario


def test_a_file_is_read_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nstack: {brokers: 2}")
    assert read_scenario(str(path)).stack.brokers == 2


def test_what_is_no_readable_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large.yaml").write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff")
    for name in ("large.yaml", "latin.yaml", "missing.yaml", ".", "smok"):
        with pytest.raises(ScenarioInvalid):
            read_scenario(str(tmp_path / name))
    with pytest.raises(ScenarioInvalid, match=r"shipped are .*smoke"):
        read_scenario("smok")
