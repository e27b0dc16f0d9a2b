"""What the service does next: pure functions. `plan_work` decides what one log needs now, `plan_next_ms` when it may
need something although it does not change, `plan_pass` the order of visits.

A run in flight is finished before anything else. Entries younger than the minimum age never count, so a writer that
waits for an answer still finds its append (R4). An append that is ahead of this clock never makes work due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from llog.limits import COMPACTOR_BACKUP_INTERVAL_MS_MAX, LOG_COMPACT_ENTRIES_MAX, LOG_MERGE_BYTES_DEFAULT
from llog.log.ids import created_at_ms_of
from llog.log.keys import Log
from llog.settings import Settings

# Adjoining segments of one level that are worth a merge: each byte is then rewritten once per eightfold growth.
COMPACTOR_MERGE_INPUTS_MIN: Final = 8
# After this many missed merges, a log that always has fresh bytes is merged before it is compacted again.
COMPACTOR_MERGES_OVERDUE: Final = 4
# A log that changed is looked at for retention this often. One that did not change is not looked at again.
COMPACTOR_RETENTION_INTERVAL_MS: Final = 300_000
# Without a watch an idle log is read ever more seldom: after this share of the time since it changed, up to this long.
COMPACTOR_POLL_IDLE_SHARE: Final = 8
COMPACTOR_POLL_MS_MAX: Final = 300_000
# Everything is read once more although no change was reported, in case a report was lost: at most this often, and on
# average at most this many keys in an hour, so that the cost of idle logs does not grow with their number.
COMPACTOR_SWEEP_INTERVAL_MS_MIN: Final = 3_600_000
COMPACTOR_SWEEP_KEYS_PER_HOUR: Final = 1_000
COMPACTOR_SWEEP_KEYS_PER_LOG: Final = 3
# As often as objects outlive the grace, within these bounds: each vacuum lists the bucket and reads every index.
COMPACTOR_VACUUM_INTERVAL_MS_MIN: Final = 10_000
COMPACTOR_VACUUM_INTERVAL_MS_MAX: Final = 900_000
# While nothing changes and the last vacuum left nothing for later, this seldom: objects that were uploaded and never
# committed change no metadata. On average at most this many keys in an hour; each vacuum reads about so many per log.
COMPACTOR_VACUUM_IDLE_INTERVAL_MS_MIN: Final = 86_400_000
COMPACTOR_VACUUM_IDLE_KEYS_PER_HOUR: Final = 500
COMPACTOR_VACUUM_KEYS_PER_LOG: Final = 4
# Producers wait at LLOG_WAL_MAX_BYTES; the service hurries from this share of it on.
COMPACTOR_WAL_PRESSURE: Final = 0.75
COMPACTOR_BACKUPS_KEPT: Final = 8
# A scheduled backup without a manifest that is older than this was abandoned by a crashed process.
COMPACTOR_BACKUP_TORN_MS: Final = 3_600_000

_HOUR_MS: Final = 3_600_000

T = TypeVar("T")
RandomBits = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Rules:
    """When work is due."""

    trigger_bytes: int
    trigger_age_ms: int
    min_age_ms: int
    max_offsets_per_run: int
    max_entries_per_run: int = LOG_COMPACT_ENTRIES_MAX
    merge_inputs_min: int = COMPACTOR_MERGE_INPUTS_MIN
    merge_max_bytes: int = LOG_MERGE_BYTES_DEFAULT
    retention_interval_ms: int = COMPACTOR_RETENTION_INTERVAL_MS

    @classmethod
    def of(cls, settings: Settings) -> Rules:
        return cls(
            trigger_bytes=settings.compactor_trigger_bytes,
            trigger_age_ms=settings.compactor_trigger_age_ms,
            min_age_ms=settings.compactor_min_age_ms,
            max_offsets_per_run=settings.compactor_max_offsets_per_run,
            retention_interval_ms=settings.retention_interval_ms,
        )


class Kind(Enum):
    RESUME = "resume"
    """Finish the run that is in flight."""
    COMPACT = "compact"
    MERGE = "merge"
    RETAIN = "retain"


class LogBacklog(NamedTuple):
    """The state of one log. `ready_…` counts the fresh entries that a run could take now: contiguous from the cursor,
    and old enough."""

    log: Log
    incarnation: int
    cursor: int
    counter: int
    lag_offsets: int
    fenced: bool = False
    run_state: str = ""
    """State of the run in flight; empty: there is no run."""
    ready_bytes: int = 0
    ready_entries: int = 0
    ready_offsets: int = 0
    oldest_created_at_ms: int | None = None
    """Of the ready entries; None without any."""
    pending: bool = False
    pending_is_old: bool = False
    """An append was reserved long ago and never cleared: its writer may be gone."""
    segments_since_merge: int = 0
    """Lower bound of the number of new segments since a merge attempt had nothing to do."""
    retain_at_ms: int | None = None
    """When retention has something to remove; None: not as long as the log does not change."""
    wakes_at_ms: int | None = None
    """When time alone changes this view; None: never."""
    changed_at_ms: int = 0
    """When an inspection last saw a change of the log."""


def plan_work(
    view: LogBacklog, rules: Rules, now_ms: int, *, may_merge: bool = True, hurry: bool = False
) -> Kind | None:
    """The most important work of this log; None: there is no work. `hurry` compacts all ready entries at once, because
    the WAL store is nearly full."""
    if view.run_state:
        return Kind.RESUME
    # Retention is planned at most once per interval, so it cannot starve the other kinds, which could starve it.
    if view.retain_at_ms is not None and view.retain_at_ms <= now_ms:
        return Kind.RETAIN
    merges_due = plan_merges_due(view, rules) if may_merge else 0
    if merges_due >= COMPACTOR_MERGES_OVERDUE and not hurry:
        return Kind.MERGE
    if _is_due(view, rules, now_ms, hurry=hurry):
        return Kind.COMPACT
    return Kind.MERGE if merges_due else None


def plan_merges_due(view: LogBacklog, rules: Rules) -> int:
    return view.segments_since_merge // rules.merge_inputs_min


def plan_next_ms(view: LogBacklog, rules: Rules) -> int | None:
    """When a log without work may need some although it does not change; None: it needs none."""
    ready_ms = None if view.oldest_created_at_ms is None else view.oldest_created_at_ms + rules.trigger_age_ms
    return min((at_ms for at_ms in (ready_ms, view.retain_at_ms, view.wakes_at_ms) if at_ms is not None), default=None)


def plan_poll_ms(quiet_ms: int, idle_ms: int, trigger_age_ms: int) -> int:
    """Pause before a log is read again, without a watch, that did not change for so long. Not longer than the trigger
    age: an append is then seen before it is due."""
    longest_ms = max(idle_ms, min(COMPACTOR_POLL_MS_MAX, trigger_age_ms))
    return min(max(quiet_ms // COMPACTOR_POLL_IDLE_SHARE, idle_ms), longest_ms)


def plan_sweep_interval_ms(topics: int, logs: int) -> int:
    keys = topics + logs * COMPACTOR_SWEEP_KEYS_PER_LOG
    return max(COMPACTOR_SWEEP_INTERVAL_MS_MIN, keys * _HOUR_MS // COMPACTOR_SWEEP_KEYS_PER_HOUR)


def _is_due(view: LogBacklog, rules: Rules, now_ms: int, *, hurry: bool) -> bool:
    if view.oldest_created_at_ms is None:
        return False
    return (
        hurry
        or view.ready_bytes >= rules.trigger_bytes
        or now_ms - view.oldest_created_at_ms >= rules.trigger_age_ms
        # As full as a run can be, whatever its bytes.
        or view.ready_offsets >= rules.max_offsets_per_run
        or view.ready_entries >= rules.max_entries_per_run
    )


def plan_pass(logs: Iterable[Log], random_bits: RandomBits) -> list[Log]:
    """A random order in which topics take turns: a topic of one partition waits for one turn of each other topic, not
    for all partitions of a large one."""
    by_topic: dict[str, list[Log]] = {}
    for log in logs:
        by_topic.setdefault(log.topic, []).append(log)
    hands = [shuffled(hand, random_bits) for hand in by_topic.values()]
    order: list[Log] = []
    while hands:
        hands = shuffled(hands, random_bits)
        order += [hand.pop() for hand in hands]
        hands = [hand for hand in hands if hand]
    return order


def shuffled(items: list[T], random_bits: RandomBits) -> list[T]:
    keyed = [(random_bits(32), number) for number in range(len(items))]
    return [items[number] for _, number in sorted(keyed)]


def plan_pause_ms(sleep_ms: int, jitter_ms: int, random_bits: RandomBits) -> int:
    """A pause with its random addition, so that services do not march in step."""
    return sleep_ms + jitter_ms * random_bits(16) // 65_536


# -- chores ----------------------------------------------------------------------------------------------------------


def plan_vacuum_interval_ms(grace_ms: int, wal_grace_ms: int | None) -> int:
    """As long as the shorter grace, within bounds. `wal_grace_ms` None: there is no WAL store of its own."""
    shortest = grace_ms if wal_grace_ms is None else min(grace_ms, wal_grace_ms)
    return min(max(shortest, COMPACTOR_VACUUM_INTERVAL_MS_MIN), COMPACTOR_VACUUM_INTERVAL_MS_MAX)


def plan_idle_vacuum_interval_ms(logs: int) -> int:
    keys = logs * COMPACTOR_VACUUM_KEYS_PER_LOG
    return max(COMPACTOR_VACUUM_IDLE_INTERVAL_MS_MIN, keys * _HOUR_MS // COMPACTOR_VACUUM_IDLE_KEYS_PER_HOUR)


def plan_hurried_vacuum_interval_ms(wal_grace_ms: int) -> int:
    """While the WAL store is nearly full: as soon as another tenth of its content may have become deletable."""
    return max(wal_grace_ms // 10, COMPACTOR_VACUUM_INTERVAL_MS_MIN)


def is_pressed(used_bytes: int, max_bytes: int) -> bool:
    return used_bytes > COMPACTOR_WAL_PRESSURE * max_bytes


class SeenBackup(NamedTuple):
    """A backup in the object store, judged by the names of its objects."""

    backup_id: str
    whole: bool
    """It has a manifest."""
    scheduled: bool
    """Made by the service, which never removes backups made by hand."""
    names: tuple[str, ...] = ()

    def is_ahead_of(self, now_ms: int) -> bool:
        """Made by a wrong clock: its age is unknown."""
        return created_at_ms_of(self.backup_id) > now_ms + COMPACTOR_BACKUP_INTERVAL_MS_MAX


def plan_backup_in_ms(seen: Iterable[SeenBackup], now_ms: int, interval_ms: int) -> int:
    """Time until the newest whole backup, scheduled or not, is older than the interval; 0: a backup is due."""
    made_ms = (created_at_ms_of(one.backup_id) for one in seen if one.whole and not one.is_ahead_of(now_ms))
    newest = max(made_ms, default=None)
    return 0 if newest is None else max(0, newest + interval_ms - now_ms)


def plan_backups_to_remove(
    seen: Iterable[SeenBackup], now_ms: int, *, kept: int = COMPACTOR_BACKUPS_KEPT
) -> list[SeenBackup]:
    """The oldest scheduled backups beyond the number to keep, and abandoned ones."""
    scheduled = sorted(
        (one for one in seen if one.scheduled), key=lambda one: (not one.is_ahead_of(now_ms), one.backup_id)
    )
    whole = [one for one in scheduled if one.whole]
    torn = [one for one in scheduled if not one.whole]
    given_up = [one for one in torn if now_ms - created_at_ms_of(one.backup_id) >= COMPACTOR_BACKUP_TORN_MS]
    return [*whole[: max(0, len(whole) - kept)], *given_up]
