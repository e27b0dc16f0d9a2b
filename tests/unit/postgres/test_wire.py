"""Arrays built for the wire are what psycopg itself reads back."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import Format

from llog.stores.metadata.postgres.wire import (
    WireArray,
    adapters,
    bigint_array,
    bytea_array,
    integer_array,
    text_array,
)


def read_back(array: WireArray) -> Any:
    return Transformer().get_loader(array.array_oid, Format.BINARY).load(array.data)


@given(st.lists(st.text(st.characters(exclude_characters="\x00", codec="utf-8"), max_size=40)))
def test_text_arrays(items: list[str]) -> None:
    assert read_back(text_array(items)) == items


@given(st.lists(st.none() | st.binary(max_size=600)))
def test_bytea_arrays_with_nulls(items: list[bytes | None]) -> None:
    assert read_back(bytea_array(items)) == items


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_bigint_arrays_with_nulls(items: list[int | None]) -> None:
    assert read_back(bigint_array(items)) == items


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_integer_arrays(items: list[int]) -> None:
    assert read_back(integer_array(items)) == items


@pytest.mark.parametrize("length", [0, 1, 511, 512, 513, 70_000])
def test_lengths_around_the_prefix_table(length: int) -> None:
    assert read_back(bytea_array([b"x" * length])) == [b"x" * length]


class Context:
    """What psycopg takes adapters from; a connection is one."""

    connection = None

    def __init__(self) -> None:
        self.adapters = adapters()


def test_connections_learn_to_send_them() -> None:
    for array in (text_array(["a"]), bytea_array([b"a"]), bigint_array([1]), integer_array([1])):
        transformer = Transformer(cast(Any, Context()))
        [sent] = transformer.dump_sequence([array], [PyFormat.BINARY])
        assert sent == array.data
        assert transformer.types == (array.array_oid,)
