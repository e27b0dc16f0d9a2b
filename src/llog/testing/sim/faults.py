"""The faults of store calls, and how many of them one run may have.

The list of faults is the claim that a simulation makes, independent of the chooser. No fault breaks a promise of the
ports: a caller that hears "uncertain" may find the write done, not done, or done later; "unavailable" means that
nothing happened; strict reads are never stale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from llog.errors import InvalidArgument

Moment = tuple[int, ...]
"""A point in the history of the metadata store: the number of changes of each shard."""


class SimFault(Enum):
    CRASH_BEFORE = "crash before the effect"
    CRASH_AFTER = "crash between the effect and the reply"
    CRASH_IN_FLIGHT = "crash with the request on its way"
    """It happens at any later point, perhaps long after another process cleaned up, or never."""
    LOST_REPLY = "lost reply"
    """It happened; the caller hears "uncertain". Of a read: no answer in time."""
    LOST_REQUEST = "lost request"
    """It never happens; the caller hears "uncertain"."""
    LATE_WRITE = "late write"
    """The caller hears "uncertain"; it happens at any later point, judged by its condition then, or never."""
    UNAVAILABLE = "unavailable"
    STALL_BEFORE = "stall before the effect"
    """The whole process sleeps before it sends the request; its sessions run out meanwhile."""
    STALL_AFTER = "stall between the effect and the reply"
    DELAY_REQUEST = "slow request"
    """Only this call is slow; timers of the process go on."""
    DELAY_REPLY = "slow reply"
    STALE_READ = "stale read"
    LOST_NOTICE = "lost notice"
    """A watcher missed changes: it gets a RESYNC."""
    SESSION_EXPIRY = "session expiry"
    """The store forgets the sessions of a running process."""


_EITHER: Final = frozenset(
    {SimFault.CRASH_BEFORE, SimFault.STALL_BEFORE, SimFault.STALL_AFTER, SimFault.DELAY_REQUEST, SimFault.DELAY_REPLY}
)
# A crash after a read is a crash before whatever comes next.
READ_FAULTS: Final = _EITHER | {SimFault.UNAVAILABLE, SimFault.LOST_REPLY, SimFault.STALE_READ}
STRICT_READ_FAULTS: Final = READ_FAULTS - {SimFault.STALE_READ}
WRITE_FAULTS: Final = _EITHER | {
    SimFault.CRASH_IN_FLIGHT,
    SimFault.CRASH_AFTER,
    SimFault.LOST_REPLY,
    SimFault.LOST_REQUEST,
    SimFault.LATE_WRITE,
    SimFault.UNAVAILABLE,
}
QUIET_FAULTS: Final = _EITHER | {SimFault.CRASH_AFTER}
"""Of calls that may not fail: closing a session."""
NOTICE_FAULTS: Final = frozenset(
    {SimFault.CRASH_BEFORE, SimFault.STALL_BEFORE, SimFault.DELAY_REPLY, SimFault.LOST_NOTICE}
)

BEFORE_EFFECT: Final = frozenset(
    {
        SimFault.CRASH_BEFORE,
        SimFault.CRASH_IN_FLIGHT,
        SimFault.LOST_REQUEST,
        SimFault.LATE_WRITE,
        SimFault.UNAVAILABLE,
        SimFault.STALL_BEFORE,
        SimFault.DELAY_REQUEST,
    }
)
"""The store is as it was: it makes no difference to others when they happen."""
DEPEND_ON_THE_PAST: Final = frozenset({SimFault.STALE_READ, SimFault.LOST_NOTICE})
"""It matters when they happen, to whatever others do."""

HOUR_MS: Final = 3_600_000


class Fate(NamedTuple):
    """A fault with its measure."""

    fault: SimFault
    ms: int = 0
    moment: Moment = ()
    """Of a stale read: the state it answers from."""


@dataclass(frozen=True, slots=True)
class SimFaults:
    """What may happen in one run."""

    kinds: frozenset[SimFault] = frozenset()
    budget: int = 0
    """How many faults in all."""
    rate: float = 0.02
    """Of the store calls of a random run, while the budget lasts."""
    stall_ms: Sequence[int] = (2 * HOUR_MS,)
    delay_ms: Sequence[int] = (30_000,)
    stale_states_max: int = 3
    """How many different old answers one read may have, the newest first."""
    skew_ms_max: int = 0
    """Each process of a random run has a clock that is wrong by up to this much."""

    def __post_init__(self) -> None:
        if self.budget < 0 or not 0 <= self.rate <= 1 or self.skew_ms_max < 0 or self.stale_states_max < 1:
            raise InvalidArgument("faults", f"{self}: no negative numbers, a rate from 0 to 1, at least one state")
        if min((*self.stall_ms, *self.delay_ms), default=1) < 1:
            raise InvalidArgument("faults", "stalls and delays last at least a millisecond")


NO_FAULTS: Final = SimFaults()
CRASHES: Final = frozenset({SimFault.CRASH_BEFORE, SimFault.CRASH_AFTER})
STALLS: Final = frozenset({SimFault.STALL_BEFORE, SimFault.STALL_AFTER})
ONE_CRASH: Final = SimFaults(CRASHES, budget=1)
ONE_STALL: Final = SimFaults(STALLS, budget=1)
ONE_CRASH_OR_STALL: Final = SimFaults(CRASHES | STALLS, budget=1)
ONE_OF_ANY: Final = SimFaults(frozenset(SimFault), budget=1)
MANY: Final = SimFaults(frozenset(SimFault), budget=8, stall_ms=(50, 15_000, 2 * HOUR_MS), skew_ms_max=2_000)
"""For random runs."""


def measured(fault: SimFault, faults: SimFaults) -> list[Fate]:
    """One fault in all the measures a run may give it. How stale a read can be depends on the read."""
    if fault in STALLS:
        return [Fate(fault, ms) for ms in faults.stall_ms]
    if fault in (SimFault.DELAY_REQUEST, SimFault.DELAY_REPLY):
        return [Fate(fault, ms) for ms in faults.delay_ms]
    return [] if fault is SimFault.STALE_READ else [Fate(fault)]
