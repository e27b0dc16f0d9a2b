"""The dashboard and the alert rules, as tests read them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
DASHBOARD: Final = ROOT / "grafana/leaderless-log-observability.json"
ALERTS: Final = ROOT / "grafana/alerts.yml"


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def dashboard_queries() -> list[tuple[str, str]]:
    """Title and expression, with what Grafana fills in filled in."""
    variables = {"$instance": ".*", "$__rate_interval": "1m"}
    queries = []
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"]
            for variable, text in variables.items():
                expression = expression.replace(variable, text)
            assert "$" not in expression, f"unknown variable in {expression}"
            queries.append((panel["title"], expression))
    return queries


def alert_rules() -> dict[str, str]:
    """Expressions by alert; each stands on one line."""
    return dict(re.findall(r"- alert: (\w+)\n(?: +#.*\n)* +expr: (.+)\n", ALERTS.read_text()))
