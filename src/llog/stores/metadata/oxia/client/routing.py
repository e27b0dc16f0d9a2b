"""Which shard holds a key: XXH3 of the partition key (or of the key itself), looked up in ranges of hashes.

As in the clients of Oxia, the hash is the low 32 bits of the 64-bit XXH3 of the UTF-8 bytes. A client with another
hash would not find the records of other clients, so tests compare it with the test vectors of the server.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from xxhash import xxh3_64_intdigest

from llog.stores.metadata.oxia.client.errors import InvalidRequest, Misconfigured, Unavailable
from llog.stores.metadata.oxia.client.proto import pb

_HASH_MASK = 0xFFFF_FFFF


def route_hash(text: str) -> int:
    try:
        return int(xxh3_64_intdigest(text.encode())) & _HASH_MASK
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{text!r} is not valid Unicode") from error


@dataclass(frozen=True)
class ShardMap:
    """One set of assignments: immutable, replaced as a whole."""

    shards: tuple[int, ...]
    """In the order of their ranges."""
    min_hashes: tuple[int, ...]
    max_hashes: tuple[int, ...]
    leaders: Mapping[int, str]
    """A shard without an entry is electing its leader."""

    @cached_property
    def _only(self) -> int | None:
        covers_all = self.min_hashes == (0,) and self.max_hashes == (_HASH_MASK,)
        return self.shards[0] if covers_all else None

    def shard_of(self, text: str) -> int:
        if self._only is not None:
            return self._only
        hashed = route_hash(text)
        at = bisect_right(self.min_hashes, hashed) - 1
        if at < 0 or hashed > self.max_hashes[at]:
            raise Unavailable(f"no shard is assigned for hash {hashed:#010x} of {text!r}")
        return self.shards[at]

    def with_leader(self, shard: int, leader: str) -> ShardMap:
        return ShardMap(self.shards, self.min_hashes, self.max_hashes, {**self.leaders, shard: leader})


def shard_map_of(assignment: pb.NamespaceAssignment, namespace: str) -> ShardMap:
    """Raises `Misconfigured` for an unsupported organisation of shards or keys."""
    if assignment.shard_key_router != pb.ROUTER_XXHASH3:
        raise Misconfigured(f"namespace {namespace!r} routes keys by method {assignment.shard_key_router}, not XXH3")
    if assignment.key_sorting == pb.SORTING_NATURAL:
        raise Misconfigured(f"namespace {namespace!r} sorts keys by plain bytes; hierarchical sorting is needed")
    shards = sorted(assignment.assignments, key=lambda shard: shard.int32_hash_range.min_hash_inclusive)
    if not shards:
        raise Misconfigured(f"namespace {namespace!r} has no shards")
    return ShardMap(
        tuple(shard.shard for shard in shards),
        tuple(shard.int32_hash_range.min_hash_inclusive for shard in shards),
        tuple(shard.int32_hash_range.max_hash_inclusive for shard in shards),
        {shard.shard: shard.leader for shard in shards if shard.leader},
    )
