"""`llog pipeline export`, with its tasks in this process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from llog.api.aio import AsyncLeaderlessLogWriter
from llog.api.groups import SharedAppendGroup
from llog.cli.exits import FAILED, NOT_FOUND, UNAVAILABLE, USAGE
from tests.unit.cli.feeding import FedCluster
from tests.unit.pipeline.export.fake_registry import FakeRegistry


class Exports(FedCluster):
    def export(self, *words: str, **environment: str) -> tuple[int, str, str]:
        arguments = ("pipeline", "export", *words, "--in-process")
        done = self.run(*arguments, LLOG_DATA_DIR=str(self.directory / "data"), **environment)
        return done.exit_code, done.stdout, done.stderr

    async def append(self, values: list[bytes]) -> None:
        async with await AsyncLeaderlessLogWriter.open(self.settings) as writer:
            await writer.append_shared([SharedAppendGroup("orders", 0, values)])


@pytest.fixture
def cluster(tmp_path: Path) -> Exports:
    cluster = Exports(tmp_path)
    cluster.write(6)
    return cluster


@pytest.mark.parametrize("form", ["parquet:file://{}/out", "parquet:{}/out"])
def test_a_topic_is_exported_and_the_next_run_finds_nothing_to_do(cluster: Exports, tmp_path: Path, form: str) -> None:
    to = form.format(tmp_path)
    code, out, _ = cluster.export("orders", "--to", to, "--json")
    report = json.loads(out)
    assert (code, report["records"], report["commits"]) == (0, 24, 1)
    files = list((tmp_path / "out" / "orders").rglob("*.parquet"))
    assert sum(pq.ParquetFile(file).metadata.num_rows for file in files) == 24
    assert cluster.export("orders", "--to", to)[:2] == (0, "nothing to do\n")


def test_an_iceberg_table_appears_in_the_data_directory(cluster: Exports, tmp_path: Path) -> None:
    code, out, _ = cluster.export("orders", "--to", "iceberg:shop.orders")
    assert code == 0
    assert "24" in out
    assert "partition 1" in out
    assert (tmp_path / "data" / "iceberg.db").exists()
    assert list((tmp_path / "objects" / "warehouse").rglob("*.parquet"))
    url = f"sqlite:///{tmp_path}/other.db"
    code, out, _ = cluster.export(
        "orders", "--to", "iceberg:shop.orders", "--catalog", url, "--warehouse", f"file://{tmp_path}/wh", "--json"
    )
    assert (code, json.loads(out)["records"]) == (0, 24)
    assert list((tmp_path / "wh").rglob("*.metadata.json"))


def test_paths_are_of_this_machine_and_know_the_home_directory(cluster: Exports, tmp_path: Path) -> None:
    for words, place in (("parquet:~/out",), "out"), (("iceberg:shop.orders", "--warehouse", "~/wh"), "wh"):
        arguments = ("pipeline", "export", "orders", "--in-process", "--to", *words)
        done = cluster.run(*arguments, LLOG_DATA_DIR=str(tmp_path / "data"), HOME=str(tmp_path / "home"))
        assert done.exit_code == 0, done.stderr
        assert list((tmp_path / "home" / place).rglob("*.parquet"))


def test_values_that_cannot_be_decoded_are_told_on_stderr(cluster: Exports, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"id": {"type": "integer"}}}')
    words = ("orders", "--to", f"parquet:{tmp_path}/out", "--decode", "json", "--schema", str(schema))
    code, out, err = cluster.export(*words, "--on-error", "fail")
    assert (code, out) == (FAILED, "")
    assert "orders:0 offset 1" in err
    elsewhere = (*words[:2], f"parquet:{tmp_path}/out2", *words[3:], "--prefix", "v_")
    code, out, err = cluster.export(*elsewhere, "--json")
    assert (code, json.loads(out)["bad_records"]) == (0, 24)
    assert "24 values could not be decoded" in err


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (("orders", "--to", "csv:x"), USAGE, "--to"),
        (("orders", "--to", "iceberg:orders"), USAGE, "namespace"),
        (("orders", "--to", "iceberg:shop..orders"), USAGE, "namespace"),
        (("orders", "--to", "parquet:/tmp/x", "--decode", "json"), USAGE, "schema"),
        (("orders", "--to", "parquet:/tmp/x", "--decode", "json", "--schema", "/nowhere"), USAGE, "--schema"),
        (("orders", "--to", "parquet:/tmp/x", "--decode", "avro-confluent"), USAGE, "LLOG_SCHEMA_REGISTRY_URL"),
        (
            ("orders", "--to", "parquet:/tmp/x", "--decode", "avro-confluent", "--schema-dir", "/nowhere"),
            USAGE,
            "/nowhere is not a directory",
        ),
        (("orders", "--to", "parquet:/tmp/x", "--schema-dir", "/tmp"), USAGE, "schema_dir: means nothing for raw"),
        (("orders", "--to", "parquet:/tmp/x", "--subject", "x"), USAGE, "subject: means nothing for raw"),
        (("orders", "--to", "iceberg:a.b", "--warehouse", "/proc/none"), FAILED, "check the warehouse"),
        (("missing", "--to", "iceberg:a.b"), NOT_FOUND, "missing"),
        (("orders", "--to", "iceberg:a.b", "--catalog", "sqlite:////nowhere/at/all.db"), FAILED, "catalogue"),
        (("orders", "--to", "iceberg:a.b", "--catalog", "nonsense://x"), USAGE, "catalogue"),
        (("orders", "--to", "iceberg:a.b", "--catalog", "http://127.0.0.1:1/"), UNAVAILABLE, "catalogue"),
        (("orders", "--to", "iceberg:a.b", "--discard-plan"), USAGE, "--discard-plan: means nothing for iceberg:"),
        (
            ("orders", "--to", "parquet:/tmp/x", "--warehouse", "/tmp/y"),
            USAGE,
            "--warehouse: means nothing for parquet",
        ),
    ],
)
def test_what_cannot_be_done_ends_with_a_word_and_its_own_exit_code(
    cluster: Exports, words: tuple[str, ...], code: int, named: str
) -> None:
    found, out, err = cluster.export(*words)
    assert (found, out) == (code, ""), err
    assert named in err
    assert err.count("\n") == 1


def test_values_are_read_by_schemas_of_a_directory_and_a_registry(tmp_path: Path) -> None:
    cluster = Exports(tmp_path)
    schema = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    asyncio.run(cluster.append([b"\0\0\0\0\7\x02", b"\0\0\0\0\x08\x02"]))
    directory = tmp_path / "schemas"
    directory.mkdir()
    (directory / "7.avsc").write_text(json.dumps(schema))
    words = ("orders", "--decode", "avro-confluent", "--json", "--to")
    code, out, err = cluster.export(*words, f"parquet:{tmp_path}/a", "--schema-dir", str(directory))
    assert (code, json.loads(out)["bad_records"]) == (0, 1)
    with FakeRegistry(FakeRegistry.basic("ada", "pw")) as registry:
        registry.add(7, schema, "all-orders")
        registry.add(8, schema, "all-orders")
        where = {"LLOG_SCHEMA_REGISTRY_URL": registry.url.replace("://", "://ada:pw@")}
        to = (f"parquet:{tmp_path}/b", "--subject", "all-orders")
        code, out, err = cluster.export(*words, *to, **where)
        assert (code, json.loads(out)["bad_records"]) == (0, 0)
        where["LLOG_SCHEMA_REGISTRY_URL"] = registry.url
        code, out, err = cluster.export(*words, *to, **where)
        assert (code, out) == (FAILED, "")
        assert "refuses GET /subjects/all-orders/versions/latest with status 401; set LLOG_SCHEMA_REGISTRY_USER" in err
    code, out, err = cluster.export(*words, *to, **where)
    assert (code, out) == (UNAVAILABLE, "")
    assert "does not answer" in err
