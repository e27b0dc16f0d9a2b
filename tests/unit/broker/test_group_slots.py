from __future__ import annotations

from llog.broker.groups.slots import CLAIM_STEP_MS, HAND_OVER_AFTER_MS, Claim, SlotWaits
from llog.broker.rendezvous import ranked

NODES = [1, 2, 3]
[FIRST, SECOND, THIRD] = ranked(NODES, "group coordinators", 0)


def plan(waits: SlotWaits, own: int, now_ms: int, *, claims: dict[int, Claim] | None = None, held: bool = False) -> str:
    found = waits.plan(claims or {}, [0] if held else [], "own", own, NODES, now_ms)
    return "".join(name for name, slots in found._asdict().items() if slots)


def test_a_free_slot_goes_to_the_node_that_ranks_first_and_later_to_the_next() -> None:
    waits = {node: SlotWaits(1) for node in NODES}
    assert {node: plan(waits[node], node, 0) for node in NODES} == {FIRST: "take", SECOND: "", THIRD: ""}
    assert plan(waits[SECOND], SECOND, CLAIM_STEP_MS) == "take"
    assert plan(waits[THIRD], THIRD, CLAIM_STEP_MS) == ""
    assert plan(waits[THIRD], THIRD, 2 * CLAIM_STEP_MS) == "take"


def test_a_slot_that_is_taken_meanwhile_is_waited_for_anew() -> None:
    waits = SlotWaits(1)
    assert plan(waits, SECOND, 0) == ""
    assert plan(waits, SECOND, CLAIM_STEP_MS, claims={0: Claim(FIRST, "other", 1)}) == ""
    assert plan(waits, SECOND, CLAIM_STEP_MS + 1) == ""


def test_a_holder_gives_a_slot_back_when_another_node_ranked_first_for_a_while() -> None:
    waits = SlotWaits(1)
    claims = {0: Claim(SECOND, "own", 1)}
    assert plan(waits, SECOND, 0, claims=claims, held=True) == ""
    assert plan(waits, SECOND, HAND_OVER_AFTER_MS, claims=claims, held=True) == "give_back"
    assert plan(SlotWaits(1), FIRST, HAND_OVER_AFTER_MS, claims=claims, held=True) == ""


def test_a_claim_of_the_own_session_that_no_answer_made_is_removed() -> None:
    assert plan(SlotWaits(1), FIRST, 0, claims={0: Claim(FIRST, "own", 1)}) == "remove"


def test_a_draining_node_gives_back_at_once_and_takes_nothing() -> None:
    others = [node for node in NODES if node != FIRST]
    held = SlotWaits(1).plan({0: Claim(FIRST, "own", 1)}, [0], "own", FIRST, others, 0)
    assert held.give_back == [0]
    assert SlotWaits(1).plan({}, [], "own", FIRST, others, 100_000).take == []
