"""The description that a load test passes to the processes it starts, so that their metrics show it.

The orchestrator puts one small JSON object into `LLOG_LOADTEST_SCENARIO`:

    {"name": "steady", "run_id": "2026-01-31-a", "parameters": {"brokers": 3, "partitions": 64, "record_bytes": 1024}}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from llog.errors import SettingsError
from llog.limits import KIB, METRICS_LABEL_CHARS_MAX

METRICS_SCENARIO_BYTES_MAX: Final = 16 * KIB
METRICS_SCENARIO_PARAMETERS_MAX: Final = 64

SCENARIO_VARIABLE: Final = "LLOG_LOADTEST_SCENARIO"

_Text = Annotated[str, Meta(max_length=METRICS_LABEL_CHARS_MAX)]
_PARAMETER: Final = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_ACCEPTED: Final = 'JSON like {"name": "steady", "run_id": "1", "parameters": {"brokers": 3}}'


class LoadTestScenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: _Text
    run_id: _Text = ""
    parameters: dict[str, int | float] = {}
    """Numbers that describe the run, by names in lower case."""


def scenario_from_env(environ: Mapping[str, str]) -> LoadTestScenario | None:
    """None without a load test. Raises `SettingsError`."""
    text = environ.get(SCENARIO_VARIABLE, "")
    return parse_scenario(text) if text else None


def parse_scenario(text: str) -> LoadTestScenario:
    if len(text.encode("utf-8", "surrogatepass")) > METRICS_SCENARIO_BYTES_MAX:
        raise SettingsError(SCENARIO_VARIABLE, text[:80] + "…", f"at most {METRICS_SCENARIO_BYTES_MAX} bytes")
    try:
        scenario = msgspec.json.decode(text, type=LoadTestScenario)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise SettingsError(SCENARIO_VARIABLE, text[:200], f"{_ACCEPTED} ({error})") from None
    if len(scenario.parameters) > METRICS_SCENARIO_PARAMETERS_MAX:
        raise SettingsError(SCENARIO_VARIABLE, text[:200], f"at most {METRICS_SCENARIO_PARAMETERS_MAX} parameters")
    for name in scenario.parameters:
        if not _PARAMETER.fullmatch(name):
            raise SettingsError(SCENARIO_VARIABLE, text[:200], f"parameters named like record_bytes, not {name[:80]!r}")
    return scenario
