"""docs/reference/cli.md has every command, option and exit code, and its examples run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from llog.cli.app import app
from llog.cli.exits import MEANINGS
from tests.unit.cli.feeding import FedCluster

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text()
DETAILED = (
    "topic", "produce", "consume", "tail", "offsets", "group", "fence", "unfence", "compact", "vacuum",
    "delete-records",
)  # fmt: skip


def commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield words, command
        return
    for name, child in children.items():
        yield from commands(child, (*words, name))


ALL = dict(commands(typer.main.get_command(app), ()))


@pytest.mark.parametrize("words", ALL)
def test_every_command_is_on_the_page(words: tuple[str, ...]) -> None:
    assert re.search(rf"`llog {' '.join(words)}[ `]", PAGE)


@pytest.mark.parametrize("words", [words for words in ALL if words[0] in DETAILED])
def test_every_option_is_on_the_page(words: tuple[str, ...]) -> None:
    options = {name for one in ALL[words].params for name in one.opts if name.startswith("--")}
    missing = {name for name in options if not re.search(rf"{name}\b", PAGE)}
    assert missing <= {"--help"}


@pytest.mark.parametrize("words", ALL)
def test_every_command_has_json(words: tuple[str, ...]) -> None:
    assert "--json" in {name for one in ALL[words].params for name in one.opts}


@pytest.mark.parametrize(
    "words", [words for words in ALL if {"delete", "delete-records", "vacuum", "restore"} & {*words}]
)
def test_commands_that_delete_have_a_dry_run_and_ask_first(words: tuple[str, ...]) -> None:
    assert {"--dry-run", "--yes"} <= {name for one in ALL[words].params for name in one.opts}


def test_every_exit_code_is_on_the_page() -> None:
    for code, meaning in MEANINGS.items():
        assert f"| {code} | {meaning} |" in PAGE


def test_the_examples_run_in_their_order(tmp_path: Path) -> None:
    cluster = FedCluster(tmp_path)
    lines = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    assert len(lines) >= 9
    for line in lines:
        fed, piped, command = line.rpartition(" | ")
        stdin = shlex.split(fed)[1].replace(r"\n", "\n") if piped else ""
        done = cluster.run(*shlex.split(command)[1:], stdin=stdin)
        assert done.exit_code == 0, f"{line}\n{done.output}"
