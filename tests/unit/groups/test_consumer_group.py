"""The consumer protocol (KIP-848), as Kafka answers."""

from __future__ import annotations

import pytest

from llog.groups import ConsumerGroup, ConsumerSettings, GroupCode, GroupHead, Step
from llog.groups.consumer.messages import ConsumerHeartbeat, ConsumerHeartbeatAnswer
from llog.groups.consumer.subscribe import GROUP_REGEX_CHARS_MAX, Catalogue, CatalogueTopic, Describes
from llog.groups.outbox import Answer
from llog.groups.records import Partitions, decode_head, encode_record, to_records

NONE = GroupCode.NONE
SETTINGS = ConsumerSettings(members_max=4)
CATALOGUE: Catalogue = {"orders": CatalogueTopic("0a", 4), "other": CatalogueTopic("0b", 2)}
REBALANCE_MS = 20_000


class Consumers:
    """A group whose writes succeed at once unless `writes_wait`."""

    def __init__(self, settings: ConsumerSettings = SETTINGS, describes: Describes | None = None) -> None:
        self.settings, self.now_ms, self.catalogue, self.describes = settings, 1_000, CATALOGUE, describes
        self.stored: GroupHead | None = None
        self.under_way: GroupHead | None = None
        self.writes_wait, self.writes, self.machines = False, 0, 0
        self.replies: dict[object, Answer] = {}
        self.start()

    def start(self) -> None:
        """Another coordinator takes the group; what was not stored is lost."""
        self.machines += 1
        self.under_way = None
        self.group = ConsumerGroup(
            "g",
            f"w{self.machines}",
            self.catalogue,
            self.now_ms,
            head=self.stored,
            settings=self.settings,
            describes=self.describes,
        )

    def take(self, step: Step) -> None:
        self.replies |= {reply.ticket: reply.answer for reply in step.replies}
        if step.write is not None:
            self.under_way = step.write
        if not self.writes_wait:
            self.write()

    def write(self) -> None:
        if self.under_way is not None:
            self.stored = decode_head(encode_record(to_records(self.under_way).head, "g"), "g")
            self.under_way, self.writes = None, self.writes + 1
            self.take(self.group.written(self.now_ms))

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.take(self.group.tick(self.now_ms))

    def send(self, request: ConsumerHeartbeat, ticket: object = None) -> ConsumerHeartbeatAnswer:
        ticket = ticket or object()
        self.take(self.group.heartbeat(ticket, request, "made-up", self.now_ms))
        answer = self.replies[ticket]
        assert isinstance(answer, ConsumerHeartbeatAnswer)
        return answer

    def join(self, member_id: str, *topics: str, **changes: object) -> ConsumerHeartbeatAnswer:
        return self.send(join(member_id, *topics, **changes))

    def beat(
        self, member_id: str, epoch: int, owned: Partitions | None = None, **changes: object
    ) -> ConsumerHeartbeatAnswer:
        return self.send(ConsumerHeartbeat(member_id, epoch, owned=owned, **changes))  # type: ignore[arg-type]


def join(member_id: str, *topics: str, **changes: object) -> ConsumerHeartbeat:
    request = ConsumerHeartbeat(member_id, 0, rebalance_timeout_ms=REBALANCE_MS, topics=topics or ("orders",), owned={})
    return request._replace(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"member_id": ""}, GroupCode.INVALID_REQUEST),
        ({"instance_id": ""}, GroupCode.INVALID_REQUEST),
        ({"rack_id": ""}, GroupCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, GroupCode.INVALID_REQUEST),
        ({"owned": None}, GroupCode.INVALID_REQUEST),
        ({"owned": {"0a": (0,)}}, GroupCode.INVALID_REQUEST),
        ({"topics": None}, GroupCode.INVALID_REQUEST),
        ({"member_epoch": -2}, GroupCode.INVALID_REQUEST),
        ({"member_epoch": -3}, GroupCode.INVALID_REQUEST),
        ({"member_epoch": 1}, GroupCode.GROUP_ID_NOT_FOUND),
        ({"member_epoch": -1}, GroupCode.GROUP_ID_NOT_FOUND),
        ({"assignor": "sticky"}, GroupCode.UNSUPPORTED_ASSIGNOR),
        ({"regex": "("}, GroupCode.INVALID_REGULAR_EXPRESSION),
        ({"regex": "a" * (GROUP_REGEX_CHARS_MAX + 1)}, GroupCode.INVALID_REGULAR_EXPRESSION),
        ({"regex": "((a{100}){100}){100}"}, GroupCode.INVALID_REGULAR_EXPRESSION),
        ({"regex": "", "topics": None}, NONE),
        ({"assignor": "range"}, NONE),
        ({}, NONE),
    ],
)
def test_first_heartbeats_as_kafka_judges_them(change: dict[str, object], code: GroupCode) -> None:
    assert Consumers().send(join("a")._replace(**change)).code == code  # type: ignore[arg-type]


def test_a_client_of_version_0_is_given_an_id() -> None:
    assert Consumers().join("", makes_own_id=False).member_id == "made-up"


def test_a_single_member_gets_everything_at_once() -> None:
    answer = Consumers().join("a")
    assert (answer.member_epoch, answer.assignment) == (1, {"0a": (0, 1, 2, 3)})
    assert answer.heartbeat_interval_ms == 5_000


def test_a_steady_heartbeat_reveals_and_writes_nothing() -> None:
    group = Consumers()
    group.join("a")
    writes = group.writes
    answer = group.beat("a", 1)
    assert (answer.code, answer.member_epoch, answer.assignment, group.writes) == (NONE, 1, None, writes)
    full = group.beat("a", 1, {"0a": (0,)}, rebalance_timeout_ms=REBALANCE_MS, topics=("orders",))
    assert full.assignment == {"0a": (0, 1, 2, 3)}


def test_partitions_change_hands_only_after_their_owner_let_go() -> None:  # G6
    group = Consumers()
    group.join("a")
    assert group.join("b").assignment == {}
    assert group.group.describe().state == "Reconciling"
    asked = group.beat("a", 1)
    assert (asked.member_epoch, asked.assignment) == (1, {"0a": (0, 1)})
    assert group.beat("a", 1, {"0a": (0, 1, 2, 3)}).assignment is None
    assert group.beat("b", 2).assignment is None
    assert group.beat("a", 1, {"0a": (0, 1)}).member_epoch == 2
    assert group.beat("b", 2).assignment == {"0a": (2, 3)}
    assert group.group.describe().state == "Stable"


def test_a_member_that_does_not_let_go_in_time_is_fenced() -> None:
    group = Consumers()
    group.join("a")
    group.join("b")
    group.beat("a", 1)
    group.wait(REBALANCE_MS - 1)
    assert group.beat("a", 1).code == NONE
    group.wait(1)
    assert group.beat("a", 1).code == GroupCode.UNKNOWN_MEMBER_ID
    assert group.beat("b", 2).assignment == {"0a": (0, 1, 2, 3)}


def test_a_silent_member_is_fenced_after_its_session() -> None:  # G7
    group = Consumers()
    group.join("a")
    for _ in range(4):
        group.wait(44_999)
        assert group.beat("a", 1).code == NONE
    group.wait(45_000)
    assert group.beat("a", 1).code == GroupCode.UNKNOWN_MEMBER_ID
    assert group.stored is not None
    assert (group.stored.state, group.stored.empty_since_ms) == ("Empty", group.now_ms)


def test_epochs_that_do_not_fit_are_fenced() -> None:
    group = Consumers()
    group.join("a")
    group.join("b")
    group.beat("a", 1)
    group.beat("a", 1, {"0a": (0, 1)})
    assert group.beat("a", 3).code == GroupCode.FENCED_MEMBER_EPOCH
    assert group.beat("a", 1).code == GroupCode.FENCED_MEMBER_EPOCH
    assert group.beat("a", 1, {"0a": (0, 3)}).code == GroupCode.FENCED_MEMBER_EPOCH
    assert group.beat("a", 1, {"0a": (1,)}).member_epoch == 2, "the answer with the new epoch was lost"
    assert group.beat("x", 2).code == GroupCode.UNKNOWN_MEMBER_ID
    rejoined = group.join("a")
    assert (rejoined.member_epoch, rejoined.assignment) == (2, {"0a": (0, 1)})


def test_a_full_group_refuses_another_member() -> None:
    group = Consumers()
    assert [group.join(name).code for name in "abcd"] == [NONE] * 4
    assert group.join("e").code == GroupCode.GROUP_MAX_SIZE_REACHED
    assert group.join("d").code == NONE


def test_a_member_that_leaves_is_replaced() -> None:
    group = Consumers()
    group.join("a")
    group.join("b")
    left = group.beat("a", -1)
    assert (left.code, left.member_epoch) == (NONE, -1)
    assert group.beat("b", 2).assignment == {"0a": (0, 1, 2, 3)}
    assert group.beat("a", -1).code == GroupCode.UNKNOWN_MEMBER_ID


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance() -> None:
    group = Consumers()
    group.join("a", instance_id="i")
    epoch = group.group.generation
    assert group.join("a2", instance_id="i").code == GroupCode.UNRELEASED_INSTANCE_ID
    assert group.beat("a2", -2, instance_id="i").code == GroupCode.FENCED_INSTANCE_ID
    left = group.beat("a", -2, instance_id="i")
    assert (left.code, left.member_epoch) == (NONE, -2)
    assert group.beat("a", 1, instance_id="i").code == GroupCode.FENCED_MEMBER_EPOCH
    back = group.join("a2", instance_id="i")
    assert (back.member_epoch, back.assignment, group.group.generation) == (1, {"0a": (0, 1, 2, 3)}, epoch)
    assert group.beat("a", 1, instance_id="i").code == GroupCode.FENCED_INSTANCE_ID


def test_a_static_member_that_stays_away_is_out_after_its_session() -> None:
    group = Consumers()
    group.join("a", instance_id="i")
    group.beat("a", -2, instance_id="i")
    assert group.join("b").assignment == {}
    group.wait(44_999)
    group.beat("b", 2)
    group.wait(1)
    assert group.beat("b", 2).assignment == {"0a": (0, 1, 2, 3)}


def test_a_pattern_matches_whole_names_and_new_topics() -> None:
    group = Consumers()
    assert group.join("a", topics=None, regex="o.*er").assignment == {"0b": (0, 1)}
    group.catalogue = {**CATALOGUE, "outer": CatalogueTopic("0c", 1)}
    group.take(group.group.topics_changed(group.catalogue, group.now_ms))
    assert group.beat("a", 1).assignment == {"0b": (0, 1), "0c": (0,)}
    group.catalogue = {"outer": CatalogueTopic("0d", 1)}
    group.take(group.group.topics_changed(group.catalogue, group.now_ms))
    asked = group.beat("a", 2)
    assert (asked.member_epoch, asked.assignment) == (2, {})
    assert group.beat("a", 2, {}).assignment == {"0d": (0,)}


def test_topics_that_nobody_reads_change_nothing() -> None:
    group = Consumers()
    group.join("a")
    group.take(group.group.topics_changed({**CATALOGUE, "more": CatalogueTopic("0e", 9)}, group.now_ms))
    assert (group.group.generation, group.writes) == (1, 1)


def test_most_members_choose_the_assignor() -> None:
    group = Consumers()
    group.join("a", assignor="range")
    assert group.group.describe().assignor == "range"
    group.join("b", assignor="uniform")
    group.join("c", assignor="uniform")
    assert group.group.describe().assignor == "uniform"


def test_commits_as_kafka_judges_them() -> None:
    group = Consumers()
    check = group.group.check_commit
    assert check("", -1) == NONE
    group.join("a")
    group.join("b")
    group.beat("a", 1)
    assert check("a", 1) == NONE
    assert check("", -1) == GroupCode.UNKNOWN_MEMBER_ID
    assert check("", -1, transactional=True) == NONE
    assert check("x", 1) == GroupCode.UNKNOWN_MEMBER_ID
    assert check("a", 1, version=8) == GroupCode.UNSUPPORTED_VERSION
    group.beat("a", 1, {"0a": (0, 1)})
    assert check("a", 1) == GroupCode.STALE_MEMBER_EPOCH
    assert group.group.check_partition_commit("a", 1, "0a", 0) == NONE
    assert group.group.check_partition_commit("a", 1, "0a", 3) == GroupCode.STALE_MEMBER_EPOCH
    assert group.group.check_partition_commit("b", 1, "0a", 3) == GroupCode.STALE_MEMBER_EPOCH
    assert group.group.check_fetch("a", 1) == GroupCode.STALE_MEMBER_EPOCH
    assert group.group.check_fetch("a", 2) == group.group.check_fetch(None, -1) == NONE
    assert group.group.check_fetch("x", 2) == GroupCode.UNKNOWN_MEMBER_ID


def test_only_a_group_without_members_is_deleted() -> None:
    group = Consumers()
    group.join("a")
    assert group.group.check_offset_delete("orders") == GroupCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert group.group.check_offset_delete("other") == NONE
    group.take(group.group.delete("early", group.now_ms))
    assert group.replies["early"].code == GroupCode.NON_EMPTY_GROUP
    group.beat("a", -1)
    group.take(group.group.delete("late", group.now_ms))
    assert group.replies["late"].code == NONE
    assert group.stored is not None
    assert group.stored.state == "Dead"
    assert group.join("a").code == GroupCode.COORDINATOR_NOT_AVAILABLE


def test_nothing_is_revealed_before_it_is_stored() -> None:  # G1
    group = Consumers()
    group.join("a")
    group.writes_wait = True
    group.take(group.group.heartbeat("join", join("b"), "", group.now_ms))
    group.take(group.group.heartbeat("beat", ConsumerHeartbeat("a", 1), "", group.now_ms))
    assert not {"join", "beat"} & set(group.replies)
    group.write()
    assert "join" in group.replies
    group.write()
    assert "beat" in group.replies


def test_a_conflict_refuses_all_who_wait_and_all_who_come() -> None:  # G3
    group = Consumers()
    group.writes_wait = True
    group.take(group.group.heartbeat("join", join("a"), "", group.now_ms))
    assert [(reply.ticket, reply.answer.code) for reply in group.group.abandon()] == [
        ("join", GroupCode.NOT_COORDINATOR)
    ]
    assert group.beat("a", 1).code == GroupCode.NOT_COORDINATOR
    assert group.group.tick(group.now_ms + 10**9).write is None


def test_another_coordinator_continues_with_fresh_timers() -> None:  # G4
    group = Consumers()
    group.join("a")
    group.join("b")
    group.beat("a", 1)
    writes = group.writes
    group.wait(REBALANCE_MS - 1)
    group.start()
    group.wait(REBALANCE_MS - 1)
    assert group.beat("a", 1, {"0a": (0, 1, 2, 3)}).code == NONE
    assert group.beat("b", 2).assignment is None
    assert group.writes == writes
    group.wait(1)
    assert group.beat("a", 1).code == GroupCode.UNKNOWN_MEMBER_ID, "its time to let go began anew, and ended"


def test_another_coordinator_sees_topics_that_changed_meanwhile() -> None:
    group = Consumers()
    group.join("a")
    group.catalogue = {"orders": CatalogueTopic("0a", 5)}
    group.start()
    answer = group.beat("a", 1)
    assert (answer.member_epoch, answer.assignment) == (2, {"0a": (0, 1, 2, 3, 4)})


def test_a_pattern_stands_for_what_its_client_may_describe_also_after_a_takeover() -> None:
    rights = {("User:a", "orders"), ("User:b", "orders"), ("User:b", "other")}
    group = Consumers(describes=lambda principal, _, topic: (principal, topic) in rights)
    joined = group.join("m", regex="o.*", topics=None, principal="User:a")
    assert joined.assignment == {"0a": (0, 1, 2, 3)}
    before = group.writes
    group.start()
    group.wait(0)
    assert group.writes == before, "the same rights leave the epoch as it is"
    rights.add(("User:a", "other"))
    group.take(group.group.topics_changed(CATALOGUE, group.now_ms))
    assert group.beat("m", joined.member_epoch, principal="User:a").assignment == {"0a": (0, 1, 2, 3), "0b": (0, 1)}


def test_another_client_of_a_member_gets_what_that_client_may_describe() -> None:
    group = Consumers(describes=lambda principal, _, topic: principal == "User:a" or topic == "orders")
    joined = group.join("m", regex="o.*", topics=None, principal="User:a")
    assert joined.assignment == {"0a": (0, 1, 2, 3), "0b": (0, 1)}
    assert group.beat("m", joined.member_epoch, principal="User:b").assignment == {"0a": (0, 1, 2, 3)}


def test_a_right_that_one_of_two_members_loses_moves_its_partitions_to_the_other() -> None:
    rights = {(who, topic) for who in ("User:a", "User:b") for topic in CATALOGUE}
    group = Consumers(describes=lambda principal, _, topic: (principal, topic) in rights)
    group.join("m", regex="o.*", topics=None, principal="User:a")
    group.join("n", regex="o.*", topics=None, principal="User:b")
    rights.remove(("User:a", "other"))
    group.take(group.group.topics_changed(CATALOGUE, group.now_ms))
    targets = {one.member_id: one.target for one in group.group.describe().members}
    assert "0b" not in targets["m"]
    assert targets["n"]["0b"] == (0, 1)
