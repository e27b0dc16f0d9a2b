"""The trace of a run: what happened, in order.

Entries are kept as values and become text only for a run that failed: most runs pass, and formatting costs time.
"""

from __future__ import annotations

from typing import Any, Final

from llog.testing.sim.calls import Call
from llog.testing.sim.faults import Fate, SimFault
from llog.testing.sim.loop import SimLoop

# Lines of a red run's trace that are printed: the first few and, of the rest, the last.
SIM_TRACE_HEAD_LINES: Final = 20
SIM_TRACE_LINES_MAX: Final = 400

_Entry = tuple[float, Call | None, Any, Any]
"""Time in seconds, and the call with its fate and answer; or no call and a note."""

NO_ANSWER: Final = object()

_FAULT_WORDS: Final[dict[SimFault, str]] = {
    SimFault.CRASH_BEFORE: "it crashes before that",
    SimFault.CRASH_AFTER: "it crashes before it hears of it",
    SimFault.CRASH_IN_FLIGHT: "it crashes, the request is still on its way",
    SimFault.LOST_REPLY: "the reply is lost",
    SimFault.LOST_REQUEST: "the request is lost",
    SimFault.LATE_WRITE: "no answer comes, the request is still on its way",
    SimFault.UNAVAILABLE: "the store is unavailable",
    SimFault.STALL_BEFORE: "it sleeps for {span} before that",
    SimFault.STALL_AFTER: "it sleeps for {span} before it hears of it",
    SimFault.DELAY_REQUEST: "the request takes {span}",
    SimFault.DELAY_REPLY: "the reply takes {span}",
    SimFault.STALE_READ: "a stale answer",
    SimFault.LOST_NOTICE: "changes were missed",
}


class Trace:
    def __init__(self, loop: SimLoop) -> None:
        self._entries: list[_Entry] = []
        self._loop = loop

    def __len__(self) -> int:
        return len(self._entries)

    def call(self, call: Call, fate: Fate | None, answer: Any) -> None:
        self._entries.append((self._loop.now_s, call, fate, answer))

    def note(self, text: str) -> None:
        self._entries.append((self._loop.now_s, None, None, text))

    def lines(self) -> list[str]:
        return [
            f"{number:5d} {now_s:12.3f} s  {_words(call, fate, answer)}"
            for number, (now_s, call, fate, answer) in enumerate(self._entries, 1)
        ]

    def printed(self) -> str:
        """The lines; of a very long run the beginning and the end."""
        lines = self.lines()
        left_out = len(lines) - SIM_TRACE_LINES_MAX
        if left_out > 0:
            lines[SIM_TRACE_HEAD_LINES : SIM_TRACE_HEAD_LINES + left_out] = [f"      … {left_out} lines left out …"]
        return "\n".join(lines)


def _words(call: Call | None, fate: Fate | None, answer: Any) -> str:
    if call is None:
        return str(answer)
    said = f"{call.actor.name} {call.words()}"
    if answer is not NO_ANSWER:
        said += f" → {call.answer_words(answer)}"
    return said if fate is None else f"{said}; {fate_words(fate)}"


def fate_words(fate: Fate) -> str:
    return _FAULT_WORDS[fate.fault].format(span=span_words(fate.ms))


def span_words(ms: float) -> str:
    for unit, size in (("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if ms >= size:
            return f"{ms / size:g} {unit}"
    return f"{ms:g} ms"
