"""Exports of values that name their schemas by id: from a registry over HTTP, and from files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import llog.pipeline.export.registry as registry_module
from llog.concurrency import Backoff
from llog.errors import ExportFailed, InvalidArgument, SettingsError
from llog.pipeline.export.decode import Decoding
from llog.pipeline.export.job import ExportReport
from llog.pipeline.export.parquet import ParquetTarget, committed
from llog.pipeline.export.registry import SchemaRegistry, UnknownSchema
from llog.pipeline.export.schema_source import SchemaFiles, SchemaLookup, schema_source
from llog.pipeline.runtime.tasks import LocalTasks, TaskTools
from llog.settings import Settings
from tests.unit.pipeline.export.exporting import KINDS, Exporting, target_of
from tests.unit.pipeline.export.fake_registry import FakeRegistry
from tests.unit.pipeline.export.test_export_avro import PLACE, framed, record

OLD = record(("id", "int"), ("item", "string"))
NEW = record(("item", "string"), ("id", "long"), ("note", ["null", "string"], None))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    monkeypatch.setattr(registry_module, "REGISTRY_BACKOFF", Backoff(1, 1))
    with FakeRegistry() as registry:
        yield registry


def client(registry: FakeRegistry, subject: str = "", **settings: str) -> SchemaRegistry:
    settings.setdefault("schema_registry_url", registry.url)
    return SchemaRegistry(Settings.from_env({}, **settings), subject=subject)


def value(number: int, *, unknown: int = 0) -> bytes:
    if number % 10 == 9 and unknown:
        return framed(unknown, OLD, {"id": number, "item": "lost"})
    schema_id, schema = (8, NEW) if number % 2 else (7, OLD)
    return framed(schema_id, schema, {"id": number, "item": f"i{number}", "note": None})


async def run(exporting: Exporting, kind: str, source: Any, **options: Any) -> ExportReport:
    lookup, decoding = SchemaLookup(source), Decoding("avro-confluent", **options)
    decoding = await lookup.with_columns(decoding, "orders")
    target = await target_of(exporting, kind, decoding)
    return await exporting.run(target, decoding=decoding, schemas=lookup)


def exported(exporting: Exporting, kind: str) -> list[dict[str, Any]]:
    if kind == "iceberg":
        rows = exporting.table().scan().to_arrow()
    else:
        rows = pq.read_table(exporting.directory / "parquet" / "orders")
    return sorted(rows.to_pylist(), key=lambda row: (row["partition"], row["offset"]))


@pytest.mark.parametrize("kind", KINDS)
async def test_values_of_several_schemas_become_columns_of_the_newest_and_each_id_is_fetched_once(
    exporting: Exporting, registry: FakeRegistry, kind: str
) -> None:
    registry.add(7, OLD)
    registry.add(8, NEW)
    await exporting.write(40, value=value)
    await exporting.write(40, partition=1, value=lambda n: value(n, unknown=99))
    report = await run(exporting, kind, client(registry))
    assert (report.records, report.bad_records) == (80, 4)
    for row in exported(exporting, kind):
        number = row["offset"] - 1
        if row["partition"] == 1 and number % 10 == 9:
            assert (row["id"], row["_error"]) == (None, "schema id 99 is not in the schema registry")
        else:
            assert (row["id"], row["item"], row["_error"]) == (number, f"i{number}", None)
    asked = [path for path in registry.requests if "/ids/" in path]
    assert sorted(asked) == ["/schemas/ids/7", "/schemas/ids/99"], "the newest schema came with its id"


async def test_the_next_export_knows_the_ids_of_the_last_and_reads_records_once(
    exporting: Exporting, registry: FakeRegistry
) -> None:
    registry.add(7, OLD)
    registry.add(8, NEW)
    await exporting.write(20, value=value)
    assert (await run(exporting, "parquet", client(registry))).tasks == 2
    await exporting.write(20, value=value)
    assert (await run(exporting, "parquet", client(registry))).tasks == 1
    [first, second] = await committed(exporting.opened[f"file://{exporting.directory}/parquet"], "orders")
    assert (first.schema_ids, second.schema_ids) == ((7, 8), (7, 8))


async def test_a_given_schema_says_the_columns(exporting: Exporting, registry: FakeRegistry) -> None:
    registry.add(7, OLD)
    registry.add(8, NEW)
    await exporting.write(4, value=value)
    columns = record(("note", ["null", "string"], "none"), ("id", "double"))
    await run(exporting, "parquet", client(registry), schema=json.dumps(columns))
    rows = exported(exporting, "parquet")
    assert [(row["id"], row["note"]) for row in rows] == [(0.0, "none"), (1.0, None), (2.0, "none"), (3.0, None)]
    assert "item" not in rows[0]


async def test_files_by_id_serve_as_a_registry_does(exporting: Exporting, tmp_path: Path) -> None:
    directory = tmp_path / "schemas"
    directory.mkdir()
    for schema_id, schema in ((7, OLD), (8, NEW)):
        (directory / f"{schema_id}.avsc").write_text(json.dumps(schema))
    (directory / "notes.avsc").write_text("not by id")
    await exporting.write(20, value=lambda n: value(n, unknown=3))
    report = await run(exporting, "parquet", SchemaFiles(directory))
    assert (report.records, report.bad_records) == (20, 2)
    reasons = {row["_error"] for row in exported(exporting, "parquet")}
    assert reasons == {None, "schema id 3 has no file 3.avsc in the schema directory"}


class Dies(LocalTasks):
    """Ends the driver once the tasks have written."""

    async def run(self, *arguments: Any, **named: Any) -> Any:
        outcomes = await super().run(*arguments, **named)
        if not any(getattr(outcome, "unknown_ids", ()) for outcome in outcomes):
            raise KeyboardInterrupt
        return outcomes


async def test_a_plan_is_finished_with_the_schemas_it_was_begun_with(exporting: Exporting, tmp_path: Path) -> None:
    """A driver that found the id's schema meanwhile would count records as good that no file of the plan holds."""
    directory = tmp_path / "schemas"
    directory.mkdir()
    (directory / "8.avsc").write_text(json.dumps(NEW))
    await exporting.write(20, value=value)
    lookup = SchemaLookup(SchemaFiles(directory))
    decoding = await lookup.with_columns(Decoding("avro-confluent", on_error="quarantine"), "orders")
    tools = TaskTools(exporting.context.find_object, exporting.open_store)
    from llog.pipeline.export.job import export

    target = await exporting.parquet()
    with pytest.raises(KeyboardInterrupt):
        await export(exporting.context, Dies(tools), "orders", target, decoding=decoding, schemas=lookup)
    (directory / "7.avsc").write_text(json.dumps(OLD))
    (directory / "9.avsc").write_text(json.dumps(NEW))
    report = await run(exporting, "parquet", SchemaFiles(directory), on_error="quarantine")
    assert (report.resumed, report.records, report.bad_records) == (1, 20, 10)
    await exporting.write(20, value=value)
    assert (await run(exporting, "parquet", SchemaFiles(directory), on_error="quarantine")).bad_records == 0


async def test_an_export_that_ended_at_an_unknown_id_goes_on_once_the_id_has_a_schema(
    exporting: Exporting, tmp_path: Path
) -> None:
    directory = tmp_path / "schemas"
    directory.mkdir()
    (directory / "8.avsc").write_text(json.dumps(NEW))
    await exporting.write(20, value=value)
    with pytest.raises(ExportFailed, match=r"orders:0 offset 1: .*schema id 7"):
        await run(exporting, "parquet", SchemaFiles(directory), on_error="fail")
    (directory / "7.avsc").write_text(json.dumps(OLD))
    report = await run(exporting, "parquet", SchemaFiles(directory), on_error="fail")
    assert (report.resumed, report.records, report.bad_records) == (1, 20, 0)


async def test_two_drivers_that_learn_of_an_id_at_once_agree_on_the_first_answer(
    exporting: Exporting, tmp_path: Path
) -> None:
    from llog.pipeline.export.schema_ids import WriterSchemas

    target = await exporting.parquet()
    await exporting.write(5, value=value)
    plan = await planned(exporting, target)
    first = await target.record_writers(plan, WriterSchemas({}, {7: "is missing"}))
    second = await target.record_writers(plan, WriterSchemas({7: ("{}",), 8: ("{}",)}))
    assert (first.missing, second.found, second.missing) == ({7: "is missing"}, {8: ("{}",)}, {7: "is missing"})
    loaded = await target._load_plan(plan.number)
    assert loaded.writers == second
    assert await target.discard() == 0
    assert not [meta async for meta in exporting.opened[target.paths().store_url].list("_llog/")]


async def planned(exporting: Exporting, target: ParquetTarget) -> Any:
    """A recorded plan of avro-confluent values."""
    from llog.pipeline.export.job import export

    class Stops(LocalTasks):
        async def run(self, *arguments: Any, **named: Any) -> Any:
            raise KeyboardInterrupt

    decoding = Decoding("avro-confluent", json.dumps(NEW))
    tools = TaskTools(exporting.context.find_object, exporting.open_store)
    with pytest.raises(KeyboardInterrupt):
        await export(exporting.context, Stops(tools), "orders", target, decoding=decoding)
    return await target._load_plan(1)


async def test_too_many_ids_are_bad_values_and_the_lowest_are_looked_up(
    exporting: Exporting, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("schema_ids", "schema_source", "task"):
        monkeypatch.setattr(f"llog.pipeline.export.{module}.EXPORT_SCHEMA_IDS_MAX", 3)
    registry.add(7, OLD)
    await exporting.write(40, value=lambda n: framed(7 if n % 2 else 1_000 + n, OLD, {"id": n, "item": "x"}))
    report = await run(exporting, "parquet", client(registry))
    assert (report.records, report.bad_records) == (40, 20)
    assert len([path for path in registry.requests if "/ids/" in path]) == 2
    assert any("was not looked up" in (row["_error"] or "") for row in exported(exporting, "parquet"))


# -- the client --------------------------------------------------------------------------------------------------------


async def test_references_are_fetched_each_after_those_it_needs(registry: FakeRegistry) -> None:
    town = record(("at", "geo.Place"), name="geo.Town")
    registry.add(1, {**PLACE, "namespace": "geo"}, "places/all")
    registry.add(2, town, "towns", references=[{"name": "geo.Place", "subject": "places/all", "version": 1}])
    both = [
        {"name": "geo.Town", "subject": "towns", "version": 1},
        {"name": "geo.Place", "subject": "places/all", "version": 1},
    ]
    order = record(("town", "geo.Town"), ("place", "geo.Place"))
    registry.add(3, order, references=both)
    names = [json.loads(text)["name"] for text in await client(registry).fetch(3)]
    assert names == ["Place", "geo.Town", "Order"]
    assert registry.requests.count("/subjects/places%2Fall/versions/1") == 1
    newest = await client(registry).newest("orders")
    assert (newest[0], len(newest[1])) == (3, 3)
    registry.add(4, order, references=[{"name": "geo.Town", "subject": "towns", "version": 2}])
    with pytest.raises(UnknownSchema, match="version 2 of subject towns"):
        await client(registry).fetch(4)
    registry.add(5, order, "ring", references=[{"name": "x", "subject": "ring", "version": 1}])
    with pytest.raises(UnknownSchema, match="refers to itself"):
        await client(registry).fetch(5)


async def test_an_id_that_no_registry_gives_is_unknown_without_a_request(registry: FakeRegistry) -> None:
    with pytest.raises(UnknownSchema, match="beyond 2147483647"):
        await client(registry).fetch(2**32 - 1)
    assert registry.requests == []


async def test_a_schema_of_another_kind_is_no_schema_for_avro_values(registry: FakeRegistry) -> None:
    registry.add(1, '{"type": "object"}', kind="JSON")
    with pytest.raises(UnknownSchema, match="JSON schema, not an Avro one"):
        await client(registry).fetch(1)


@pytest.mark.parametrize(
    ("login", "settings", "userinfo"),
    [
        (FakeRegistry.basic("ada", "p:w"), {"schema_registry_user": "ada", "schema_registry_password": "p:w"}, ""),
        (FakeRegistry.basic("ada", "p@s"), {}, "ada:p%40s@"),
        ("Bearer t0k", {"schema_registry_token": "t0k"}, ""),
    ],
)
async def test_the_login_is_a_password_or_a_token_and_nothing_shows_it(
    login: str, settings: dict[str, str], userinfo: str
) -> None:
    with FakeRegistry(login) as registry:
        registry.add(7, OLD)
        url = registry.url.replace("://", f"://{userinfo}")
        assert await client(registry, schema_registry_url=url, **settings).fetch(7)
        given = Settings.from_env({}, schema_registry_url=url, **settings)
        shown = repr(given) + client(registry, schema_registry_url=url, **settings).title
        assert not any(secret in shown for secret in ("p:w", "p%40s", "p@s", "t0k"))
        with pytest.raises(ExportFailed, match="LLOG_SCHEMA_REGISTRY_USER") as refused:
            await client(registry).fetch(7)
        assert not refused.value.retriable
        assert registry.requests.count("/schemas/ids/7") == 2, "a refusal is not tried again"


async def test_credentials_are_not_repeated_to_the_host_of_a_redirect(registry: FakeRegistry) -> None:
    with FakeRegistry() as other:
        registry.failures = [(302, {"Location": f"{other.url}/schemas/ids/7"}, b"")]
        with pytest.raises(ExportFailed, match="redirects to"):
            await client(registry, schema_registry_token="t0k").fetch(7)
        assert other.requests == []


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_a_registry_that_is_overloaded_is_asked_again_and_then_ends_the_job(
    registry: FakeRegistry, status: int
) -> None:
    registry.add(7, OLD)
    registry.failures = [(status, {}, b"{}")] * 2
    assert await client(registry).fetch(7)
    registry.failures = [(status, {}, b"{}")] * 20
    with pytest.raises(ExportFailed, match=f"status {status}; check the registry") as failed:
        await client(registry).fetch(7)
    assert failed.value.retriable
    assert len(registry.requests) == 3 + registry_module.REGISTRY_TRIES_MAX


async def test_a_registry_that_is_away_ends_the_job(registry: FakeRegistry) -> None:
    with pytest.raises(ExportFailed, match="does not answer") as away:
        await client(registry, schema_registry_url="http://127.0.0.1:1").fetch(7)
    assert away.value.retriable


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"<html>no such page</html>"),
        (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}'),
        (404, b""),
        (200, b"<html>hello</html>"),
        (200, b'{"schema": 5}'),
        (400, b"{}"),
    ],
)
async def test_a_server_that_is_no_registry_ends_the_job_and_makes_no_value_bad(
    registry: FakeRegistry, status: int, body: bytes
) -> None:
    registry.failures = [(status, {}, body)]
    with pytest.raises(ExportFailed, match="LLOG_SCHEMA_REGISTRY_URL"):
        await client(registry).fetch(7)


async def test_an_answer_of_any_size_takes_little_memory(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "REGISTRY_RESPONSE_BYTES_MAX", 1_000)
    registry.failures = [(200, {}, b"x" * 5_000_000)]
    with pytest.raises(ExportFailed, match="more than 1,000 bytes"):
        await client(registry).fetch(7)


async def test_a_subject_without_schemas_and_a_missing_source_say_what_to_do(
    registry: FakeRegistry, tmp_path: Path
) -> None:
    with pytest.raises(ExportFailed, match="has no subject orders-value; name another with --subject"):
        await client(registry).newest("orders")
    registry.add(7, OLD, "other")
    assert (await client(registry, subject="other").newest("orders"))[0] == 7
    with pytest.raises(InvalidArgument, match="set LLOG_SCHEMA_REGISTRY_URL, or give --schema-dir"):
        schema_source(Settings.from_env({}))
    with pytest.raises(InvalidArgument, match="not a directory"):
        schema_source(Settings.from_env({}), str(tmp_path / "nowhere"))
    with pytest.raises(InvalidArgument, match=r"no file \{id\}\.avsc"):
        await SchemaFiles(tmp_path).newest("orders")
    (tmp_path / "3.avsc").write_text('"string"')
    with pytest.raises(InvalidArgument, match=r"the newest, id 3 of schema directory .* must be a record"):
        await SchemaLookup(SchemaFiles(tmp_path)).with_columns(Decoding("avro-confluent"), "orders")


@pytest.mark.parametrize(
    ("variable", "given"),
    [
        ("schema_registry_url", "ftp://x"),
        ("schema_registry_url", "http://secret@host"),
        ("schema_registry_url", "http://u:secret@host:x"),
        ("schema_registry_url", "http://u:secret@host?x=1"),
        ("schema_registry_user", "ada"),
        ("schema_registry_password", "secret"),
    ],
)
def test_settings_that_cannot_reach_a_registry_are_refused_without_the_secret(variable: str, given: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings.from_env({f"LLOG_{variable.upper()}": given})
    assert "secret" not in str(refused.value)


def test_one_login_at_a_time() -> None:
    login = {"schema_registry_user": "a", "schema_registry_password": "b", "schema_registry_token": "c"}
    with pytest.raises(SettingsError, match="one login"):
        Settings.from_env({}, **login)
