"""Groups to columns, numbers to outcomes."""

from __future__ import annotations

import pytest

from llog.errors import InvalidArgument, SessionLost, ValueTooLarge, VersionConflict
from llog.limits import METADATA_VALUE_BYTES_MAX
from llog.stores.metadata.port import ABSENT, Delete, Key, Put, Session, Write
from llog.stores.metadata.postgres.batch import POSTGRES_WRITE_BYTES_MAX, decode, encode, split
from tests.unit.postgres.test_wire import read_back


class ForeignSession(Session):
    id = "7"
    lost = False

    async def close(self) -> None:
        pass


def put(path: str, expected: int | None = None) -> Put:
    return Put(Key(path), b"v", expected)


def test_a_top_level_key_has_an_empty_parent() -> None:
    assert split("a") == ("", "a")
    assert split("a/b/c") == ("a/b", "c")


def test_columns_keep_the_order_of_writes() -> None:
    columns = encode([(put("a/b", 3), Delete(Key("c"), 4)), (put("a/d", ABSENT),)], "url")
    groups, parents, names, values, expected = (read_back(column) for column in columns[:5] if column is not None)
    assert groups == [0, 0, 1]
    assert parents == ["a", "", "a"]
    assert names == ["b", "c", "d"]
    assert values == [b"v", None, b"v"]
    assert expected == [3, 4, -1]
    assert columns[5] is None, "no write is bound to a session"


@pytest.mark.parametrize("expected", [-2, -(2**80), 2**63 - 1, 2**63, 2**80])
def test_a_version_no_record_can_have_still_fits(expected: int) -> None:
    column = encode([(put("a", expected),)], "url")[4]
    assert column is not None
    assert read_back(column) == [2**63 - 1]


def test_another_stores_session_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="not opened on this store"):
        encode([(Put(Key("a"), b"v", None, ForeignSession()),)], "url")


def test_a_call_too_large_for_one_statement_is_refused() -> None:
    value = b"x" * METADATA_VALUE_BYTES_MAX
    groups = [(Put(Key(str(i)), value),) for i in range(POSTGRES_WRITE_BYTES_MAX // len(value) + 1)]
    with pytest.raises(ValueTooLarge):
        encode(groups, "url")
    encode(groups[:-1], "url")


def test_answers_become_versions_or_the_reason_of_the_first_refusal() -> None:
    groups: list[tuple[Write, ...]] = [
        (put("a"), Delete(Key("b"))),
        (put("c"), put("d", 9)),
        (Delete(Key("e"), 2),),
        (put("f"), put("g")),
        (put("h"),),
    ]
    outcomes = decode(groups, [11, 0, -3, -1, -1, -3, -2, 12])
    assert outcomes[0] == (11, 0)
    assert isinstance(outcomes[1], VersionConflict)
    assert (outcomes[1].subject, outcomes[1].expected) == ("d", 9)
    assert isinstance(outcomes[2], VersionConflict)
    assert outcomes[2].operation == "delete"
    assert isinstance(outcomes[3], SessionLost)
    assert outcomes[3].subject == "g"
    assert outcomes[4] == (12,)


def test_a_missing_answer_is_not_overlooked() -> None:
    with pytest.raises(AssertionError):
        decode([(put("a"),), (put("b"),)], [1, 2, 3])
