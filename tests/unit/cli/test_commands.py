"""The commands, in this process."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from llog import wiring
from llog.cli.app import app
from llog.errors import MetadataUnavailable, ObjectStoreDenied, ObjectStoreUncertain
from llog.settings import Settings, settings_table
from llog.stores.metadata.port import MetadataStore
from llog.stores.objects import memory
from llog.stores.objects.port import Buffer, ObjectStore
from llog.testing.servers import ACCESS_KEY, SECRET_KEY, ServerUnavailable, VersityGateway


def llog(*arguments: str, **environ: str) -> Any:
    """Run it with no setting but those given; what the test itself finds in its environment stays."""
    env: dict[str, str | None] = {name: None for name in os.environ if name.startswith(("LLOG_", "AWS_"))}
    return CliRunner().invoke(app, arguments, env={**env, "HOME": "/nonexistent", "XDG_DATA_HOME": None, **environ})


# -- settings -------------------------------------------------------------------------------------------------------


def test_settings_shows_every_setting_its_value_and_its_source() -> None:
    shown = llog("settings", LLOG_BATCH_MAX_BYTES="1MiB")
    assert shown.exit_code == 0
    lines = {line.split()[0]: line for line in shown.stdout.splitlines() if line.startswith("LLOG_")}
    assert set(lines) == {row.variable for row in settings_table()}
    assert "1MiB" in lines["LLOG_BATCH_MAX_BYTES"]
    assert "environment LLOG_BATCH_MAX_BYTES" in lines["LLOG_BATCH_MAX_BYTES"]
    assert "derived from LLOG_WAL_URL" in lines["LLOG_BATCH_MAX_DELAY_MS"]


def test_settings_as_json_can_be_read_by_programs() -> None:
    rows = {row["variable"]: row for row in json.loads(llog("settings", "--json", AWS_REGION="eu-west-1").stdout)}
    assert rows["LLOG_BATCH_MAX_BYTES"]["value"] == 8_388_608
    assert rows["LLOG_S3_REGION_NAME"]["source"] == "fallback AWS_REGION"


def test_settings_changed_leaves_the_defaults_out() -> None:
    rows = json.loads(llog("settings", "--json", "--changed", LLOG_COMPACTOR_WORKERS="9").stdout)
    assert [row["variable"] for row in rows] == ["LLOG_COMPACTOR_WORKERS"]


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--changed",)])
def test_settings_never_prints_a_secret(arguments: Sequence[str]) -> None:
    secrets = {"LLOG_OXIA_TOKEN": "hunter2", "AWS_ACCESS_KEY_ID": "hunter2", "AWS_SECRET_ACCESS_KEY": "hunter2"}
    shown = llog("settings", *arguments, **secrets, LLOG_METADATA_URL="postgresql://u:hunter2@h/db")
    assert shown.exit_code == 0
    assert "***" in shown.stdout
    assert "hunter2" not in shown.output


def test_wrong_settings_end_with_code_2_and_all_of_them_on_stderr() -> None:
    shown = llog("settings", LLOG_BATCH_MAX_BYTES="x", LLOG_ENCODING="y")
    assert shown.exit_code == 2
    assert shown.stdout == ""
    assert "LLOG_BATCH_MAX_BYTES" in shown.stderr
    assert "LLOG_ENCODING" in shown.stderr


def test_generated_pages_do_not_depend_on_the_environment() -> None:
    for page in ("--markdown", "--env-example"):
        wrong = llog("settings", page, LLOG_BATCH_MAX_BYTES="x")
        assert wrong.exit_code == 0
        assert wrong.stdout == llog("settings", page).stdout


def test_output_forms_exclude_each_other() -> None:
    assert llog("settings", "--json", "--markdown").exit_code == 2


# -- stores check -----------------------------------------------------------------------------------------------------

MEMORY = ("--metadata-url", "memory://check", "--objects-url", "memory://check")


def test_a_check_of_working_stores_succeeds_and_leaves_nothing_behind() -> None:
    shown = llog("stores", "check", "--json", *MEMORY)
    assert shown.exit_code == 0, shown.output
    answer = json.loads(shown.stdout)
    assert answer["ok"] is True
    assert {step["store"] for step in answer["steps"]} == {"metadata", "objects"}
    assert {"put", "get", "delete"} <= {step["step"] for step in answer["steps"]}
    assert not memory._places["memory://check"]


def test_a_wal_store_of_its_own_is_checked_too(tmp_path: Path) -> None:
    shown = llog("stores", "check", "--json", *MEMORY, "--wal-url", f"file://{tmp_path}/wal")
    assert shown.exit_code == 0, shown.output
    assert "delete" in {s["step"] for s in json.loads(shown.stdout)["steps"] if s["store"] == "wal"}
    assert not [path for path in (tmp_path / "wal").rglob("probes/*") if path.is_file()]


def test_a_table_is_printed_for_people() -> None:
    shown = llog("stores", "check", *MEMORY)
    assert shown.exit_code == 0
    assert "memory://check" in shown.stdout
    assert "FAILED" not in shown.stdout


def test_an_unknown_scheme_fails_the_check_and_says_what_is_installed() -> None:
    shown = llog("stores", "check", "--metadata-url", "etcd://user:hunter2@host", "--objects-url", "memory://check")
    assert shown.exit_code == 1
    assert "installed: " in shown.stderr
    assert "hunter2" not in shown.output
    assert "objects" in shown.stdout


def test_a_wrong_url_is_a_wrong_setting() -> None:
    shown = llog("stores", "check", "--metadata-url", "nonsense")
    assert shown.exit_code == 2
    assert "argument metadata_url" in shown.stderr


class DeniedStore(memory.MemoryObjectStore):
    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        raise ObjectStoreDenied("put", name)


class ForgetfulStore(memory.MemoryObjectStore):
    """Its put happens, but the answer is lost."""

    async def put(self, name: str, buffers: Sequence[Buffer], *, if_absent: bool = False) -> None:
        await super().put(name, buffers, if_absent=if_absent)
        raise ObjectStoreUncertain("put", name, "connection reset")


class LyingStore(memory.MemoryObjectStore):
    async def get(self, name: str) -> Buffer:
        return b"something else"


def check_with(monkeypatch: pytest.MonkeyPatch, store: ObjectStore) -> Any:
    async def open_it(url: str, settings: Settings) -> ObjectStore:
        return store

    monkeypatch.setattr(wiring, "open_object_store", open_it)
    return llog("stores", "check", "--json", *MEMORY)


def failures(shown: Any) -> list[dict[str, Any]]:
    assert shown.exit_code == 1
    return [step for step in json.loads(shown.stdout)["steps"] if not step["ok"]]


def test_a_refused_put_ends_that_stores_steps_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = check_with(monkeypatch, DeniedStore("memory://denied"))
    [failed] = failures(shown)
    assert failed["step"] == "put"
    assert "LLOG_S3_ACCESS_KEY_ID" in failed["advice"]
    assert "LLOG_S3_ACCESS_KEY_ID" in shown.stderr


def test_a_put_with_a_lost_answer_is_removed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    [failed] = failures(check_with(monkeypatch, ForgetfulStore("memory://forgetful")))
    assert failed["step"] == "put"
    assert not memory._places["memory://forgetful"]


def test_a_store_that_gives_other_bytes_back_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    [failed] = failures(check_with(monkeypatch, LyingStore("memory://lying")))
    assert failed["step"] == "compare"
    assert not memory._places["memory://lying"]


def test_a_store_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    async def open_it(url: str, settings: Settings) -> MetadataStore:
        await asyncio.sleep(60)
        raise AssertionError("not reached")

    monkeypatch.setattr(wiring, "open_metadata_store", open_it)
    shown = llog("stores", "check", "--json", *MEMORY, LLOG_REQUEST_TIMEOUT_MS="100")
    [failed] = failures(shown)
    assert "no answer within 300 ms" in failed["error"]
    assert "LLOG_REQUEST_TIMEOUT_MS" in failed["advice"]


def test_a_store_that_is_down_is_reported_with_what_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_it(url: str, settings: Settings) -> MetadataStore:
        raise MetadataUnavailable("open", url)

    monkeypatch.setattr(wiring, "open_metadata_store", open_it)
    [failed] = failures(llog("stores", "check", "--json", *MEMORY))
    assert "running and reachable" in failed["advice"]


@pytest.mark.server
def test_a_real_bucket_passes_and_a_wrong_key_or_bucket_is_told_apart() -> None:
    try:
        server = VersityGateway()
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    with server:
        environ = {"LLOG_S3_ENDPOINT_URL": server.endpoint, "LLOG_S3_ACCESS_KEY_ID": ACCESS_KEY}
        environ |= {"LLOG_S3_SECRET_ACCESS_KEY": SECRET_KEY, "LLOG_METADATA_URL": "memory://check"}
        good = llog("stores", "check", **environ, LLOG_S3_BUCKET=server.bucket)
        assert good.exit_code == 0, good.output
        [wrong_key] = failures(
            llog(
                "stores",
                "check",
                "--json",
                **{**environ, "LLOG_S3_SECRET_ACCESS_KEY": "hunter2"},
                LLOG_S3_BUCKET=server.bucket,
            )
        )
        assert "LLOG_S3_SECRET_ACCESS_KEY" in wrong_key["advice"]
        assert "hunter2" not in str(wrong_key)
        [wrong_bucket] = failures(llog("stores", "check", "--json", **environ, LLOG_S3_BUCKET="no-such-bucket"))
        assert "the bucket must exist" in wrong_bucket["advice"]


# -- errors become exit codes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("error", "code"), [(MetadataUnavailable("get", "x"), 3), (ObjectStoreDenied("get", "x"), 4)])
def test_an_error_of_ours_is_one_line_and_its_code(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("llog.settings.pages.describe", fail)
    shown = llog("settings")
    assert shown.exit_code == code
    assert shown.stderr == f"llog: {error}\n"


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("llog.settings.pages.describe", fail)
    assert isinstance(llog("settings").exception, ZeroDivisionError)


def test_help_lists_the_commands_and_the_exit_codes() -> None:
    shown = llog("--help")
    assert shown.exit_code == 0
    for word in ("settings", "stores", "Exit codes", "--version", "--install-completion"):
        assert word in shown.stdout


@pytest.mark.parametrize("command", ["broker", "up"])
def test_a_broker_s_options_are_checked_as_the_settings_are(command: str) -> None:
    names = [("--broker-id", name, "1 to 128 letters") for name in ("", "two words", "a/b", "x" * 129, "\udcff")]
    for option, value, accepted in (*names, ("--port", "70000", "0 to 65,535"), ("--host", "a b", "host")):
        refused = llog(command, option, value)
        assert refused.exit_code == 2, refused.output
        assert accepted in refused.stderr
