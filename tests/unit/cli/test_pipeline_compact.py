"""`llog compact`, which is `llog pipeline compact` in this process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llog.cli.app import app
from llog.cli.exits import FAILED, NOT_FOUND, OK, USAGE
from llog.cli.stack import joining_spark
from llog.errors import InvalidArgument
from llog.log.keys import Log
from llog.settings import Settings
from llog.wiring import Use, opened_log
from tests.filling import append, group_of


async def fill(directory: Path) -> None:
    settings = Settings.from_env({"LLOG_DATA_DIR": str(directory)})
    async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT) as opened:
        groups = [
            group_of(Log(topic, partition), [b"a", b"b"]) for topic in ("orders", "visits") for partition in (0, 1)
        ]
        await append(opened.context, groups, groups)


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two topics with two partitions each, two appends in each."""
    monkeypatch.setenv("LLOG_DATA_DIR", str(tmp_path))
    asyncio.run(fill(tmp_path))
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["compact", *arguments])
    return done.exit_code, done.output


def test_everything_is_compacted_and_shown_in_a_table(filled: Path) -> None:
    code, done = run()
    assert code == OK
    assert [f"{topic}:{partition}" in done for topic in ("orders", "visits") for partition in (0, 1)] == [True] * 4
    assert "objects" in done.splitlines()[-1]
    assert run() == (OK, "nothing to do\n")


def test_one_topic_or_one_partition_may_be_chosen(filled: Path) -> None:
    code, done = run("orders:1", "--json")
    report = json.loads(done)
    assert code == OK
    assert [(log["topic"], log["partition"], log["outcome"]) for log in report["logs"]] == [("orders", 1, "compacted")]
    code, done = run("visits:0", "orders:1", "--json")
    assert [(log["topic"], log["outcome"]) for log in json.loads(done)["logs"]] == [
        ("orders", "idle"),
        ("visits", "compacted"),
    ]
    code, done = run("orders", "--json")
    assert [log["outcome"] for log in json.loads(done)["logs"]] == ["compacted", "idle"]


def test_the_same_command_is_part_of_the_pipeline(filled: Path) -> None:
    done = CliRunner().invoke(app, ["pipeline", "compact", "--in-process", "orders:1", "--json"])
    assert [log["outcome"] for log in json.loads(done.stdout)["logs"]] == ["compacted"]
    assert run("orders:1") == (OK, "nothing to do\n")


def test_records_read_the_same_afterwards(filled: Path) -> None:
    def records() -> str:
        return CliRunner().invoke(app, ["consume", "orders", "-f", "%p %o %s,"]).stdout

    before = records()
    assert run("orders")[0] == OK
    assert records() == before


def test_the_former_spelling_of_a_partition_is_answered_with_the_new_one(filled: Path) -> None:
    code, done = run("orders", "1")
    assert code == USAGE
    assert "write orders:1" in done


def test_an_unknown_topic_is_not_found(filled: Path) -> None:
    assert run("nowhere")[0] == NOT_FOUND
    assert run("nowhere:0")[0] == NOT_FOUND


def test_small_neighbours_are_merged_when_asked(filled: Path) -> None:
    run("orders:0")
    made = CliRunner().invoke(app, ["produce", "orders", "--partition", "0"], input="gamma\n")
    assert made.exit_code == 0
    code, done = run("orders:0", "--merge", "--json")
    [log] = json.loads(done)["logs"]
    assert (code, log["runs"], log["merges"]) == (OK, 1, 1)


def test_young_entries_can_be_left_alone(filled: Path) -> None:
    assert run("--min-age-ms", "3600000") == (OK, "nothing to do\n")


def test_a_damaged_log_is_named_and_the_exit_code_says_so(filled: Path) -> None:
    first = min((filled / "objects").rglob("wal-shared/*"))
    content = bytearray(first.read_bytes())
    content[-1] ^= 1  # of the slice that lies last
    first.write_bytes(content)
    code, done = run()
    assert code == FAILED
    assert "failed" in done
    assert first.name in done
    assert done.count("compacted") == 3


async def test_the_compactor_is_given_no_spark_where_the_setting_says_so() -> None:
    assert joining_spark(Settings.from_env({"LLOG_COMPACTOR_SPARK": "false"})) is None
    join = joining_spark(Settings.from_env({"LLOG_OBJECTS_URL": "memory://x", "LLOG_METADATA_URL": "memory://"}))
    assert join is not None
    with pytest.raises(InvalidArgument, match="run in process"):
        await join()
