"""docs/performance.md: its tables are those of the stored figures, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from llog.compactor import worker
from llog.loadtest.artifacts import ClientSample, ClientSummary, GeneratorHealth
from llog.loadtest.scenario.read import read_scenario
from llog.telemetry.families import FAMILIES, family, sample_names
from llog.telemetry.request_log import STAGES
from tests.benchmarks.__main__ import register_all
from tests.benchmarks.harness import REGISTRY
from tests.benchmarks.history import BENCHES, SCENARIOS, read_benches, read_entries
from tests.benchmarks.measurements import PAGE, page_with_figures
from tests.benchmarks.performance_page import KAFKA_ROWS
from tests.benchmarks.scenario_figures import ScenarioFigures

TEXT: Final = PAGE.read_text("utf-8")
SOURCES: Final = Path(__file__).parents[2] / "src" / "llog"
QUERIED: Final = {name: row for row in FAMILIES for name in (row.name, *sample_names(row))}


def test_the_tables_are_those_of_the_stored_figures() -> None:
    assert page_with_figures(TEXT) == TEXT, "`make docs` writes them"


def test_stored_benchmarks_exist() -> None:
    register_all()
    assert set(read_benches(BENCHES)) | set(KAFKA_ROWS) <= set(REGISTRY)
    assert all(figures.origin.commit for figures in read_entries(SCENARIOS, ScenarioFigures))


def test_every_metric_that_is_named_exists() -> None:
    named = set(re.findall(r"\b(?:llog|process)_[a-z0-9_]+\b", TEXT))
    assert len(named) > 50
    assert named - set(QUERIED) == set()


def test_every_label_of_a_query_and_its_value_exist() -> None:
    for name, selector in re.findall(r"\b((?:llog|process)_[a-z0-9_]+)\{([^}]*)\}", TEXT):
        for label, value in re.findall(r'(\w+)="([^"]*)"', selector):
            row = QUERIED[name]
            assert label in row.labels, f"{name} has no label {label}"
            if row.starts:
                assert value in {values[row.labels.index(label)] for values in row.starts}, f"{name}: {value}"


def test_every_setting_that_is_named_exists() -> None:
    reference = (PAGE.parent / "reference" / "settings.md").read_text("utf-8")
    named = set(re.findall(r"\bLLOG_[A-Z0-9_]+\b", TEXT))
    assert {name for name in named if f"`{name}`" not in reference} == set()


def test_the_stages_of_a_produce_and_of_compaction_are_named_as_they_are_logged() -> None:
    for stage in STAGES:
        assert f"`{stage}`" in TEXT
        assert family(f"llog_batch_{stage.removesuffix('_ms').replace('queue', 'queue_wait')}_seconds").name in TEXT
    compaction = set(re.findall(r'_timed\(stages_ms, "(\w+)"', Path(worker.__file__).read_text("utf-8")))
    row = next(line for line in TEXT.splitlines() if "llog_compaction_stage_seconds" in line)
    assert compaction == set(re.findall(r"`(\w+)`", row)) & compaction
    assert compaction


def test_every_field_of_the_load_test_and_every_log_line_exist() -> None:
    fields = {name for kind in (ClientSample, ClientSummary, GeneratorHealth) for name in kind.__struct_fields__}
    assert {"send_delay", "late_requests", "lag_ms_max", "generator", "cpu_s", "interval_s"} <= fields
    sources = "".join(path.read_text("utf-8") for path in SOURCES.rglob("*.py"))
    for event in re.findall(r"[Ll]ines? `([a-z][a-zA-Z ]+)`", TEXT):
        assert event in sources, f"no line {event!r}"


def test_the_scenario_of_the_worked_example_is_valid(tmp_path: Path) -> None:
    [text] = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert read_scenario(str(path)).name == "slow-objects"


def test_the_lines_of_the_worked_example_have_the_fields_that_lines_have() -> None:
    blocks = re.findall(r"^```json\n(.*)\n```$", TEXT, re.MULTILINE)
    http, kafka = map(msgspec.json.decode, blocks)
    for line in (http, kafka):
        assert set(STAGES) < line.keys()
        assert sum(line[stage] for stage in STAGES) <= line["duration_ms"]
    assert "request_id" in http
    assert {"client", "client_port", "correlation_id"} < kafka.keys()
