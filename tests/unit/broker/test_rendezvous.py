"""Rendezvous hashing: stable, even, and the same for one partition as for many."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from llog.broker.rendezvous import pick, pick_many

node_sets = st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=9).map(sorted)
topic_ids = st.uuids(version=4).map(str)
TOPIC_ID = str(UUID(int=0x3F0E6B6E2D0B4C588F5E7A9B3A1C2D4E))


@given(node_sets, st.lists(st.tuples(topic_ids, st.integers(0, 40)), max_size=6))
def test_many_partitions_get_the_nodes_that_each_gets_alone(nodes: list[int], topics: list[tuple[str, int]]) -> None:
    expected = [[pick(nodes, topic_id, partition) for partition in range(count)] for topic_id, count in topics]
    assert pick_many(nodes, topics) == expected
    assert pick_many(nodes[::-1], topics) == expected


@given(node_sets, topic_ids, st.data())
def test_when_a_node_leaves_only_its_partitions_move(nodes: list[int], topic_id: str, data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(nodes))
    left = [node for node in nodes if node != gone]
    [before] = pick_many(nodes, [(topic_id, 200)])
    if left:
        [after] = pick_many(left, [(topic_id, 200)])
        assert all(old in (new, gone) for old, new in zip(before, after, strict=True))
        assert gone not in after


def test_partitions_are_spread_evenly_over_nodes_within_a_topic_and_over_topics() -> None:
    nodes = [0, 1, 2, 3, 4]
    [leaders] = pick_many(nodes, [(TOPIC_ID, 10_000)])
    topics = [(str(UUID(int=number)), 1) for number in range(10_000)]  # ids that differ in a few bits only
    for counts in (Counter(leaders), Counter(leader for [leader] in pick_many(nodes, topics))):
        # Five standard deviations of a fair draw are 200.
        assert all(abs(counts[node] - 2_000) < 200 for node in nodes), counts


def test_the_choice_is_the_same_in_every_release() -> None:
    """Brokers of two releases in one cluster must agree."""
    assert [pick([0, 1, 2], TOPIC_ID, p) for p in range(12)] == [2, 0, 2, 1, 2, 2, 2, 0, 0, 0, 2, 0]


def test_ids_that_are_no_uuids_are_hashed() -> None:
    picked = {pick(range(50), name, 0) for name in ("a topic", "another", "c0ffee", "", "\udcff")}
    assert len(picked) > 1
