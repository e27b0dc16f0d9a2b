"""Who a Spark driver acts for in audit lines: the user of its process, and the query where it is known."""

from __future__ import annotations

from llog.audit_log import Principal, act_as, os_user
from llog.telemetry.process_logs import ensure_audit_lines


def act_as_query(query: str | None) -> None:
    """The running task acts for this query (None: its id is not known here)."""
    ensure_audit_lines()
    act_as(Principal(f"spark:{os_user()}" + (f"/{query}" if query else "")))
