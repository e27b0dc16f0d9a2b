"""What is stored of a group, and the names and numbers shared with the Kafka front end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llog.errors import FormatError, UnsupportedFormat
from llog.groups import GroupCode
from llog.groups.records import (
    GROUP_MEMBER_RECORD_BYTES_MAX,
    GROUP_PAGE_BYTES,
    ClassicMember,
    ConsumerMember,
    GroupHead,
    GroupPage,
    MemberProtocol,
    decode_head,
    decode_page,
    encode_record,
    from_records,
    leftover_pages,
    to_records,
)
from llog.groups.types import type_refused
from llog.kafka.error_codes import ErrorCode
from llog.log.keys import Keys

GOLDEN_HEAD = (
    b'{"v":1,"type":"classic","state":"Stable","generation":3,"edition":7,"writer":"w1","protocol_type":"consumer",'
    b'"protocol":"range","leader":"a","classic":[{"member_id":"a","instance_id":"i","client_id":"c","client_host":"h",'
    b'"session_timeout_ms":10000,"rebalance_timeout_ms":30000,"protocols":[{"name":"range","metadata":"bQ=="}],'
    b'"assignment":"eA=="}],"consumer":[{"member_id":"b","instance_id":null,"rack_id":"r","client_id":"c",'
    b'"client_host":"h","principal":"User:p","rebalance_timeout_ms":30000,"topics":["t"],"regex":"x.*","assignor":"uniform","epoch":3,'
    b'"previous_epoch":2,"assigned":{"00ff":{"0":3}},"revoking":{"00ff":{"1":2}},"target":{"00ff":[0]}}],"pages":[],'
    b'"members":2,"topics_hash":"h","empty_since_ms":0,"written_at_ms":5}'
)
HEAD = GroupHead(
    type="classic",
    state="Stable",
    generation=3,
    edition=7,
    writer="w1",
    protocol_type="consumer",
    protocol="range",
    leader="a",
    classic=(
        ClassicMember(
            member_id="a",
            instance_id="i",
            client_id="c",
            client_host="h",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=30_000,
            protocols=(MemberProtocol(name="range", metadata=b"m"),),
            assignment=b"x",
        ),
    ),
    consumer=(
        ConsumerMember(
            member_id="b",
            rack_id="r",
            client_id="c",
            client_host="h",
            principal="User:p",
            rebalance_timeout_ms=30_000,
            topics=("t",),
            regex="x.*",
            assignor="uniform",
            epoch=3,
            previous_epoch=2,
            assigned={"00ff": {0: 3}},
            revoking={"00ff": {1: 2}},
            target={"00ff": (0,)},
        ),
    ),
    members=2,
    topics_hash="h",
    written_at_ms=5,
)


def member(number: int, size: int) -> ClassicMember:
    return ClassicMember(member_id=f"m{number}", session_timeout_ms=1, rebalance_timeout_ms=1, assignment=b"x" * size)


def test_a_head_of_this_release_is_written_and_read_by_later_ones() -> None:
    assert encode_record(HEAD, "g") == GOLDEN_HEAD
    assert decode_head(GOLDEN_HEAD, "g") == HEAD


def test_a_head_with_fields_of_a_later_release_is_read_and_not_written_back() -> None:
    head = decode_head(GOLDEN_HEAD.replace(b'{"v":1,', b'{"v":2,"later":[1],', 1), "g")
    assert replace(head, v=1) == HEAD
    with pytest.raises(UnsupportedFormat):
        encode_record(head, "g")


@given(st.lists(st.integers(0, GROUP_PAGE_BYTES), max_size=12))
def test_members_come_back_from_head_and_pages(sizes: list[int]) -> None:
    head = replace(HEAD, classic=tuple(member(n, size) for n, size in enumerate(sizes)), consumer=HEAD.consumer)
    stored = to_records(head)
    pages = {name: decode_page(encode_record(page, name), name) for name, page in stored.pages.items()}
    assert from_records(decode_head(encode_record(stored.head, "g"), "g"), pages, "g") == replace(
        head, members=len(sizes) + 1
    )
    assert all(Keys().parse(Keys().group_item("g" * 10, name).path).kind == "group_page" for name in pages)  # type: ignore[union-attr]


def test_small_groups_have_no_pages_and_large_ones_no_members_in_the_head() -> None:
    assert to_records(HEAD).pages == {}
    stored = to_records(replace(HEAD, classic=tuple(member(n, 30_000) for n in range(40))))
    assert len(stored.pages) > 1
    assert (stored.head.classic, stored.head.pages) == ((), tuple(stored.pages))


def test_two_writers_never_write_the_same_page() -> None:  # G9
    large = replace(HEAD, classic=tuple(member(n, 30_000) for n in range(40)))
    names = [set(to_records(replace(large, writer=w, edition=e)).pages) for w in "ab" for e in (7, 8)]
    assert len(set().union(*names)) == sum(map(len, names))


def test_a_head_whose_pages_are_gone_is_refused() -> None:
    stored = to_records(replace(HEAD, classic=tuple(member(n, 30_000) for n in range(40))))
    with pytest.raises(FormatError, match="pages that do not exist"):
        from_records(stored.head, {}, "g")
    pages = dict(stored.pages)
    first = next(iter(pages))
    pages[first] = GroupPage(generation=3, number=0)
    with pytest.raises(FormatError, match="41 members expected"):
        from_records(stored.head, pages, "g")


def test_only_pages_that_nobody_will_name_are_leftovers() -> None:  # G9
    large = replace(HEAD, classic=tuple(member(n, 30_000) for n in range(10)))
    mine = to_records(large)
    older, zombie, newer = (to_records(replace(large, writer="w2", edition=edition)).pages for edition in (6, 7, 8))
    names = ["offset:t:0:1", "page:odd", *mine.pages, *older, *zombie, *newer]
    assert set(leftover_pages(names, mine.head)) == {*older, *zombie}


def test_a_member_that_no_value_can_hold_is_refused() -> None:
    with pytest.raises(FormatError, match="one value cannot hold it"):
        to_records(replace(HEAD, classic=(member(1, GROUP_MEMBER_RECORD_BYTES_MAX),)))


def test_error_codes_have_kafkas_names_and_numbers() -> None:
    for code in GroupCode:
        assert ErrorCode[code.name].value == code.value


@pytest.mark.parametrize(
    ("current", "has_members", "wanted", "joins", "code"),
    [
        ("classic", True, "classic", True, GroupCode.NONE),
        ("simple", False, "consumer", True, GroupCode.NONE),
        ("consumer", False, "classic", True, GroupCode.NONE),
        ("consumer", True, "classic", True, GroupCode.INCONSISTENT_GROUP_PROTOCOL),
        ("consumer", True, "classic", False, GroupCode.UNKNOWN_MEMBER_ID),
        ("classic", True, "consumer", True, GroupCode.GROUP_ID_NOT_FOUND),
        ("classic", False, "consumer", False, GroupCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_a_group_with_members_keeps_its_type(
    current: str, has_members: bool, wanted: str, joins: bool, code: GroupCode
) -> None:
    assert type_refused(current, has_members=has_members, wanted=wanted, joins=joins) == code
