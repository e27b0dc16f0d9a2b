"""The pages say what the code does: every field of a scenario, every shipped scenario, every file of a run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llog.loadtest.collect.summarise import ARTIFACTS
from llog.loadtest.scenario import Scenario, shipped
from llog.loadtest.scenario.page import _SECTIONS, field_docs, markdown
from llog.loadtest.scenario.read import parse_scenario

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "loadtest.md").read_text()
SELF_EXPLANATORY = {"name", "stack", "topics", "records", "load", "producers", "consumers", "routing", "faults"}
SELF_EXPLANATORY |= {"targets", "collect", "compactor", "search"}


def test_the_reference_of_scenarios_is_that_of_the_model() -> None:
    assert (DOCS / "reference" / "scenario.md").read_text() == markdown()


@pytest.mark.parametrize("kind", [kind for _, _, kind in _SECTIONS], ids=lambda kind: kind.__name__)
def test_every_field_has_a_meaning(kind: type) -> None:
    fields = set(kind.__annotations__)
    assert fields - field_docs(kind).keys() - SELF_EXPLANATORY == set()


def test_every_shipped_scenario_is_on_the_page() -> None:
    section = PAGE.partition("## Scenarios")[2].partition("## ")[0]
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", section, re.MULTILINE)) == set(shipped())


def test_every_file_that_a_summary_looks_for_is_on_the_page() -> None:
    assert [name for name in ARTIFACTS if f"`{name.rstrip('/')}" not in PAGE] == []


def test_the_example_is_a_scenario() -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert isinstance(parse_scenario(example), Scenario)
