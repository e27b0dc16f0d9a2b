"""The decisions in force: who may do what under the latest view, and a bounded trace of what was refused.

Without an authorizer everything is allowed; with one, only what an ACL allows, or everything to a super user. While the
view is too old to be in force (`SecurityFeed`), only super users have access.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from llog.audit_log import Principal, write_line
from llog.security.acl import EVERYONE, Acl, Operation, ResourceType
from llog.security.refusals import LinePace
from llog.security.rules import Access, FullAccess
from llog.security.view import SecurityView

ACCESSES_MAX: Final = 10_000
"""Principals, each with a host, whose rules are remembered."""
REFUSED_NAMES_MAX: Final = 20
"""Names of one request that can each have an audit line."""


class Authorizer:
    def __init__(
        self,
        super_users: Collection[str],
        now_ms: Callable[[], float],
        on_refusal: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_refusal` gets the number of resources that a request was refused."""
        self._super_users = frozenset(super_users)
        self._on_refusal, self._pace = on_refusal, LinePace(now_ms)
        self._acls: dict[str, list[Acl]] = {}
        self._known: dict[tuple[str, str], Access] = {}

    def use(self, view: SecurityView | None) -> None:
        """From now on this view is in force; None: none is."""
        acls: dict[str, list[Acl]] = {}
        for acl in () if view is None else view.acls:
            acls.setdefault(acl.principal, []).append(acl)
        self._acls, self._known = acls, {}

    def of(self, principal: str, host: str) -> Access:
        """The rules for a principal. Valid for one request: later changes make new ones."""
        known = self._known.get((principal, host))
        if known is not None:
            return known
        if len(self._known) >= ACCESSES_MAX:
            self._known.clear()
        if principal in self._super_users:
            access: Access = FullAccess(principal, host)
        else:
            access = Access(principal, host, [*self._acls.get(principal, ()), *self._acls.get(EVERYONE, ())])
        self._known[principal, host] = access
        return access

    def refused(
        self, access: Access, operation: Operation, kind: ResourceType, names: Iterable[str], where: str
    ) -> None:
        """The principal was refused these resources by `where`, an API or a route: count it, and write audit lines."""
        refused = list(names)
        self._on_refusal(len(refused))
        for name in refused[:REFUSED_NAMES_MAX]:
            left_out = self._pace.admit((access.principal, operation, kind, name))
            if left_out is not None:
                more = {"lines_left_out": left_out} if left_out else {}
                by = Principal(access.principal, access.host)
                subject = f"{kind.name} {name}"
                write_line("authorize", subject, "refused", by=by, operation=operation.name, where=where, **more)
