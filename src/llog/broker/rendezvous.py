"""Rendezvous hashing: every process picks the same node for a partition, without agreeing on anything but the nodes.

Each node has a weight for each partition, a hash of both; the heaviest node is picked. When a node leaves, only its own
partitions get another node; a node that joins takes an equal share from each of the others.

`pick` answers for one partition, `pick_many` for the partitions of many topics in a few passes over arrays: of
10,000 partitions and 3 nodes, 0.7 ms for one topic and 7 ms for 10,000 topics, where `pick` takes 40 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

# Constants of splitmix64.
_STEP: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB
_MASK: Final = 2**64 - 1

U64 = npt.NDArray[np.uint64]


def pick(nodes: Sequence[int], topic_id: str, partition: int) -> int:
    """The node of one partition. Equal weights, which do not happen in practice, go to the lowest id."""
    if len(nodes) == 1:
        return nodes[0]
    key = _mix(_seed(topic_id) + partition * _STEP)
    return -max((_mix(_mix(node + 1) ^ key), -node) for node in nodes)[1]


def ranked(nodes: Sequence[int], name: str, number: int) -> list[int]:
    """All nodes, the one that `pick` picks first: who follows when it is gone."""
    key = _mix(_seed(name) + number * _STEP)
    return sorted(nodes, key=lambda node: (-_mix(_mix(node + 1) ^ key), node))


def pick_many(nodes: Sequence[int], topics: Sequence[tuple[str, int]]) -> list[list[int]]:
    """For each topic id and number of partitions, the node of every partition."""
    if len(nodes) == 1:
        return [[nodes[0]] * count for _, count in topics]
    if not topics:
        return []
    counts = np.array([count for _, count in topics], dtype=np.int64)
    seeds = np.repeat(np.array([_seed(topic_id) for topic_id, _ in topics], dtype=np.uint64), counts)
    ends = np.cumsum(counts)
    partitions = np.arange(int(ends[-1]), dtype=np.uint64) - np.repeat((ends - counts).astype(np.uint64), counts)
    keys = _mix_array(seeds + partitions * np.uint64(_STEP))
    heaviest = np.zeros(len(keys), dtype=np.uint64)
    picked = np.full(len(keys), min(nodes), dtype=np.int64)
    for node in sorted(nodes):
        weights = _mix_array(keys ^ np.uint64(_mix(node + 1)))
        heavier = weights > heaviest
        heaviest = np.where(heavier, weights, heaviest)
        picked[heavier] = node
    rows = picked.tolist()
    return [rows[end - count : end] for end, count in zip(ends.tolist(), counts.tolist(), strict=True)]


def _seed(topic_id: str) -> int:
    """64 bits of an id. Ids are UUIDs; any other text is hashed."""
    try:
        number = int(topic_id.replace("-", ""), 16)
    except ValueError:
        number = int.from_bytes(blake2b(topic_id.encode("utf-8", "replace"), digest_size=8).digest(), "big")
    return (number ^ (number >> 64)) & _MASK


def _mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def _mix_array(values: U64) -> U64:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_MIX_1)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_MIX_2)
    return values ^ (values >> np.uint64(31))
