"""Every citation of the protocol in src, tests and docs leads to a definition, and every definition has a test.

Citations are `R7` (rule), `I4` (invariant), `h24b` (hazard) and "protocol section 11". Rules, invariants and sections
are defined in docs/protocol.md, hazards in docs/hazards.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import msgspec
import pytest

from llog.formats import values
from llog.testing.mutants import MUTANTS
from llog.testing.sim import SCENARIOS

import_module("llog.testing.hazards")  # registers the scripts

ROOT = Path(__file__).parents[2]
PROTOCOL = (ROOT / "docs/protocol.md").read_text("utf-8")
HAZARDS = (ROOT / "docs/hazards.md").read_text("utf-8")

RULES = set(re.findall(r"^- \*\*([RG]\d+)\*\* ", PROTOCOL, re.MULTILINE))
INVARIANTS = set(re.findall(r"^\| (I\d+) \|", PROTOCOL, re.MULTILINE))
SECTIONS = {int(number) for number in re.findall(r"^## (\d+)\. ", PROTOCOL, re.MULTILINE)}
HAZARD_ROWS = set(re.findall(r"^\| ([gh]\d\d[a-z]?) \|", HAZARDS, re.MULTILINE))

# A range such as "h01a to h01e" or a family such as "h11" counts for all its rows. Markup that looks like a citation:
# `R"…"` strings, `I64` dtypes and names such as `h2` in other contexts have no word of this shape.
_RULE = re.compile(r"(?<![\w.#&-])[RG](?:1[0-9]|[1-9])(?![\w-])")
_INVARIANT = re.compile(r"(?<![\w.#&-])I(?:1[0-9]|[1-9])(?![\w-])")
_HAZARD = re.compile(r"(?<![\w.#&-])[gh][0-9][0-9][a-z]?(?![\w-])")
_SECTION = re.compile(r"protocol section (\d+)", re.IGNORECASE)


def _texts() -> Iterator[tuple[str, str]]:
    for pattern in ("src/**/*.py", "tests/**/*.py", "docs/**/*.md", "*.md"):
        for path in sorted(ROOT.glob(pattern)):
            if "_pb2" not in path.name and path.name != "CHANGELOG.md" and ".venv" not in path.parts:
                yield str(path.relative_to(ROOT)), path.read_text("utf-8")


def _hazard_is_defined(name: str) -> bool:
    return any(row == name or (row.startswith(name) and len(name) == 3) for row in HAZARD_ROWS)


def test_the_pages_define_every_rule_invariant_section_and_hazard_once() -> None:
    assert {f"R{number}" for number in range(1, 14)} | {f"G{number}" for number in range(1, 13)} == RULES
    assert {f"I{number}" for number in range(1, 14)} == INVARIANTS
    assert set(range(1, 14)) == SECTIONS
    assert {name[:3] for name in HAZARD_ROWS} == {f"h{n:02d}" for n in range(1, 34)} | {
        f"g{n:02d}" for n in range(1, 10)
    }
    rows = re.findall(r"^\| ([gh]\d\d[a-z]?) \|", HAZARDS, re.MULTILINE)
    assert len(rows) == len(set(rows))


def test_every_citation_leads_to_a_definition() -> None:
    lost = []
    for path, text in _texts():
        lost += [f"{path}: {name}" for name in _RULE.findall(text) if name not in RULES]
        lost += [f"{path}: {name}" for name in _INVARIANT.findall(text) if name not in INVARIANTS]
        lost += [f"{path}: {name}" for name in _HAZARD.findall(text) if not _hazard_is_defined(name)]
        lost += [f"{path}: section {number}" for number in _SECTION.findall(text) if int(number) not in SECTIONS]
        lost += [f"{path}: {words}" for words in re.findall(r"PROTOCOL\.?(?:md)? (?:section )?\d+", text)]
    assert not lost, "citations without a definition:\n" + "\n".join(sorted(set(lost)))


def test_every_definition_is_covered_by_a_test() -> None:
    """A rule, an invariant or a hazard that no test and no simulation names is a sentence that nothing holds true."""
    covered: set[str] = set()
    for path, text in _texts():
        if path.startswith(("tests/", "src/llog/testing/")) and path != "tests/docs/test_citations.py":
            for pattern in (_RULE, _INVARIANT, _HAZARD):
                covered |= set(pattern.findall(text))
    uncovered = sorted((RULES | INVARIANTS | HAZARD_ROWS) - covered)
    assert not uncovered, f"defined, and named by no test: {', '.join(uncovered)}"


def test_every_hazard_has_a_script_and_a_mutant() -> None:
    scripts = {name for name in SCENARIOS if _HAZARD.fullmatch(name)}
    assert scripts == HAZARD_ROWS, "hazards without a script, or scripts without a row"
    assert {mutant.row for mutant in MUTANTS} == HAZARD_ROWS, "hazards without a mutant, or mutants without a row"


@pytest.mark.parametrize("value", values.VALUES, ids=lambda value: value.__name__)
def test_the_protocol_page_names_every_field_of_every_value(value: type[msgspec.Struct]) -> None:
    missing = [name for name in value.__struct_fields__ if f"`{name}`" not in PROTOCOL]
    assert not missing, f"{value.__name__} has fields that docs/protocol.md does not name: {missing}"


def test_every_source_file_that_a_page_names_exists() -> None:
    missing = [
        f"{path}: {name}"
        for path, text in _texts()
        if path.endswith(".md")
        for name in re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)`", text)
        if not any((ROOT / root / name).exists() for root in ("", "src", "src/llog"))
    ]
    assert not missing, "pages name files that do not exist:\n" + "\n".join(missing)
