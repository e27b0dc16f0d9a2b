"""The server-side assignors: complete, balanced, sticky."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llog.groups.consumer.assign import ASSIGNORS, Subscriber, range_assignor, uniform_assignor
from llog.groups.records import Partitions

TOPICS = {"t1": 1, "t2": 6, "t3": 9, "t4": 4}


def subscriber(
    member_id: str, topics: str | frozenset[str] = frozenset(TOPICS), **target: tuple[int, ...]
) -> Subscriber:
    return Subscriber(frozenset(topics.split()) if isinstance(topics, str) else topics, member_id, dict(target))


def load(target: Partitions) -> int:
    return sum(map(len, target.values()))


def moves(before: dict[str, Partitions], after: dict[str, Partitions]) -> int:
    """Partitions that a member had and another has now."""
    owner = {(t, p): m for m, target in before.items() for t, ids in target.items() for p in ids}
    return sum(owner.get((t, p), m) != m for m, target in after.items() for t, ids in target.items() for p in ids)


subscriptions = st.dictionaries(
    st.sampled_from([f"m{n}" for n in range(7)]),
    st.frozensets(st.sampled_from(sorted(TOPICS)), min_size=0),
    min_size=1,
)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(subscriptions)
def test_every_partition_of_every_subscribed_topic_has_one_owner(name: str, wanted: dict[str, frozenset[str]]) -> None:
    members = {member_id: subscriber(member_id, topics) for member_id, topics in wanted.items()}
    targets = ASSIGNORS[name](members, TOPICS)
    owned = Counter((t, p) for target in targets.values() for t, ids in target.items() for p in ids)
    subscribed = frozenset().union(*wanted.values())
    assert owned == Counter((t, p) for t in subscribed for p in range(TOPICS[t]))
    assert all(topic in wanted[member_id] for member_id, target in targets.items() for topic in target)
    assert targets.keys() == wanted.keys()


@settings(deadline=None)
@given(st.integers(1, 9), st.lists(st.sampled_from(["join", "leave", "grow"]), max_size=8))
def test_uniform_keeps_equal_members_within_one_partition_and_moves_as_few_as_possible(
    count: int, events: list[str]
) -> None:
    topics = dict(TOPICS)
    members = {f"m{n}": subscriber(f"m{n}") for n in range(count)}
    targets = uniform_assignor(members, topics)
    for number, event in enumerate(events):
        if event == "join":
            members[f"n{number}"] = subscriber(f"n{number}")
        elif event == "leave" and len(members) > 1:
            del members[min(members)]
        elif event == "grow":
            topics["t3"] += 5
        members = {m: one._replace(target=targets.get(m, {})) for m, one in members.items()}
        before = {m: one.target for m, one in members.items()}
        targets = uniform_assignor(members, topics)
        loads = sorted(load(target) for target in targets.values())
        assert loads[-1] - loads[0] <= 1
        each, extra = divmod(sum(topics.values()), len(members))
        kept = sorted((load(target) for target in before.values()), reverse=True)
        needed = sum(max(had - each - (place < extra), 0) for place, had in enumerate(kept))
        assert moves(before, targets) == needed


@settings(deadline=None)
@given(subscriptions)
def test_uniform_is_balanced_for_any_subscriptions_and_then_moves_nothing(wanted: dict[str, frozenset[str]]) -> None:
    members = {member_id: subscriber(member_id, topics) for member_id, topics in wanted.items()}
    targets = uniform_assignor(members, TOPICS)
    for giver, target in targets.items():
        for topic in target:
            for taker, topics in wanted.items():
                assert topic not in topics or load(targets[giver]) - load(targets[taker]) <= 1
    again = {m: one._replace(target=targets[m]) for m, one in members.items()}
    assert uniform_assignor(again, TOPICS) == targets


def test_uniform_balances_over_a_chain_of_members() -> None:
    members = {
        "a": subscriber("a", "t2", t2=(0, 1, 2, 3, 4, 5)),
        "b": subscriber("b", "t2 t4", t4=(0, 1, 2, 3)),
        "c": subscriber("c", "t4"),
    }
    targets = uniform_assignor(members, TOPICS)
    assert sorted(load(target) for target in targets.values()) == [3, 3, 4]


def test_uniform_ignores_targets_that_no_longer_fit() -> None:
    members = {
        "a": subscriber("a", "t1 t4", t4=(0, 1, 9), gone=(0,)),
        "b": subscriber("b", "t1 t4", t4=(1, 2), t2=(0,)),
    }
    targets = uniform_assignor(members, TOPICS)
    assert set(targets["a"]["t4"]) >= {0, 1}
    assert load(targets["a"]) + load(targets["b"]) == 5


def test_range_gives_neighbours_and_the_same_ones_of_equal_topics() -> None:
    topics = {"x": 7, "y": 7}
    members = {name: subscriber(name, "x y") for name in ("c", "a", "b")}
    targets = range_assignor(members, topics)
    assert [targets[name]["x"] for name in "abc"] == [(0, 1, 2), (3, 4), (5, 6)]
    assert all(target["x"] == target["y"] for target in targets.values())


def test_range_orders_static_members_by_instance_id() -> None:
    members = {"uuid-1": Subscriber(frozenset(["x"]), "z", {}), "uuid-2": Subscriber(frozenset(["x"]), "y", {})}
    targets = range_assignor(members, {"x": 4})
    assert (targets["uuid-2"]["x"], targets["uuid-1"]["x"]) == ((0, 1), (2, 3))
