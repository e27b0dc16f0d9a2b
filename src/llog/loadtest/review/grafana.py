"""Grafana of a quick review: a provisioned data source and the dashboard of this repository, for everybody on this
machine to look at, for nobody to change."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import msgspec

NAME: Final = "grafana"
PORT: Final = 3000
DASHBOARD_UID: Final = "leaderless-log"
HOMES: Final = (Path("/usr/share/grafana"), Path("/opt/homebrew/opt/grafana/share/grafana"), Path("/opt/grafana"))
"""Where packages put its web files."""


def write_provisioning(folder: Path, dashboard: Path, prometheus_url: str) -> None:
    """`datasources/` and `dashboards/` below `folder`, as Grafana expects them. The files are JSON, which is YAML."""
    source = {
        "name": "Prometheus",
        "type": "prometheus",
        "uid": "prometheus",
        "access": "proxy",
        "url": prometheus_url,
        "isDefault": True,
        "jsonData": {"timeInterval": "2s"},
    }
    files = folder / "dashboards" / "files"
    provider = {"name": "llog", "type": "file", "options": {"path": str(files)}}
    files.mkdir(parents=True)
    (folder / "datasources").mkdir()
    _write(folder / "datasources" / "llog.yaml", {"apiVersion": 1, "datasources": [source]})
    _write(folder / "dashboards" / "llog.yaml", {"apiVersion": 1, "providers": [provider]})
    shutil.copyfile(dashboard, files / dashboard.name)


def _write(path: Path, content: object) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content)))


def settings(folder: Path, data: Path, port: int) -> dict[str, str]:
    """Its environment variables."""
    return {
        "GF_SERVER_HTTP_ADDR": "127.0.0.1",
        "GF_SERVER_HTTP_PORT": str(port),
        "GF_PATHS_PROVISIONING": str(folder),
        "GF_PATHS_DATA": str(data),
        "GF_PATHS_LOGS": str(data / "log"),
        "GF_PATHS_PLUGINS": str(data / "plugins"),
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
        "GF_AUTH_DISABLE_LOGIN_FORM": "true",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
    }


def command(program: Path) -> list[str]:
    """`grafana server`, or `grafana-server` of releases before 10."""
    own = program.resolve().parents[1]
    homes = [home for home in (own, own / "share" / "grafana", *HOMES) if (home / "public").is_dir()]
    arguments = [f"--homepath={homes[0]}"] if homes else []
    return [str(program), *(["server"] if program.name == "grafana" else []), *arguments]


def program() -> Path | None:
    found = shutil.which("grafana") or shutil.which("grafana-server")
    return None if found is None else Path(found)
