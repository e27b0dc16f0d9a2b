"""The checks every adapter shares: the fast ones for many keys refuse exactly what the plain one refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llog.errors import InvalidArgument, ValueTooLarge
from llog.limits import METADATA_KEY_BYTES_MAX, METADATA_KEY_DEPTH_MAX, METADATA_VALUE_BYTES_MAX
from llog.stores.metadata.port import ABSENT, Delete, Key, Put, after, check_groups, check_key, check_paths, check_scan

SEGMENTS = st.text(st.sampled_from("ab_0é日😀 .-\n\x00\x7f\ud800"), max_size=4)
PATHS = st.one_of(
    st.lists(SEGMENTS, max_size=5).map("/".join),
    st.text(max_size=10),
    st.sampled_from(
        [
            "__oxia",
            "__oxia/a",
            "a/__oxia",
            "a" * METADATA_KEY_BYTES_MAX,
            "a" * (METADATA_KEY_BYTES_MAX + 1),
            "é" * (METADATA_KEY_BYTES_MAX // 2),
            "é" * (METADATA_KEY_BYTES_MAX // 2 + 1),
            "/".join("a" * METADATA_KEY_DEPTH_MAX),
            "/".join("a" * (METADATA_KEY_DEPTH_MAX + 1)),
            "a\nb",
            "a/\n/b",
        ]
    ),
)


def refused(path: str) -> bool:
    try:
        check_key(Key(path))
    except InvalidArgument:
        return True
    return False


@given(st.lists(PATHS, max_size=6))
def test_many_paths_are_refused_when_one_of_them_is(paths: list[str]) -> None:
    if any(map(refused, paths)):
        with pytest.raises(InvalidArgument):
            check_paths(paths)
    else:
        check_paths(paths)


@given(st.lists(PATHS.filter(lambda path: not refused(path)), min_size=1, max_size=6, unique=True))
def test_checked_writes_come_back_in_columns(paths: list[str]) -> None:
    groups = [(Put(Key(path), b"value", ABSENT),) for path in paths]
    checked = check_groups(groups, atomic=False, groups_max=10)
    assert list(checked.paths) == paths
    assert checked.value_bytes == 5 * len(paths)
    assert checked.values is not None
    assert checked.expected is not None
    assert (list(checked.values), list(checked.expected)) == ([b"value"] * len(paths), [ABSENT] * len(paths))
    mixed = check_groups([*groups, (Delete(Key("another/key/of/ours")),)], atomic=False, groups_max=10)
    assert mixed.values is None
    assert mixed.value_bytes == checked.value_bytes


def test_an_error_names_the_key_and_the_size_it_refuses() -> None:
    with pytest.raises(InvalidArgument, match="a//b"):
        check_groups([(Put(Key("fine"), b"1"),), (Put(Key("a//b"), b"1"),)], atomic=False, groups_max=10)
    large = Put(Key("large"), b"x" * (METADATA_VALUE_BYTES_MAX + 1))
    with pytest.raises(ValueTooLarge, match="large"):
        check_groups([(Put(Key("fine"), b"1"),), (large,)], atomic=False, groups_max=10)
    with pytest.raises(InvalidArgument, match="empty-handed"):
        check_groups([(Delete(Key("x")), Put(Key("empty-handed"), b""))], atomic=True, groups_max=10)


def test_the_next_page_may_start_behind_the_longest_name() -> None:
    check_scan(Key("a"), after("x" * METADATA_KEY_BYTES_MAX), None, 1)
    with pytest.raises(InvalidArgument):
        check_scan(Key("a"), "", "x" * (METADATA_KEY_BYTES_MAX + 2), 1)
