"""Which topics the patterns of a group's members may stand for: those that the members' clients may describe."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from llog.groups.consumer.subscribe import Describes
from llog.security.acl import Operation, ResourceType
from llog.security.security import Security


class Rights(NamedTuple):
    """What members may know of topics, where authorization is on."""

    describes: Describes
    edition: Callable[[], object | None]
    """Compares unequal after every change of rights; None: they are not known at the moment."""


def rights_to_topics(security: Security) -> Rights | None:
    """None without authorization: then members may describe every topic."""
    authorizer = security.authorizer
    if authorizer is None:
        return None

    def describes(principal: str, host: str, topic: str) -> bool:
        access = authorizer.of(principal, host.removeprefix("/"))
        return access.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic)

    return Rights(describes, lambda: None if security.view is None else security.view.acls)
