"""h28, h29: a clock that is far ahead in one process does not harm the others."""

from __future__ import annotations

from llog.log.append.append import Appended
from llog.testing.hazards.toolkit import (
    alone,
    append,
    claim,
    compact,
    expect,
    expect_answers_hold,
    expect_landed,
)
from llog.testing.sim import HOUR_MS, Script, script

YEAR_MS = 365 * 24 * HOUR_MS


@script("h28", atomic_groups=False)
def a_log_is_created_by_a_clock_that_is_a_year_ahead(script: Script) -> None:
    creator = script.actor("creator", append(b"one"))
    creator.set_clock(YEAR_MS)
    expect_landed(creator.finish(), 1)
    outcome = alone(script, append(b"two"), "writer")
    expect(isinstance(outcome, Appended), f"a writer with the right clock is refused: {outcome}")
    expect_answers_hold(script)


@script("h29", atomic_groups=False)
def a_producer_is_forgotten_because_of_the_clock_of_another(script: Script) -> None:
    expect_landed(alone(script, append(b"sale", by=claim(0)), "producer"), 1)
    other = script.actor("other", append(b"other", by=claim(0, producer_id=8)))
    other.set_clock(YEAR_MS)
    expect_landed(other.finish(), 2)
    alone(script, compact(), "compactor")  # the snapshot moves
    expect_landed(alone(script, append(b"sale", by=claim(0)), "retry"), 1)
    expect_answers_hold(script)
