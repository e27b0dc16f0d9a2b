"""The progress line."""

from __future__ import annotations

import io
import sys

import pytest

from llog.cli.output import progress_line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_progress_and_stdout_stays_clean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress_line("compacting [orders]:0", total=10) as advance:
        advance(4, "1 … 4")
    assert "compacting [orders]:0" in terminal.getvalue()
    assert "4/10" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_without_a_total_it_shows_the_detail(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress_line("checking") as advance:
        advance(1, "clocks")
    assert "clocks" in terminal.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_nothing_is_drawn_without_a_terminal_or_unwanted(
    monkeypatch: pytest.MonkeyPatch, stream: type[io.StringIO]
) -> None:
    drawn = stream()
    monkeypatch.setattr(sys, "stderr", drawn)
    with progress_line("x", total=1, wanted=stream is io.StringIO) as advance:
        advance(1, "y")
    assert drawn.getvalue() == ""
