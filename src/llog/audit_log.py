"""Audit lines: who changed or deleted what, and whether it happened.

Every deletion and every change of a topic, a fence or a group's positions is one line of the logger `llog.audit`,
whatever `LLOG_LOG_LEVEL` says. The log reports each committed change (`LogContext.on_change`), so no caller can forget
one; front ends and commands add the changes that were refused.

    {"event": "audit", "action": "topic.grow", "object": "orders", "principal": "write-token", "client": "10.0.0.7",
     "outcome": "done", "before": {"partitions": 3}, "after": {"partitions": 6}}

The principal belongs to the running task (a context variable), so that one process can act for many: an HTTP request
sets it, and the tasks that serve the request inherit it. A task without one acts for the user of the operating system.

A line holds names, numbers and reasons, never a token or bytes of a record. Names come from clients: they are cut to
`AUDIT_TEXT_CHARS_MAX`, and control characters are escaped, so that no name can forge a second line.
"""

from __future__ import annotations

import logging
import os
import pwd
import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final, Literal, NamedTuple

AUDIT_TEXT_CHARS_MAX: Final = 500
"""Of one text in a line; topic names have at most 249."""
AUDIT_ITEMS_MAX: Final = 20
"""Of one list in a line: positions of a commit, configs of a topic."""

AUDIT_LOGGER: Final = "llog.audit"
ANONYMOUS: Final = "anonymous"
Outcome = Literal["done", "refused", "failed", "uncertain"]
Fields = Mapping[str, object]

_log: Final = logging.getLogger(AUDIT_LOGGER)
# Its own level: audit lines are written at every level of the other loggers.
_log.setLevel(logging.INFO)
# Control characters, also those that move a terminal's cursor or end a line in some viewers.
_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Principal(NamedTuple):
    """Who acts."""

    name: str
    client: str = ""
    """The address of a client of a front end."""
    request_id: str = ""


_PRINCIPAL: Final[ContextVar[Principal | None]] = ContextVar("llog_principal", default=None)


def act_as(principal: Principal) -> None:
    """The running task, and the tasks that it creates from now on, act for `principal`."""
    _PRINCIPAL.set(principal)


def os_user() -> str:
    """The user of this process; the environment cannot change it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without an entry
        return str(os.getuid())


def write_change(action: str, subject: str, before: Fields, after: Fields, certain: bool) -> None:
    """The line of a committed change, or of one whose outcome the store did not report."""
    fields: dict[str, Any] = {name: values for name, values in (("before", before), ("after", after)) if values}
    write_line(action, subject, "done" if certain else "uncertain", **fields)


def write_refusal(action: str, subject: str, outcome: Outcome, error: Exception) -> None:
    """The line of a change that did not happen, or may not have."""
    write_line(action, subject, outcome, error_type=type(error).__name__, error=str(error))


def write_line(
    action: str, subject: str, outcome: Outcome = "done", *, by: Principal | None = None, **fields: object
) -> None:
    """`by`: who acted, where it is not the principal of the running task."""
    principal = by or _PRINCIPAL.get() or Principal(f"os-user:{os_user()}")
    line: dict[str, object] = {"action": action, "object": subject, "principal": principal.name}
    if principal.client:
        line["client"] = principal.client
    if principal.request_id:
        line["request_id"] = principal.request_id
    line |= {"outcome": outcome, **fields}
    _log.info("audit", extra={"llog": {name: _bounded(value) for name, value in line.items()}})


def printable(text: str) -> str:
    """The text with its control characters escaped."""
    return _UNPRINTABLE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def _bounded(value: object) -> object:
    if isinstance(value, int | float | bool | None):
        return value
    if isinstance(value, Mapping):
        items = [(printable(str(name))[:AUDIT_TEXT_CHARS_MAX], _bounded(one)) for name, one in value.items()]
        left = len(items) - AUDIT_ITEMS_MAX
        return dict(items[:AUDIT_ITEMS_MAX]) | ({"and_more": left} if left > 0 else {})
    return printable(str(value)[:AUDIT_TEXT_CHARS_MAX])[:AUDIT_TEXT_CHARS_MAX]
