from __future__ import annotations

import pytest

from llog.errors import InvalidArgument
from llog.security.acl import (
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    bit,
    named,
)
from llog.security.authorizer import Authorizer
from llog.security.refusals import LINES_BURST, SAME_REFUSAL_MS, LinePace
from llog.security.rules import Access
from llog.security.throttle import FAILURE_REFILL_MS, FAILURES_BURST, FailureLimit
from llog.security.view import SecurityView

ADA = "User:ada"
TOPIC = ResourceType.TOPIC


def acl(text: str, *, principal: str = ADA, host: str = "*", kind: ResourceType = TOPIC, deny: bool = False) -> Acl:
    """`READ orders`, `WRITE ord…` for a prefix."""
    operation, _, name = text.partition(" ")
    pattern = PatternType.PREFIXED if name.endswith("…") else PatternType.LITERAL
    permission = Permission.DENY if deny else Permission.ALLOW
    return Acl(principal, host, kind, name.rstrip("…"), pattern, Operation[operation], permission)


def deny(text: str, **more: str) -> Acl:
    return acl(text, deny=True, **more)  # type: ignore[arg-type]


TABLE: list[tuple[list[Acl], str, bool]] = [
    ([], "READ orders", False),
    ([acl("READ orders")], "READ orders", True),
    ([acl("READ orders")], "READ orders2", False),
    ([acl("READ orders")], "READ Orders", False),
    ([acl("READ orders")], "WRITE orders", False),
    ([acl("READ orders")], "DESCRIBE orders", True),
    ([acl("WRITE orders")], "DESCRIBE orders", True),
    ([acl("DELETE orders")], "DESCRIBE orders", True),
    ([acl("ALTER orders")], "DESCRIBE orders", True),
    ([acl("CREATE orders")], "DESCRIBE orders", False),
    ([acl("ALTER_CONFIGS orders")], "DESCRIBE_CONFIGS orders", True),
    ([acl("ALTER_CONFIGS orders")], "DESCRIBE orders", False),
    ([acl("DESCRIBE orders")], "READ orders", False),
    ([acl("ALL orders")], "ALTER_CONFIGS orders", True),
    ([acl("READ *")], "READ anything", True),
    ([acl("READ ord…")], "READ orders", True),
    ([acl("READ ord…")], "READ ord", True),
    ([acl("READ ord…")], "READ or", False),
    # A PREFIXED entry called `*` is a prefix, not a wildcard.
    ([acl("READ *…")], "READ orders", False),
    ([acl("READ orders", principal="User:bob")], "READ orders", False),
    ([acl("READ orders", principal="User:*")], "READ orders", True),
    ([acl("READ orders", host="10.0.0.7")], "READ orders", True),
    ([acl("READ orders", host="10.0.0.8")], "READ orders", False),
    ([acl("READ orders", kind=ResourceType.GROUP)], "READ orders", False),
    # Denials outweigh permissions, however specific.
    ([acl("READ orders"), deny("READ *")], "READ orders", False),
    ([acl("READ *"), deny("READ orders")], "READ orders", False),
    ([acl("READ *"), deny("READ orders")], "READ other", True),
    ([acl("READ orders"), deny("READ ord…")], "READ orders", False),
    ([acl("READ orders"), deny("ALL orders")], "READ orders", False),
    ([acl("READ orders"), deny("READ orders", principal="User:*")], "READ orders", False),
    ([acl("READ orders"), deny("READ orders", host="10.0.0.8")], "READ orders", True),
    # A denial includes nothing else.
    ([acl("READ orders"), deny("READ orders")], "DESCRIBE orders", True),
    ([acl("READ orders"), deny("DESCRIBE orders")], "READ orders", True),
    ([acl("READ orders"), deny("DESCRIBE orders")], "DESCRIBE orders", False),
]


@pytest.mark.parametrize(("acls", "wanted", "allowed"), TABLE)
def test_entries_decide_as_in_kafka(acls: list[Acl], wanted: str, allowed: bool) -> None:
    operation, _, name = wanted.partition(" ")
    access = Access(ADA, "10.0.0.7", acls)
    for _ in range(2):  # looked up, then remembered
        assert access.allows(Operation[operation], TOPIC, name) is allowed
    assert bool(access.bits(TOPIC, name) & bit(Operation[operation])) is allowed


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ([], False),
        ([acl("WRITE orders")], True),
        ([acl("WRITE ord…")], True),
        ([acl("READ orders")], False),
        ([acl("WRITE *")], True),
        ([acl("WRITE *"), deny("WRITE orders")], True),
        ([acl("WRITE *"), deny("WRITE *")], False),
        ([acl("WRITE orders"), deny("WRITE orders")], False),
        ([acl("WRITE orders"), deny("WRITE ord…")], False),
        ([acl("WRITE orders…"), deny("WRITE ord…")], False),
        ([acl("WRITE ord…"), deny("WRITE orders")], True),
        ([acl("WRITE ord…"), deny("WRITE orders…")], True),
    ],
)
def test_a_right_to_some_resource_is_found_unless_every_one_is_denied(acls: list[Acl], allowed: bool) -> None:
    assert Access(ADA, "h", acls).allows_any(Operation.WRITE, TOPIC) is allowed


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (AclFilter(), True),
        (AclFilter(principal=ADA), True),
        (AclFilter(principal="User:bob"), False),
        (AclFilter(resource_type=ResourceType.GROUP), False),
        (AclFilter(name="ord"), True),
        (AclFilter(name="orders"), False),
        (AclFilter(name="orders", pattern=PatternType.MATCH), True),
        (AclFilter(name="or", pattern=PatternType.MATCH), False),
        (AclFilter(name="ord", pattern=PatternType.LITERAL), False),
        (AclFilter(name="ord", pattern=PatternType.PREFIXED), True),
        (AclFilter(operation=Operation.WRITE), False),
        (AclFilter(permission=Permission.DENY), False),
    ],
)
def test_filters_match_as_in_kafka(wanted: AclFilter, matches: bool) -> None:
    assert wanted.matches(acl("READ ord…")) is matches


@pytest.mark.parametrize(
    "wrong",
    [
        acl("READ orders")._replace(principal="ada"),
        acl("READ orders")._replace(principal="User:"),
        acl("READ orders")._replace(name=""),
        acl("READ orders")._replace(host=""),
        acl("READ orders")._replace(resource_type=ResourceType.ANY),
        acl("READ orders")._replace(pattern=PatternType.MATCH),
        acl("READ orders")._replace(permission=Permission.ANY),
        acl("CLUSTER_ACTION orders"),
        acl("ALTER other", kind=ResourceType.CLUSTER),
    ],
)
def test_an_entry_that_kafka_refuses_is_refused(wrong: Acl) -> None:
    with pytest.raises(InvalidArgument):
        wrong.checked()


def test_names_of_people_are_understood() -> None:
    assert named(ResourceType, "transactional-id") is ResourceType.TRANSACTIONAL_ID
    with pytest.raises(InvalidArgument):
        named(Operation, "peek")


def test_a_new_view_is_in_force_at_once_and_without_one_only_super_users_have_access() -> None:
    authorizer = Authorizer(["User:root"], lambda: 0.0)

    def may(principal: str) -> bool:
        return authorizer.of(principal, "h").allows(Operation.READ, TOPIC, "orders")

    assert (may(ADA), may("User:root")) == (False, True)
    authorizer.use(SecurityView.of({}, (acl("READ orders"),), 1, b"k"))
    assert (may(ADA), may("User:root")) == (True, True)
    authorizer.use(None)
    assert (may(ADA), may("User:root")) == (False, True)


def test_the_same_refusal_has_one_line_a_minute_and_all_together_have_a_bound() -> None:
    now = [0.0]
    pace = LinePace(lambda: now[0])
    assert [pace.admit("a"), pace.admit("a"), pace.admit("a")] == [0, None, None]
    now[0] = SAME_REFUSAL_MS
    assert pace.admit("a") == 2
    admitted = [pace.admit(number) for number in range(10 * LINES_BURST)]
    assert len([one for one in admitted if one is not None]) < LINES_BURST


def test_an_address_that_fails_too_often_waits_and_others_do_not() -> None:
    now = [0.0]
    limit = FailureLimit(lambda: now[0])
    for _ in range(FAILURES_BURST):
        assert not limit.is_blocked("10.0.0.7")
        limit.failed("10.0.0.7")
    assert limit.is_blocked("10.0.0.7")
    assert limit.is_blocked("::ffff:10.0.0.7")
    assert not limit.is_blocked("10.0.0.8")
    now[0] = FAILURE_REFILL_MS
    assert not limit.is_blocked("10.0.0.7")
    for _ in range(FAILURES_BURST):
        limit.failed("2001:db8::1")
    assert limit.is_blocked("2001:db8::2")
    assert not limit.is_blocked("2001:db8:1::1")
