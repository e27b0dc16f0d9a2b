"""The quick review with the real Prometheus: when the load begins, what is shown, and what is left when it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from llog.loadtest.artifacts import StepEvent
from llog.loadtest.progress import STEPS
from llog.loadtest.review.prometheus import shown_instances
from llog.loadtest.run_directory import RunDirectory
from llog.loadtest.stack.processes import find_marked
from llog.testing.servers import ServerUnavailable, prometheus_program
from tests.patience import PATIENCE_SECONDS, wait_until

SOAK: Final = os.environ.get("LLOG_SOAK") == "1"
ROOT: Final = Path(__file__).parents[3]
SMALL: Final = ("smoke", "--set", "load.target_mb_per_s=1", "--set", "load.duration_s=60", "--set", "stack.brokers=2")

pytestmark = pytest.mark.server


@pytest.fixture(autouse=True)
def _prometheus() -> None:
    try:
        prometheus_program()
    except ServerUnavailable as reason:
        pytest.skip(str(reason))


@contextmanager
def reviewing(results: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`./quick_run.sh` without `make setup`; this test ends every process that it leaves."""
    environment = {**os.environ, "QUICK_RUN_SETUP": "no", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [str(ROOT / "quick_run.sh"), *SMALL, "--results", str(results)]
    with open(log, "wb") as output:
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        for run in RunDirectory.all(results):
            for process in find_marked(run):
                process.kill()


def steps(run: RunDirectory) -> list[str]:
    return [step.step for step in run.lines(STEPS, StepEvent)]


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.skipif(not SOAK, reason="LLOG_SOAK=1: half a minute each")),
        pytest.param(signal.SIGKILL, marks=pytest.mark.skipif(not SOAK, reason="LLOG_SOAK=1: half a minute each")),
    ],
)
def test_the_load_begins_once_prometheus_shows_every_broker_and_nothing_is_left(
    tmp_path: Path, how: signal.Signals
) -> None:
    log = tmp_path / "log"
    with reviewing(tmp_path / "results", log) as child:

        def begun() -> bool:
            assert child.poll() is None, log.read_text()
            return any("warm_up" in steps(run) for run in RunDirectory.all(tmp_path / "results"))

        wait_until(begun, "the load begins", pause_seconds=0.05)
        [run] = RunDirectory.all(tmp_path / "results")
        stack = run.stack()
        assert stack is not None

        done = steps(run)
        assert done.index("prometheus") < done.index("metrics") < done.index("warm_up")
        [url] = re.findall(r"^Prometheus +(http://127\.0\.0\.1:\d+)$", log.read_text(), re.MULTILINE)
        brokers = {urlsplit(broker.http_url).netloc for broker in stack.brokers}
        assert len(brokers) == 2
        assert brokers <= shown_instances(url, run.run_id)
        targets = run.data / "review" / "targets.json"
        assert brokers <= {target for group in json.loads(targets.read_text()) for target in group["targets"]}

        child.send_signal(how)
        code = child.wait(PATIENCE_SECONDS)
        wait_until(lambda: not targets.exists(), "the targets are gone")
        wait_until(lambda: not list(find_marked(run)), "no process is left")
        if how is not signal.SIGKILL:
            assert code == 130, log.read_text()
            after = run.stack()
            assert after is not None
            assert after.state == "down"
