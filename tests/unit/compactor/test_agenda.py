"""A log is due once, at the earliest of the instants it was given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llog.compactor.agenda import AGENDA_OUTDATED_MAX, Agenda
from llog.log.keys import Log

A, B, C = (Log(topic, 0) for topic in "abc")


def test_the_earliest_instant_of_a_log_counts_and_a_taken_log_has_none() -> None:
    agenda = Agenda()
    assert agenda.add(A, 50)
    assert not agenda.add(A, 60)
    assert agenda.add(A, 10), "it is the first that is due"
    assert not agenda.add(B, 20)
    assert (agenda.next_ms(), agenda.take(9)) == (10, [])
    assert (agenda.take(20), agenda.next_ms()) == ([A, B], None)
    assert agenda.take(1_000) == [], "the later instants of a log are void"


def test_others_are_forgotten_and_a_clock_that_was_set_back_makes_all_due() -> None:
    agenda = Agenda()
    for number, log in enumerate((A, B, C)):
        agenda.add(log, 1_000 + number)
    agenda.keep({A, C})
    agenda.make_due(5)
    assert agenda.take(5) == [A, C]


def test_a_log_that_is_due_early_again_and_again_leaves_no_heap_of_late_instants() -> None:
    agenda = Agenda()
    for number in range(10_000):
        agenda.add(A, 10**9 + number)
        agenda.add(A, number)
        assert agenda.take(number) == [A]
    assert len(agenda._heap) <= AGENDA_OUTDATED_MAX + 2


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([A, B, C]), st.integers(0, 30)),
        st.integers(0, 30),
    ),
    max_size=60,
)


@given(steps)
def test_it_behaves_like_a_dictionary_of_instants(some: list[tuple[Log, int] | int]) -> None:
    agenda, model = Agenda(), dict[Log, int]()
    for step in some:
        if isinstance(step, int):
            due = {log for log, due_ms in model.items() if due_ms <= step}
            assert set(agenda.take(step)) == due
            model = {log: due_ms for log, due_ms in model.items() if log not in due}
        else:
            log, due_ms = step
            agenda.add(log, due_ms)
            model[log] = min(due_ms, model.get(log, due_ms))
        assert agenda.next_ms() == min(model.values(), default=None)
        assert len(agenda) == len(model)
