"""Kafka's model of access control: an entry allows or denies a principal, from a host, an operation on resources.

Codes are Kafka's. A pattern names one resource (LITERAL; `*` stands for all of a type) or all whose name begins with a
prefix (PREFIXED). A denial outweighs every permission. Permission to read, write, delete or alter includes permission
to describe, and permission to alter configs includes permission to describe them; denials include nothing.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum
from typing import Final, NamedTuple, Self, TypeVar

from llog.errors import InvalidArgument

WILDCARD: Final = "*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""
USER_PREFIX: Final = "User:"
EVERYONE: Final = "User:*"
ANONYMOUS: Final = "User:ANONYMOUS"
ACL_NAME_CHARS_MAX: Final = 512
"""Of the name of a resource, a principal or a host in an entry."""


class ResourceType(IntEnum):
    ANY = 1
    """In filters only."""
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class Operation(IntEnum):
    ANY = 1
    """In filters only."""
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PatternType(IntEnum):
    ANY = 1
    """In filters only: any pattern whose name is exactly this."""
    MATCH = 2
    """In filters only: any pattern that covers the name."""
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    ANY = 1
    """In filters only."""
    DENY = 2
    ALLOW = 3


OPERATIONS: Final[dict[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""What can be done to each type of resource."""


def bit(operation: Operation) -> int:
    """An operation in a set of operations, as Kafka's answers hold it."""
    return 1 << operation


ALL_BITS: Final = sum(bit(operation) for operation in Operation if operation > Operation.ALL)
_DESCRIBERS: Final = sum(map(bit, (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)))


def bits_of(operation: Operation) -> int:
    """The operations that an entry for this one names."""
    return ALL_BITS if operation is Operation.ALL else bit(operation)


def with_implied(allowed: int) -> int:
    """With the operations that permission for these includes."""
    if allowed & _DESCRIBERS:
        allowed |= bit(Operation.DESCRIBE)
    if allowed & bit(Operation.ALTER_CONFIGS):
        allowed |= bit(Operation.DESCRIBE_CONFIGS)
    return allowed


class Acl(NamedTuple):
    """One entry. `checked` refuses entries that Kafka refuses."""

    principal: str
    host: str
    resource_type: ResourceType
    name: str
    pattern: PatternType
    operation: Operation
    permission: Permission

    @property
    def id(self) -> str:
        """The same for the same entry, so that creating it twice makes one."""
        return hashlib.sha256("\x00".join(map(str, self)).encode()).hexdigest()[:32]

    def __str__(self) -> str:
        what = f"{self.resource_type.name} {self.name} ({self.pattern.name})"
        return f"{self.permission.name} {self.principal} from {self.host}: {self.operation.name} {what}"

    def covers(self, name: str) -> bool:
        """Whether the entry is about the resource of this name."""
        if self.pattern is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)

    def checked(self) -> Self:
        """`InvalidArgument` names what is wrong."""
        check_principal(self.principal)
        for field, text in (("host", self.host), ("name", self.name)):
            if not text or len(text) > ACL_NAME_CHARS_MAX or not text.isprintable():
                raise InvalidArgument(field, f"{text!r:.100} must have 1 to {ACL_NAME_CHARS_MAX} printable characters")
        if self.resource_type not in OPERATIONS:
            raise InvalidArgument("resource type", f"{self.resource_type.name} is for filters only")
        if self.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
            raise InvalidArgument("pattern", f"{self.pattern.name} is for filters only")
        if self.permission is Permission.ANY or self.operation is Operation.ANY:
            raise InvalidArgument("operation", "ANY is for filters only")
        if self.operation is not Operation.ALL and self.operation not in OPERATIONS[self.resource_type]:
            known = ", ".join(operation.name for operation in OPERATIONS[self.resource_type])
            raise InvalidArgument("operation", f"{self.operation.name} is none of a {self.resource_type.name}: {known}")
        if self.resource_type is ResourceType.CLUSTER and self.name != CLUSTER_NAME:
            raise InvalidArgument("name", f"the cluster is called {CLUSTER_NAME!r}, not {self.name!r:.100}")
        return self


class AclFilter(NamedTuple):
    """Which entries are listed or deleted. None matches everything."""

    principal: str | None = None
    host: str | None = None
    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        return (
            self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern is PatternType.MATCH:
            return self.name is None or acl.covers(self.name)
        return self.pattern in (PatternType.ANY, acl.pattern) and self.name in (None, acl.name)


def check_principal(principal: str) -> str:
    """`User:name`, as in Kafka; the type is case-sensitive."""
    if not principal.startswith(USER_PREFIX) or len(principal) == len(USER_PREFIX):
        raise InvalidArgument("principal", f"{principal!r:.100} must be 'User:' and a name")
    if len(principal) > ACL_NAME_CHARS_MAX or not principal.isprintable():
        raise InvalidArgument("principal", f"must have at most {ACL_NAME_CHARS_MAX} printable characters")
    return principal


Member = TypeVar("Member", bound=IntEnum)


def named(kind: type[Member], text: str) -> Member:
    """The member that a person names: `topic`, `transactional-id`."""
    try:
        return kind[text.upper().replace("-", "_")]
    except KeyError:
        known = ", ".join(member.name for member in kind)
        raise InvalidArgument(kind.__name__, f"{text!r:.100} is none of {known}") from None
