"""`python -m llog.testing.sim`: what it runs, what a red run prints."""

from __future__ import annotations

import re
import shlex

import pytest

from llog.errors import InvalidArgument
from llog.testing.sim import find, run_script, scenario
from llog.testing.sim.__main__ import PROGRAM, main
from tests.simulation import toys

LOAD = ["--load", toys.__name__]


@pytest.mark.parametrize("name", ["toy-script-lost-update", "toy-script-careful", "toy-script-late"])
def test_named_scenarios_are_green(name: str) -> None:
    run = run_script(find(name))
    assert run.ok, run.printed


def test_green_scenarios_are_told_in_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LOAD, "--scenario", "toy-c*", "--schedules", "20", "--seed", "1"]) == 0
    assert main([*LOAD, "--scenario", "toy-script-*"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"sim: toy-counter: 20 schedules from seed 1, \d+ store calls, [\d.]+ s: ok\n1 passed", told)
    assert "sim: toy-script-careful: script: ok\n" in told
    assert told.endswith("3 passed, 0 failed\n")


@pytest.mark.parametrize("how", [["--schedules", "200", "--seed", "0"], ["--exhaustive"]])
def test_a_red_run_prints_its_trace_and_a_command_that_plays_it_again(
    capsys: pytest.CaptureFixture[str], how: list[str]
) -> None:
    assert main([*LOAD, "--scenario", "toy-rare-lost-update", *how]) == 1
    told = capsys.readouterr().out
    assert "AssertionError: 2 increments, perhaps 0 more; the counter: 1" in told
    assert told.endswith("0 passed, 1 failed\n")
    command = re.search(rf"replay: {re.escape(PROGRAM)} (.*)\n", told)
    assert command is not None
    trace = told[command.end() :]
    assert "b gets toy/counter → nothing\n" in trace
    assert "puts toy/counter: 1 → version 2\n" in trace
    assert main(shlex.split(command[1])) == 1
    assert capsys.readouterr().out.endswith(trace)


def test_a_search_tells_how_much_it_saw(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LOAD, "--scenario", "toy-counter", "--exhaustive", "--states-max", "100"]) == 0
    assert re.search(r"sim: toy-counter: search: \d+ runs, \d+ states, .* cut by 100 states", capsys.readouterr().out)


def test_an_unknown_scenario_is_an_error_that_names_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LOAD, "--scenario", "nonesuch"]) == 2
    assert "toy-counter" in capsys.readouterr().err
    assert main([*LOAD, "--list", "--scenario", "toy-l*"]) == 0
    assert capsys.readouterr().out == "toy-lost-update\n"
    with pytest.raises(InvalidArgument, match="toy-counter"):
        find("nonesuch")


def test_two_scenarios_cannot_have_one_name() -> None:
    with pytest.raises(InvalidArgument, match="already"):
        scenario("toy-counter")(toys.counter)
