"""Access control entries and filters, from Kafka's messages."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

from llog.errors import InvalidArgument
from llog.kafka.codec.messages.create_acls import AclCreation
from llog.kafka.codec.messages.delete_acls import DeleteAclsFilter
from llog.kafka.codec.messages.describe_acls import DescribeAclsRequest
from llog.security.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType

Code = TypeVar("Code", bound=IntEnum)


def acl_of(creation: AclCreation) -> Acl:
    """`InvalidArgument` for codes that no entry may have."""
    return Acl(
        creation.principal,
        creation.host,
        _known(ResourceType, creation.resource_type),
        creation.resource_name,
        _known(PatternType, creation.resource_pattern_type),
        _known(Operation, creation.operation),
        _known(Permission, creation.permission_type),
    ).checked()


def filter_of(message: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """`InvalidArgument` for unknown codes: an entry that they mean cannot be recognised."""
    return AclFilter(
        message.principal_filter,
        message.host_filter,
        _known(ResourceType, message.resource_type_filter),
        message.resource_name_filter,
        _known(PatternType, message.pattern_type_filter),
        _known(Operation, message.operation),
        _known(Permission, message.permission_type),
    )


def _known(kind: type[Code], code: int) -> Code:
    try:
        return kind(code)
    except ValueError:
        raise InvalidArgument(kind.__name__, f"unknown code {code}") from None
