"""What one principal may do from one host, compiled from the entries that concern it.

A check of a name that was checked before is two lookups; a new name costs one comparison per prefix. The sets of
operations are Kafka's bit sets, so they serve as answers too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from llog.security.acl import (
    ALL_BITS,
    EVERYONE,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    bit,
    bits_of,
    with_implied,
)

NAMES_REMEMBERED_MAX: Final = 20_000
"""Names of one type whose operations are remembered for one principal; a Fetch may name thousands of topics."""


class _Bits(NamedTuple):
    allowed: int = 0
    denied: int = 0

    def __or__(self, other: tuple[int, int]) -> _Bits:
        return _Bits(self.allowed | other[0], self.denied | other[1])


class _TypeRules:
    """The entries about one type of resources."""

    def __init__(self) -> None:
        self.wildcard = _Bits()
        self.literal: dict[str, _Bits] = {}
        self.prefixed: dict[str, _Bits] = {}
        self.known: dict[str, int] = {}

    def add(self, acl: Acl) -> None:
        named = bits_of(acl.operation)
        bits = _Bits(with_implied(named), 0) if acl.permission is Permission.ALLOW else _Bits(0, named)
        if acl.pattern is PatternType.PREFIXED:
            self.prefixed[acl.name] = self.prefixed.get(acl.name, _Bits()) | bits
        elif acl.name == WILDCARD:
            self.wildcard |= bits
        else:
            self.literal[acl.name] = self.literal.get(acl.name, _Bits()) | bits

    def bits(self, name: str) -> int:
        known = self.known.get(name)
        if known is not None:
            return known
        found = self.wildcard | self.literal.get(name, _Bits())
        for prefix, bits in self.prefixed.items():
            if name.startswith(prefix):
                found |= bits
        if len(self.known) >= NAMES_REMEMBERED_MAX:
            self.known.clear()
        self.known[name] = allowed = found.allowed & ~found.denied
        return allowed

    def allows_any(self, operation: Operation) -> bool:
        wanted = bit(operation)
        if self.wildcard.denied & wanted:
            return False
        if self.wildcard.allowed & wanted:
            return True
        denied = tuple(prefix for prefix, bits in self.prefixed.items() if bits.denied & wanted)
        return any(
            bits.allowed & wanted and not (bits.denied & wanted) and not name.startswith(denied)
            for named in (self.literal, self.prefixed)
            for name, bits in named.items()
        )


class Access:
    """What a principal may do. Immutable but for what it remembers; a change of users or ACLs makes a new one."""

    __slots__ = ("_rules", "host", "principal")

    def __init__(self, principal: str, host: str, acls: Iterable[Acl]) -> None:
        self.principal, self.host = principal, host
        self._rules = {kind: _TypeRules() for kind in ResourceType}
        for acl in acls:
            if acl.principal in (principal, EVERYONE) and acl.host in (host, WILDCARD):
                self._rules[acl.resource_type].add(acl)

    def bits(self, kind: ResourceType, name: str) -> int:
        """The operations that are allowed on a resource."""
        return self._rules[kind].bits(name)

    def allows(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        return bool(self._rules[kind].bits(name) & (1 << operation))

    def allows_any(self, operation: Operation, kind: ResourceType) -> bool:
        """Whether the operation is allowed on some resource that may exist."""
        return self._rules[kind].allows_any(operation)


class FullAccess(Access):
    """Of a super user."""

    __slots__ = ()

    def __init__(self, principal: str, host: str) -> None:
        super().__init__(principal, host, ())

    def bits(self, kind: ResourceType, name: str) -> int:
        return ALL_BITS

    def allows(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        return True

    def allows_any(self, operation: Operation, kind: ResourceType) -> bool:
        return True
