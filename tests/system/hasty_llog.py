"""`python -m tests.system.hasty_llog compactor`: the command with chores every few seconds instead of minutes, where
no setting controls their interval."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from llog.compactor import chores, service
from llog.compactor.plan import Rules
from llog.settings import Settings

CHORE_MS: Final = 3_000


def hurry() -> None:
    rules = Rules.of

    def of(settings: Settings) -> Rules:
        return replace(rules(settings), retention_interval_ms=CHORE_MS, merge_inputs_min=4)

    vars(service)["Rules"].of = staticmethod(of)
    vars(service)["COMPACTOR_KEYS_INTERVAL_MS"] = CHORE_MS
    vars(chores)["plan_vacuum_interval_ms"] = lambda _grace_ms, _wal_grace_ms: CHORE_MS


if __name__ == "__main__":
    from llog.cli.app import app

    hurry()
    app()
