"""docs/operate.md runs: the shell blocks of each of its sections, in their order, as a person would paste them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from llog.testing.servers import ACCESS_KEY, SECRET_KEY, OxiaServer, PostgresServer, VersityGateway
from tests.servers import started

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "operate.md").read_text()
SECTION: Final = re.compile(r"^#{2,3} (.+)$", re.MULTILINE)
BLOCK: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT_SECONDS: Final = 540

pytestmark = pytest.mark.timeout(TIMEOUT_SECONDS + 60)


def sections() -> dict[str, str]:
    """The commands of each section, without sections that have none."""
    _, *pieces = SECTION.split(PAGE)
    found = {name: "".join(BLOCK.findall(text)) for name, text in zip(pieces[::2], pieces[1::2], strict=True)}
    return {name: commands for name, commands in found.items() if commands}


SERVERS: Final = ("PostgreSQL and S3", "Oxia and S3")
EMBEDDED: Final = [name for name in sections() if name not in SERVERS]


def run(commands: str, directory: Path, settings: dict[str, str]) -> str:
    """Run the commands in a shell that stops at the first failure. `settings` replace those of the page."""
    for name in settings:
        commands = re.sub(rf"\b{name}=\S+", f'{name}="${name}"', commands)
    commands = commands.replace("/var/lib/llog", str(directory))
    for port in ("8080", "8081", "9092", "9093"):
        commands = commands.replace(port, str(free_port()))
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("LLOG_", "AWS_"))}
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    with open(directory / "output", "w+") as output:
        shell = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=directory,
            env=environ | settings,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = shell.wait(TIMEOUT_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it left in the background, if it failed
                os.killpg(shell.pid, signal.SIGKILL)
        output.seek(0)
        text = output.read()
    assert code == 0, f"{commands}\n{text}"
    return text


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_every_section_is_run_and_every_block_belongs_to_one() -> None:
    assert set(SERVERS) <= set(sections())
    assert sum(map(len, sections().values())) == sum(map(len, BLOCK.findall(PAGE)))
    assert "```bash" not in PAGE
    assert "```console" not in PAGE


def test_the_page_runs_from_top_to_bottom_on_one_machine(tmp_path: Path) -> None:
    for program in ("curl", "openssl"):
        if shutil.which(program) is None:
            pytest.skip(f"{program}, which the page uses, is not installed")
    settings = {"LLOG_DATA_DIR": str(tmp_path / "data"), "LLOG_OBJECTS_URL": f"file://{tmp_path}/data/objects"}
    output = {name: run(sections()[name], tmp_path, settings) for name in EMBEDDED}
    assert "hello" in output["Embedded"]
    assert "refused, exit code 1" in output["Fencing"]


@pytest.mark.server
@pytest.mark.parametrize("layout", SERVERS)
def test_a_layout_with_servers_runs(layout: str, tmp_path: Path) -> None:
    for bucket in started(VersityGateway):
        objects = {
            "LLOG_OBJECTS_URL": f"s3://{bucket.bucket}/log",
            "LLOG_S3_ENDPOINT_URL": bucket.endpoint,
            "LLOG_S3_ACCESS_KEY_ID": ACCESS_KEY,
            "LLOG_S3_SECRET_ACCESS_KEY": SECRET_KEY,
        }
        for metadata in started(PostgresServer if layout == SERVERS[0] else OxiaServer):
            assert isinstance(metadata, PostgresServer | OxiaServer)
            url = metadata.url if isinstance(metadata, PostgresServer) else f"oxia://{metadata.address}"
            output = run(sections()[layout], tmp_path, objects | {"LLOG_METADATA_URL": url})
            assert "hello" in output


def test_every_alert_is_explained() -> None:
    rules = re.findall(r"- alert: (\w+)", (ROOT / "grafana" / "alerts.yml").read_text())
    assert re.findall(r"^\| `(Llog\w+)` \|", PAGE, re.MULTILINE) == rules


def test_every_setting_that_is_named_exists() -> None:
    reference = (ROOT / "docs" / "reference" / "settings.md").read_text()
    named = set(re.findall(r"\bLLOG_[A-Z0-9_]+\b", PAGE))
    assert {name for name in named if f"`{name}`" not in reference} == set()
