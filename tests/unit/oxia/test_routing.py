"""Which shard a key belongs to, and which assignments are refused."""

from __future__ import annotations

import pytest

from llog.stores.metadata.oxia.client.discovery import ShardMap, route_hash, shard_map_of
from llog.stores.metadata.oxia.client.errors import InvalidRequest, Misconfigured, Unavailable
from llog.stores.metadata.oxia.client.proto import pb


@pytest.mark.parametrize(("key", "expected"), [("foo", 125730186), ("bar", 2687685474), ("baz", 862947621)])
def test_hash_agrees_with_the_servers_own_vectors(key: str, expected: int) -> None:
    assert route_hash(key) == expected


def assignment(
    ranges: list[tuple[int, int, int]],
    router: pb.ShardKeyRouter = pb.ROUTER_XXHASH3,
    sorting: pb.KeySorting = pb.SORTING_UNKNOWN,
) -> pb.NamespaceAssignment:
    found = pb.NamespaceAssignment(shard_key_router=router, key_sorting=sorting)
    for shard, first, last in ranges:
        found.assignments.add(
            shard=shard,
            leader=f"host-{shard}:1",
            int32_hash_range=pb.HashRange(min_hash_inclusive=first, max_hash_inclusive=last),
        )
    return found


QUARTERS = [(i, i << 30, ((i + 1) << 30) - 1) for i in range(4)]


def test_keys_go_to_the_shard_whose_range_holds_their_hash() -> None:
    shards = shard_map_of(assignment(list(reversed(QUARTERS))), "default")
    assert shards.shards == (0, 1, 2, 3)
    for i in range(500):
        assert shards.shard_of(f"topic:{i}") == route_hash(f"topic:{i}") >> 30


def test_both_ends_of_a_range_belong_to_it() -> None:
    hashed = route_hash("foo")
    shards = shard_map_of(assignment([(0, 0, hashed - 1), (1, hashed, hashed), (2, hashed + 1, 2**32 - 1)]), "default")
    assert shards.shard_of("foo") == 1


def test_one_shard_of_all_hashes_takes_every_key_unhashed() -> None:
    shards = shard_map_of(assignment([(7, 0, 2**32 - 1)]), "default")
    assert shards.shard_of("anything") == 7


def test_a_hash_that_no_shard_holds_is_unavailable() -> None:
    hashed = route_hash("foo")
    shards = shard_map_of(assignment([(0, 0, hashed - 1), (1, hashed + 1, 2**32 - 1)]), "default")
    with pytest.raises(Unavailable, match="foo"):
        shards.shard_of("foo")


def test_a_shard_without_a_leader_has_no_entry() -> None:
    message = assignment(QUARTERS)
    message.assignments[2].leader = ""
    assert set(shard_map_of(message, "default").leaders) == {0, 1, 3}


def test_a_hint_replaces_one_leader() -> None:
    shards = shard_map_of(assignment(QUARTERS), "default").with_leader(1, "new:1")
    assert shards.leaders == {0: "host-0:1", 1: "new:1", 2: "host-2:1", 3: "host-3:1"}
    assert isinstance(shards, ShardMap)


@pytest.mark.parametrize(
    "message",
    [
        assignment(QUARTERS, router=pb.ROUTER_UNKNOWN),
        assignment(QUARTERS, sorting=pb.SORTING_NATURAL),
        assignment([]),
    ],
    ids=["unknown router", "keys sorted by plain bytes", "no shards"],
)
def test_what_this_client_would_get_wrong_is_refused(message: pb.NamespaceAssignment) -> None:
    with pytest.raises(Misconfigured):
        shard_map_of(message, "default")


def test_a_route_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        route_hash("a\ud800")
