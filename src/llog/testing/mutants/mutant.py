"""One mutant, and how its edits become source text. Imports nothing of the code that mutants change."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple


class MutantOutOfDate(Exception):
    """The code has changed: the text to be replaced is not there exactly once."""


class Edit(NamedTuple):
    module: str
    old: str
    """Occurs exactly once in the module."""
    new: str


PUBLISH = "llog.log.rewrite.publish"
PUBLISH_AT_ANY_VERSION = Edit(PUBLISH, "put(key, published, expected=record.version)", "put(key, published)")
MOVE_AT_ANY_VERSION = Edit(
    PUBLISH,
    "put(key, encode_value(moved, key.path), expected=record.version)",
    "put(key, encode_value(moved, key.path))",
)


class Mutant(NamedTuple):
    row: str
    """Of the hazards, and the scenario that must be red."""
    why: str
    """The clause that is switched off, in words."""
    edits: tuple[Edit, ...]
    variant: str = ""
    """Distinguishes the mutants of one hazard."""

    @property
    def name(self) -> str:
        return f"{self.row}/{self.variant}" if self.variant else self.row

    def modules(self) -> list[str]:
        return list(dict.fromkeys(edit.module for edit in self.edits))

    def mutated(self, module: str, source: str) -> str:
        for edit in self.edits:
            if edit.module == module:
                source = _replaced(self.name, edit, source)
        return source


def _replaced(name: str, edit: Edit, source: str) -> str:
    count = source.count(edit.old)
    if count != 1:
        raise MutantOutOfDate(f"mutant {name} is out of date: {edit.module} holds {edit.old!r} {count} times, not once")
    if edit.new == edit.old:
        raise MutantOutOfDate(f"mutant {name} changes nothing in {edit.module}")
    return source.replace(edit.old, edit.new)


def source_of(module: str) -> str:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise MutantOutOfDate(f"there is no module {module} any more")
    return Path(spec.origin).read_text("utf-8")


def check_up_to_date(mutant: Mutant) -> None:
    """Raises `MutantOutOfDate` (or `SyntaxError`) when the mutant no longer fits the code."""
    for module in mutant.modules():
        compile(mutant.mutated(module, source_of(module)), module, "exec")
