"""What other processes change, as the watch of the metadata store reports it, so that idle logs are not read.

Only three kinds of records make a log due: its control record, its compaction record, and the record of its topic. All
other changes are counted, for chores that have nothing to do while nothing changes. A change only says where to look:
the inspection that follows reads the log.

While no watch is established (the store has none, or it was lost) every mark differs from the one before, and the
service polls. A watch that begins, or that reports a gap, makes everything due once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from llog.log.context import LogContext
from llog.log.keys import Log
from llog.stores.metadata.port import Change, ChangeKind

# Paths of control and compaction records with a known log.
COMPACTOR_KNOWN_PATHS_MAX: Final = 262_144
# Changes handled before other tasks of the event loop get their turn: about a millisecond.
COMPACTOR_CHANGES_PER_TURN: Final = 256

GUARDS: Final = ("/meta/control", "/meta/compaction-cursor")
"""How the paths of records end whose change makes a log due."""
CLAIM: Final = "/meta/compactor-claim"


class Changes:
    def __init__(
        self,
        context: LogContext,
        *,
        on_log: Callable[[Log], None],
        on_topic: Callable[[str], None],
        on_all: Callable[[], None],
    ) -> None:
        self._context, self._on_log, self._on_topic, self._on_all = context, on_log, on_topic, on_all
        self.live = False
        """A watch is established: every change is reported."""
        self._logs: dict[str, Log] = {}
        self._log_changes = self._all_changes = 0
        root = context.keys.root
        self._topics, self._cluster = f"{root}/@topics/", f"{root}/@cluster/"
        self._ephemeral = (f"{root}/@cluster/brokers/", f"{root}/@cluster/nodes/", f"{root}/@cluster/chores/")
        self._unrelated = (f"{root}/@cluster/groups/", f"{root}/@cluster/producer-ids")

    @property
    def possible(self) -> bool:
        return self._context.metadata.capabilities.watch

    def log_mark(self) -> int:
        """Equal marks: between them no topic, no log and no plan of the sink changed, so no object was written for
        one."""
        if not self.live:
            self._log_changes += 1
        return self._log_changes

    def full_mark(self) -> int:
        """Equal marks: between them nothing changed that outlives its process."""
        if not self.live:
            self._all_changes += 1
        return self._all_changes

    async def follow(self) -> None:
        """Report changes until the watch ends, with an error of the store."""
        try:
            async with self._context.metadata.watch(self._context.keys.root) as changes:
                self._begin()
                count = 0
                async for change in changes:
                    self._take(change)
                    count += 1
                    if count % COMPACTOR_CHANGES_PER_TURN == 0:
                        await asyncio.sleep(0)
        finally:
            if self.live:
                self.live = False
                self._on_all()

    def _begin(self) -> None:
        # Changes before this moment were not reported, and neither mark of them may be trusted.
        self.log_mark(), self.full_mark()
        self.live = True
        self._on_all()

    def _take(self, change: Change) -> None:
        path = change.path
        if change.kind is ChangeKind.RESYNC:
            self._log_changes += 1
            self._all_changes += 1
            self._on_all()
        elif path.endswith(GUARDS):
            self._count()
            log = self._logs.get(path)
            if log is None:
                log = self._parsed(path)
            if log is not None:
                self._on_log(log)
        elif path.startswith(self._topics):
            self._count()
            parsed = self._context.keys.parse(path)
            if parsed is not None:
                self._on_topic(parsed.topic)
        elif path.startswith(self._cluster):
            self._all_changes += not path.startswith(self._ephemeral)
            self._log_changes += not path.startswith((*self._ephemeral, *self._unrelated))
        elif not path.endswith(CLAIM):
            self._count()

    def _count(self) -> None:
        self._log_changes += 1
        self._all_changes += 1

    def _parsed(self, path: str) -> Log | None:
        parsed = self._context.keys.parse(path)
        log = None if parsed is None else parsed.log
        if log is not None:
            if len(self._logs) >= COMPACTOR_KNOWN_PATHS_MAX:
                self._logs.clear()
            self._logs[path] = log
        return log
