"""Prometheus of a quick review: its configuration, and what it is asked."""

from __future__ import annotations

import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

import msgspec

from llog.errors import StackFailed

NAME: Final = "prometheus"
PORT: Final = 9090
SCRAPE_INTERVAL: Final = "2s"
TARGETS_REFRESH: Final = "2s"
"""Beside the notice of the file system, which not every one gives."""
ANSWER_S_MAX: Final = 5.0
ANSWER_BYTES_MAX: Final = 16 * 2**20


class Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]


class _Result(msgspec.Struct, frozen=True):
    result: tuple[Series, ...] = ()


class _Answer(msgspec.Struct, frozen=True):
    status: str
    data: _Result = _Result()


def configuration(targets: Path, rules: Path | None) -> dict[str, Any]:
    """As JSON it is YAML, too."""
    return {
        "global": {
            "scrape_interval": SCRAPE_INTERVAL,
            "scrape_timeout": SCRAPE_INTERVAL,
            "evaluation_interval": SCRAPE_INTERVAL,
        },
        "rule_files": [] if rules is None else [str(rules)],
        "scrape_configs": [
            {
                "job_name": "llog",
                "metrics_path": "/metrics/prometheus",
                "file_sd_configs": [{"files": [str(targets)], "refresh_interval": TARGETS_REFRESH}],
            }
        ],
    }


def command(program: Path, config: Path, data: Path, port: int) -> list[str]:
    return [
        str(program),
        f"--config.file={config}",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]


def shown_instances(url: str, run_id: str) -> set[str]:
    """`host:port` of every process whose load test metrics Prometheus has. Raises `StackFailed` for a wrong answer."""
    query = urllib.parse.urlencode({"query": f'llog_loadtest_info{{run_id="{run_id}"}}'})
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=ANSWER_S_MAX) as answer:
            found = msgspec.json.decode(answer.read(ANSWER_BYTES_MAX), type=_Answer)
    except OSError:
        return set()  # asked again, until the time is over
    except msgspec.DecodeError as error:
        raise StackFailed(NAME, f"its answer is not that of Prometheus: {error}") from None
    return {series.metric.get("instance", "") for series in found.data.result}
