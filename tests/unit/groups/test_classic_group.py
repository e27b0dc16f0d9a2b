"""The classic protocol, API by API, as Kafka answers."""

from __future__ import annotations

import pytest

from llog.groups import ClassicGroup, GroupCode
from llog.groups.classic.messages import HeartbeatRequest, JoinRequest, LeavingMember, SyncRequest
from tests.unit.groups.classic_clients import REBALANCE_MS, SESSION_MS, SETTINGS, Classic, join_request, protocols

NONE = GroupCode.NONE


def test_a_new_dynamic_member_first_gets_its_id() -> None:
    group = Classic()
    answer = group.joined(group.join(join_request()))
    assert answer.code == GroupCode.MEMBER_ID_REQUIRED
    assert answer.member_id == "c-1"
    assert group.stored is None


def test_a_member_of_an_old_version_joins_at_once() -> None:
    group = Classic()
    ticket = group.join(join_request(needs_member_id=False))
    group.wait(100)
    answer = group.joined(ticket)
    assert (answer.code, answer.generation, answer.leader) == (NONE, 1, answer.member_id)


def test_an_id_that_is_not_used_in_time_is_forgotten() -> None:
    group = Classic()
    asked = group.joined(group.join(join_request()))
    group.wait(SESSION_MS)
    assert group.joined(group.join(join_request(asked.member_id))).code == GroupCode.UNKNOWN_MEMBER_ID
    assert group.group.disposable


def test_members_that_join_together_form_one_generation() -> None:
    group = Classic()
    joined = group.stable(3)
    assert {answer.generation for answer in joined} == {1}
    [leader] = [answer for answer in joined if answer.members]
    assert {member.member_id for member in leader.members} == {answer.member_id for answer in joined}
    assert all(answer.leader == leader.member_id for answer in joined)


def test_the_first_rebalance_waits_again_for_each_new_member() -> None:
    group = Classic()
    first = group.new_member()
    group.wait(80)
    second = group.new_member()
    group.wait(60)
    assert first not in group.replies
    group.wait(60)
    assert group.joined(first).generation == group.joined(second).generation == 1


def test_followers_wait_for_the_assignments_of_the_leader() -> None:
    group = Classic()
    tickets = [group.new_member() for _ in range(2)]
    group.wait(250)
    leader, follower = (group.joined(ticket) for ticket in tickets)
    early = group.sync(follower)
    assert early not in group.replies
    late = group.sync(leader, (follower.member_id, b"theirs"))
    assert group.synced(early).assignment == b"theirs"
    assert group.synced(late).assignment == b""
    assert group.synced(group.sync(follower)).assignment == b"theirs"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"protocol_type": "connect"}, GroupCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": protocols("other")}, GroupCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, GroupCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"session_timeout_ms": 5_999}, GroupCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, GroupCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "stranger"}, GroupCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger", "instance_id": "i"}, GroupCode.UNKNOWN_MEMBER_ID),
        ({"protocols": protocols("range", metadata=b"x" * 400_000)}, GroupCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_joins_that_kafka_refuses(change: dict[str, object], code: GroupCode) -> None:
    group = Classic()
    group.stable(1)
    assert group.joined(group.join(join_request(**change))).code == code


@pytest.mark.parametrize("change", [{"protocol_type": ""}, {"protocols": ()}])
def test_an_empty_group_refuses_a_member_without_a_protocol(change: dict[str, object]) -> None:
    group = Classic()
    assert group.joined(group.join(join_request(**change))).code == GroupCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_full_group_refuses_another_member() -> None:
    group = Classic()
    group.stable(6)
    assert group.joined(group.join(join_request())).code == GroupCode.GROUP_MAX_SIZE_REACHED


def test_ids_given_out_are_limited_too() -> None:
    group = Classic()
    codes = [group.joined(group.join(join_request())).code for _ in range(7)]
    assert codes == [GroupCode.MEMBER_ID_REQUIRED] * 6 + [GroupCode.GROUP_MAX_SIZE_REACHED]


def test_the_protocol_with_most_votes_that_all_members_offer_wins() -> None:
    group = Classic()
    tickets = [
        group.new_member(protocols=protocols(*names))
        for names in (("range", "sticky"), ("only-here", "sticky", "range"), ("sticky", "range"))
    ]
    group.wait(250)
    assert {group.joined(ticket).protocol for ticket in tickets} == {"sticky"}


def test_a_joining_member_makes_the_others_join_again() -> None:
    group = Classic()
    [first] = group.stable(1)
    ticket = group.new_member()
    assert group.beat(first.member_id, 1) == GroupCode.REBALANCE_IN_PROGRESS
    assert ticket not in group.replies
    again = group.join(join_request(first.member_id))
    assert group.joined(again).generation == group.joined(ticket).generation == 2
    assert group.joined(again).leader == first.member_id


def test_members_that_do_not_join_in_time_are_out() -> None:
    group = Classic()
    leader, follower = group.stable(2)
    again = group.join(join_request(follower.member_id, protocols=protocols("range", metadata=b"new")))
    for _ in range(4):
        group.beat(leader.member_id, 1)
        group.wait(REBALANCE_MS // 4)
    assert group.joined(again).leader == follower.member_id
    assert group.beat(leader.member_id, 1) == GroupCode.UNKNOWN_MEMBER_ID


def test_a_follower_whose_answer_was_lost_gets_the_generation_again() -> None:
    group = Classic()
    leader, follower = group.stable(2)
    assert group.joined(group.join(join_request(follower.member_id))) == follower
    assert group.group.state == "Stable"
    group.join(join_request(leader.member_id))
    assert group.group.state == "PreparingRebalance"


def test_a_member_that_joins_twice_is_answered_on_both_requests() -> None:
    group = Classic()
    _, follower = group.stable(2)
    changed = join_request(follower.member_id, protocols=protocols("range", metadata=b"new"))
    first, second = group.join(changed), group.join(changed)
    assert group.joined(first).code == GroupCode.REBALANCE_IN_PROGRESS
    assert second not in group.replies


# -- sync, heartbeat, leave ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"member_id": "stranger"}, GroupCode.UNKNOWN_MEMBER_ID),
        ({"generation": 0}, GroupCode.ILLEGAL_GENERATION),
        ({"generation": 2}, GroupCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, GroupCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol": "sticky"}, GroupCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"instance_id": "i"}, GroupCode.UNKNOWN_MEMBER_ID),
        ({"protocol": "range", "protocol_type": "consumer"}, NONE),
        ({}, NONE),
    ],
)
def test_syncs_as_kafka_judges_them(change: dict[str, object], code: GroupCode) -> None:
    group = Classic()
    [member] = group.stable(1)
    request = SyncRequest(member.member_id, 1)._replace(**change)  # type: ignore[arg-type]
    group.take(group.group.sync("t", request, group.now_ms))
    assert group.replies["t"].code == code


def test_a_sync_during_a_rebalance_is_refused() -> None:
    group = Classic()
    [member] = group.stable(1)
    group.new_member()
    assert group.synced(group.sync(member)).code == GroupCode.REBALANCE_IN_PROGRESS


def test_waiting_syncs_are_refused_when_a_member_joins() -> None:
    group = Classic()
    tickets = [group.new_member() for _ in range(2)]
    group.wait(250)
    _, follower = (group.joined(ticket) for ticket in tickets)
    waiting = group.sync(follower)
    group.new_member()
    assert group.synced(waiting).code == GroupCode.REBALANCE_IN_PROGRESS


def test_members_that_do_not_sync_in_time_are_out() -> None:
    group = Classic()
    tickets = [group.new_member() for _ in range(2)]
    group.wait(250)
    leader, follower = (group.joined(ticket) for ticket in tickets)
    group.sync(leader)
    for _ in range(5):
        group.beat(leader.member_id, 1)
        group.beat(follower.member_id, 1)
        group.wait(REBALANCE_MS // 5)
    assert group.beat(follower.member_id, 1) == GroupCode.UNKNOWN_MEMBER_ID
    assert group.beat(leader.member_id, 1) == GroupCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("member_id", "generation", "instance_id", "code"),
    [
        ("", 1, None, GroupCode.UNKNOWN_MEMBER_ID),
        ("stranger", 1, None, GroupCode.UNKNOWN_MEMBER_ID),
        ("right", 0, None, GroupCode.ILLEGAL_GENERATION),
        ("right", 1, "i", GroupCode.UNKNOWN_MEMBER_ID),
        ("right", 1, None, NONE),
    ],
)
def test_heartbeats_as_kafka_judges_them(
    member_id: str, generation: int, instance_id: str | None, code: GroupCode
) -> None:
    group = Classic()
    [member] = group.stable(1)
    assert group.beat(member_id.replace("right", member.member_id), generation, instance_id) == code


def test_a_silent_member_is_out_after_its_session_and_the_others_rebalance() -> None:
    group = Classic()
    first, second = group.stable(2)
    group.wait(SESSION_MS - 1)
    assert group.beat(first.member_id, 1) == NONE
    group.wait(1)
    assert group.beat(second.member_id, 1) == GroupCode.UNKNOWN_MEMBER_ID
    assert group.beat(first.member_id, 1) == GroupCode.REBALANCE_IN_PROGRESS


def test_a_member_with_heartbeats_stays() -> None:
    group = Classic()
    [member] = group.stable(1)
    for _ in range(50):
        group.wait(SESSION_MS - 1)
        assert group.beat(member.member_id, 1) == NONE


def test_a_batch_of_members_leaves() -> None:
    group = Classic()
    first, second, third = group.stable(3)
    left = group.leave((first.member_id, None), ("stranger", None), (second.member_id, None), ("", "nobody"))
    unknown = GroupCode.UNKNOWN_MEMBER_ID
    assert [member.code for member in left.members] == [NONE, unknown, NONE, unknown]
    assert [member.member_id for member in group.stored.classic] == [third.member_id]  # type: ignore[union-attr]
    assert group.joined(group.join(join_request(third.member_id))).generation == 2


def test_the_last_member_leaves_an_empty_group_with_the_next_generation() -> None:
    group = Classic()
    [member] = group.stable(1)
    group.leave((member.member_id, None))
    assert (group.group.state, group.group.generation) == ("Empty", 2)
    assert group.stored is not None
    assert (group.stored.state, group.stored.generation, group.stored.empty_since_ms) == ("Empty", 2, group.now_ms)


def test_a_client_that_leaves_before_it_joined_disturbs_nobody() -> None:
    group = Classic()
    group.stable(1)
    asked = group.joined(group.join(join_request()))
    assert group.leave((asked.member_id, None)).members[0].code == NONE
    assert group.group.state == "Stable"


# -- static members ---------------------------------------------------------------------------------------------------


def static_pair(group: Classic) -> list[str]:
    tickets = [group.join(join_request(instance_id=name)) for name in ("a", "b")]
    group.wait(250)
    joined = [group.joined(ticket) for ticket in tickets]
    assignments = tuple((answer.member_id, answer.member_id.encode()) for answer in joined)
    for answer, name in zip(joined, "ab", strict=True):
        group.sync(answer, *(assignments if answer.members else ()), instance_id=name)
    return [answer.member_id for answer in joined]


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("skips", [True, False])
def test_a_static_member_returns_without_a_rebalance(name: str, skips: bool) -> None:
    group = Classic()
    ids = static_pair(group)
    old = ids["ab".index(name)]
    back = group.joined(group.join(join_request(instance_id=name, skips_assignment=skips)))
    led = name == "a"
    assert (back.code, back.generation, group.group.state) == (NONE, 1, "Stable")
    assert back.skip_assignment == (skips and led)
    assert len(back.members) == (2 if skips and led else 0)
    assert (back.leader == back.member_id) == (skips and led)
    assert group.synced(group.sync(back, instance_id=name)).assignment == old.encode()
    assert group.beat(old, 1, name) == GroupCode.FENCED_INSTANCE_ID
    assert group.beat(old, 1) == GroupCode.UNKNOWN_MEMBER_ID
    assert {member.member_id for member in group.stored.classic} >= {back.member_id}  # type: ignore[union-attr]


def test_a_static_member_that_changes_the_chosen_protocol_causes_a_rebalance() -> None:
    group = Classic()
    tickets = [group.join(join_request(instance_id="a", protocols=protocols("range", "sticky")))]
    group.wait(100)
    group.sync_all([group.joined(tickets[0])])
    ticket = group.join(join_request(instance_id="a", protocols=protocols("sticky", "range")))
    assert (group.joined(ticket).generation, group.joined(ticket).protocol) == (2, "sticky")


def test_a_static_member_outlives_the_rebalance_timeout_but_not_its_session() -> None:
    group = Classic()
    a, b = static_pair(group)
    ticket = group.join(join_request(a, instance_id="a", session_timeout_ms=60_000))
    group.beat(b, 1, "b")
    group.wait(SESSION_MS)
    assert [member.member_id for member in group.joined(ticket).members] == [a]


def test_a_waiting_static_member_is_fenced_by_its_successor() -> None:
    group = Classic()
    static_pair(group)
    group.new_member()
    first = group.join(join_request(instance_id="a"))
    second = group.join(join_request(instance_id="a"))
    assert group.joined(first).code == GroupCode.FENCED_INSTANCE_ID
    assert second not in group.replies


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    group = Classic()
    a, _ = static_pair(group)
    assert group.leave(("", "a"), ("wrong", "b")).members[0].code == NONE
    assert group.beat(a, 1, "a") == GroupCode.UNKNOWN_MEMBER_ID
    assert group.leave(("wrong", "b")).members[0].code == GroupCode.FENCED_INSTANCE_ID


# -- commits and administration ---------------------------------------------------------------------------------------


def commit(group: Classic, member_id: str = "", generation: int = -1, instance_id: str | None = None) -> GroupCode:
    return group.group.check_commit(member_id, instance_id, generation, group.now_ms)


def test_commits_as_kafka_judges_them() -> None:
    group = Classic()
    assert commit(group) == NONE
    assert commit(group, "stranger", 3) == GroupCode.UNKNOWN_MEMBER_ID
    tickets = [group.new_member() for _ in range(2)]
    group.wait(250)
    joined = [group.joined(ticket) for ticket in tickets]
    member_id = joined[0].member_id
    assert commit(group, member_id, 1) == GroupCode.REBALANCE_IN_PROGRESS
    group.sync_all(joined)
    assert commit(group, member_id, 1) == NONE
    assert commit(group) == GroupCode.UNKNOWN_MEMBER_ID
    assert commit(group, member_id, 0) == GroupCode.ILLEGAL_GENERATION
    assert commit(group, member_id, -1) == GroupCode.ILLEGAL_GENERATION
    assert commit(group, member_id, 1, "i") == GroupCode.UNKNOWN_MEMBER_ID
    assert group.group.check_commit("", None, -1, group.now_ms, transactional=True) == NONE
    group.new_member()
    assert commit(group, member_id, 1) == NONE, "the old generation commits before it joins again"


def test_a_commit_keeps_the_session() -> None:
    group = Classic()
    [member] = group.stable(1)
    for _ in range(5):
        group.wait(SESSION_MS - 1)
        assert commit(group, member.member_id, 1) == NONE


def test_only_a_group_without_members_is_deleted() -> None:
    group = Classic()
    [member] = group.stable(1)
    group.take(group.group.delete("early", group.now_ms))
    assert group.replies["early"].code == GroupCode.NON_EMPTY_GROUP
    group.leave((member.member_id, None))
    group.writes_wait = True
    group.take(group.group.delete("late", group.now_ms))
    assert "late" not in group.replies
    assert group.under_way is not None
    assert group.under_way.state == "Dead"
    group.write()
    assert group.replies["late"].code == NONE
    assert group.joined(group.join(join_request())).code == GroupCode.COORDINATOR_NOT_AVAILABLE
    assert group.group.check_delete() == GroupCode.GROUP_ID_NOT_FOUND


def subscription(*topics: str) -> bytes:
    names = b"".join(len(name).to_bytes(2, "big") + name.encode() for name in topics)
    return (1).to_bytes(2, "big") + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"protocols": protocols("range", metadata=subscription("read"))}, GroupCode.GROUP_SUBSCRIBED_TO_TOPIC),
        ({"protocols": protocols("range", metadata=subscription("other"))}, NONE),
        ({"protocols": protocols("range", metadata=b"\0\1\0\0\0\1")}, GroupCode.GROUP_SUBSCRIBED_TO_TOPIC),
        ({"protocol_type": "connect"}, GroupCode.NON_EMPTY_GROUP),
    ],
)
def test_positions_of_topics_that_are_read_stay(changes: dict[str, object], code: GroupCode) -> None:
    group = Classic()
    assert group.group.check_offset_delete("read") == NONE
    group.stable(2, **changes)
    assert group.group.check_offset_delete("read") == code


def test_a_group_is_described_with_metadata_only_while_it_is_stable() -> None:
    group = Classic()
    [member] = group.stable(1)
    described = group.group.describe()
    assert (described.state, described.protocol, described.members[0].metadata) == ("Stable", "range", b"m")
    assert described.members[0].assignment == member.member_id.encode()
    group.new_member()
    described = group.group.describe()
    assert (described.state, described.protocol) == ("PreparingRebalance", "")
    assert {(m.metadata, m.assignment) for m in described.members} == {(b"", b"")}
    assert group.group.listed() == ("g", "consumer", "PreparingRebalance", "classic")


# -- persistence ------------------------------------------------------------------------------------------------------


def test_no_generation_is_revealed_before_it_is_stored() -> None:  # G1
    group = Classic(writes_wait=True)
    ticket = group.new_member()
    group.wait(250)
    assert ticket not in group.replies
    group.write()
    joined = group.joined(ticket)
    synced = group.sync(joined, (joined.member_id, b"all"))
    assert synced not in group.replies
    group.write()
    assert group.synced(synced).assignment == b"all"


def test_changes_during_a_write_form_one_next_write() -> None:  # G2
    group = Classic()
    first, second, third = group.stable(3)
    group.writes_wait = True
    edition = group.stored.edition  # type: ignore[union-attr]
    for number, member in enumerate((first, second, third)):
        group.take(group.group.leave(f"leave {number}", [LeavingMember(member.member_id)], group.now_ms))
    assert not {f"leave {number}" for number in range(3)} & set(group.replies)
    group.write()
    assert "leave 0" in group.replies
    assert "leave 1" not in group.replies
    group.write()
    assert {"leave 1", "leave 2"} <= set(group.replies)
    assert group.stored is not None
    assert (group.stored.edition, group.stored.classic) == (edition + 2, ())


def test_a_conflict_refuses_all_who_wait_and_all_who_come() -> None:  # G3
    group = Classic(writes_wait=True)
    parked = group.new_member()
    group.wait(250)
    other = group.new_member()
    refused = {reply.ticket: reply.answer.code for reply in group.group.abandon()}
    assert refused == {parked: GroupCode.NOT_COORDINATOR, other: GroupCode.NOT_COORDINATOR}
    step = group.group.heartbeat("t", HeartbeatRequest("m", 1), group.now_ms)
    assert (step.replies[0].answer.code, step.write) == (GroupCode.NOT_COORDINATOR, None)
    assert group.group.tick(group.now_ms + 10**9).write is None


def test_another_coordinator_continues_the_generation_with_fresh_sessions() -> None:  # G4
    group = Classic()
    joined = group.stable(2)
    writes = len(group.heads)
    group.wait(SESSION_MS - 1)
    group.crash()
    group.wait(SESSION_MS - 1)
    assert [group.beat(member.member_id, 1) for member in joined] == [NONE, NONE]
    assert group.synced(group.sync(joined[1])).assignment == joined[1].member_id.encode()
    assert commit(group, joined[0].member_id, 1) == NONE
    assert len(group.heads) == writes
    assert [group.group.describe().members[0].member_id, group.group.state] == [joined[0].member_id, "Stable"]


def test_a_generation_whose_leader_has_not_assigned_goes_on_with_another_coordinator() -> None:  # G4
    group = Classic()
    tickets = [group.new_member() for _ in range(2)]
    group.wait(250)
    joined = [group.joined(ticket) for ticket in tickets]
    group.crash()
    again = [group.joined(group.join(join_request(answer.member_id))) for answer in joined]
    assert again == joined
    assert [answer.code for answer in group.sync_all(again)] == [NONE, NONE]


def test_a_rebalance_after_a_leave_goes_on_with_another_coordinator() -> None:
    group = Classic()
    first, second = group.stable(2)
    group.leave((first.member_id, None))
    group.crash()
    assert group.beat(second.member_id, 1) == GroupCode.REBALANCE_IN_PROGRESS
    assert group.joined(group.join(join_request(second.member_id))).generation == 2


def test_an_unanswered_new_member_is_not_stored() -> None:
    group = Classic()
    first, second = group.stable(2)
    group.new_member()
    group.leave((first.member_id, None))
    assert [member.member_id for member in group.stored.classic] == [second.member_id]  # type: ignore[union-attr]


def test_heartbeats_write_nothing_and_never_wait() -> None:
    group = Classic()
    first, second = group.stable(2)
    group.writes_wait = True
    group.take(group.group.leave("leave", [LeavingMember(second.member_id)], group.now_ms))
    assert group.beat(first.member_id, 1) == GroupCode.REBALANCE_IN_PROGRESS


def test_an_answer_that_was_held_back_begins_a_session() -> None:  # G7
    group = Classic(writes_wait=True)
    ticket = group.new_member()
    group.wait(250)
    group.wait(SESSION_MS * 3)
    group.write()
    joined = group.joined(ticket)
    group.wait(SESSION_MS - 1)
    assert group.beat(joined.member_id, joined.generation) == NONE


def test_an_empty_group_of_the_other_type_keeps_its_generation() -> None:  # G5
    group = Classic()
    [member] = group.stable(1)
    group.leave((member.member_id, None))
    assert group.stored is not None
    machine = ClassicGroup("g", "w", 0, head=group.stored, settings=SETTINGS)
    assert machine.generation == 2
    ticket = machine.join("t", JoinRequest("connect", protocols("v1"), SESSION_MS, 1_000), "c-9", 0)
    assert ticket.replies[0].answer.code == GroupCode.MEMBER_ID_REQUIRED
