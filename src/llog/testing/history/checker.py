"""The checker: takes a history and a store, and raises `Broken` with the violations.

    checker = Checker(keys)
    checker.check(history, dump, Phase.LEFT)        # raises Broken, naming invariant, log, offset and key
    …one settle and one resumed run per log…
    checker.check(history, dump, Phase.RECOVERED)

It judges I1 to I13 independently: of `llog.log` it uses keys, ids and the type of a producer's claim, and formats
to read bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from llog.log.keys import Keys
from llog.testing.history.contents import EntryContents, Tokens
from llog.testing.history.events import Noted
from llog.testing.history.image import Dump, image_of
from llog.testing.history.judge_changes import ChangeJudge, JournalChange
from llog.testing.history.judge_clients import LogCase, judge_clients
from llog.testing.history.judge_producers import judge_producers
from llog.testing.history.judge_store import judge_incarnations, judge_leftovers, judge_log
from llog.testing.history.operations import Operations, operations_of
from llog.testing.history.verdict import Broken, Phase, Violation


class Checker:
    def __init__(self, keys: Keys, *, grace_ms: int = 0) -> None:
        """`grace_ms`: how old an unnamed object may be in a store that was cleaned."""
        self._keys, self._grace_ms = keys, grace_ms
        self._contents = EntryContents()
        self._changes = ChangeJudge(keys)

    def check(
        self, history: Iterable[Noted] | Operations, dump: Dump, phase: Phase, changes: Iterable[JournalChange] = ()
    ) -> None:
        """Raises `Broken`. `changes` are those of the metadata since the last check, where recorded."""
        found = self.violations(history, dump, phase, changes)
        if found:
            raise Broken(phase, found)

    def violations(
        self, history: Iterable[Noted] | Operations, dump: Dump, phase: Phase, changes: Iterable[JournalChange] = ()
    ) -> list[Violation]:
        operations = history if isinstance(history, Operations) else operations_of(history)
        image = image_of(dump.records, self._keys)
        found = [*self._changes.feed(changes), *judge_incarnations(image)]
        for log in sorted(operations.logs() | image.logs.keys()):
            one = image.logs.get(log)
            stored: Tokens | None = None
            if one is not None and one.living:
                broken, stored = judge_log(one, dump, self._contents, phase)
                found += broken
            case = LogCase(log, operations.of(log), one, stored)
            found += judge_clients(case)
            found += judge_producers(case)
        if phase >= Phase.CLEANED:
            found += judge_leftovers(image, dump, self._keys, older_than_ms=dump.now_ms - self._grace_ms)
        return found
