"""The stored keys keep what ordered reads rely on; the bytes are fixed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llog.errors import MetadataMisconfigured
from llog.limits import METADATA_KEY_DEPTH_MAX
from llog.stores.metadata.lmdb.layout import (
    FORMAT,
    Lease,
    check_format,
    children_prefix,
    pack_lease,
    path_of,
    record_key,
    record_keys,
    tree_prefixes,
    unpack_lease,
)

NAMES = st.text(st.sampled_from("ab0!.~é日😀"), min_size=1, max_size=3)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


@given(st.lists(PATHS, max_size=8))
def test_many_keys_are_encoded_as_each_alone(paths: list[str]) -> None:
    assert record_keys(paths) == [record_key(path) for path in paths]
    assert [path_of(key) for key in record_keys(paths)] == paths


@given(st.sets(PATHS, max_size=20), PATHS)
def test_direct_children_are_one_run_in_byte_order(paths: set[str], parent: str) -> None:
    keys = sorted(map(record_key, paths))
    prefix = children_prefix(parent)
    assert prefix is not None
    run = [path_of(key) for key in keys if key.startswith(prefix)]
    children = [path for path in paths if path.rpartition("/")[0] == parent]
    assert run == sorted(children, key=lambda path: path.encode())
    positions = [i for i, key in enumerate(keys) if key.startswith(prefix)]
    assert positions == list(range(positions[0], positions[-1] + 1)) if positions else True


@given(st.sets(PATHS, max_size=20), PATHS)
def test_a_tree_is_its_prefixes(paths: set[str], prefix: str) -> None:
    starts = tuple(tree_prefixes(prefix))
    assert {path for path in paths if record_key(path).startswith(starts)} == {
        path for path in paths if path.startswith(prefix + "/")
    }


def test_the_deepest_parent_has_no_children() -> None:
    assert children_prefix("/".join("a" * METADATA_KEY_DEPTH_MAX)) is None
    assert tree_prefixes("/".join("a" * METADATA_KEY_DEPTH_MAX)) == []


def test_the_bytes_are_fixed() -> None:
    assert record_key("a/b/ü") == b"\x02a/b/\xc3\xbc"
    lease = Lease(bytes(range(16)), 0x0102030405060708, 0x0A0B0C0D)
    assert pack_lease(lease) == bytes(range(16)) + bytes([1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13])
    assert unpack_lease(pack_lease(lease)) == lease


def test_another_format_is_refused_by_name() -> None:
    check_format(FORMAT, "lmdb:///x")
    with pytest.raises(MetadataMisconfigured, match="llog-lmdb-9"):
        check_format(b"llog-lmdb-9", "lmdb:///x")
