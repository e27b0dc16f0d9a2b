from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from llog.errors import LlogError, MetadataUnavailable, MetadataUncertain, TopicNotFound
from llog.kafka import administration
from llog.kafka.administration import ADMIN_CHANGES_MAX, ADMIN_CHANGES_PER_REQUEST_MAX, Changes, audited
from llog.kafka.error_codes import ErrorCode, code_of
from tests.audit_lines import audit_lines
from tests.patience import until
from tests.unit.kafka.apis.calling import caller

LONG_MS = 60_000


class Gate:
    """Changes that wait until it opens."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.running = self.most = 0
        self.begun: list[int] = []

    def changes(self, count: int) -> dict[int, Callable[[], Awaitable[int]]]:
        return {number: lambda number=number: self._change(number) for number in range(count)}  # type: ignore[misc]

    async def _change(self, number: int) -> int:
        self.begun.append(number)
        self.running += 1
        self.most = max(self.most, self.running)
        await self.opened.wait()
        self.running -= 1
        return number * 10


async def test_every_change_has_its_own_outcome_in_the_order_of_the_request() -> None:
    async def fails() -> int:
        raise TopicNotFound("b", "no such topic")

    async def succeeds() -> int:
        return 7

    outcomes = await Changes().run({"b": fails, "a": succeeds}, LONG_MS)
    assert list(outcomes) == ["b", "a"]
    assert (type(outcomes["b"]), outcomes["a"]) == (TopicNotFound, 7)


async def test_no_changes_are_done_at_once() -> None:
    assert await Changes().run({}, LONG_MS) == {}


async def test_one_request_has_a_share_of_the_changes_at_once() -> None:
    gate, changes = Gate(), Changes()
    asking = [asyncio.create_task(changes.run(gate.changes(50), LONG_MS)) for _ in range(2)]
    await until(lambda: gate.running == 2 * ADMIN_CHANGES_PER_REQUEST_MAX, "changes of both requests")
    gate.opened.set()
    for outcomes in await asyncio.gather(*asking):
        assert outcomes == {number: number * 10 for number in range(50)}
    assert gate.most <= ADMIN_CHANGES_MAX


async def test_all_requests_together_are_bounded() -> None:
    gate, changes = Gate(), Changes()
    asking = [asyncio.create_task(changes.run(gate.changes(20), LONG_MS)) for _ in range(5)]
    await until(lambda: gate.running == ADMIN_CHANGES_MAX, "as many changes as may be")
    gate.opened.set()
    await asyncio.gather(*asking)
    assert gate.most == ADMIN_CHANGES_MAX


async def test_a_request_without_a_timeout_waits_a_little_for_its_changes() -> None:
    async def succeeds() -> int:
        await asyncio.sleep(0.01)
        return 7

    assert set((await Changes().run(dict.fromkeys(range(50), succeeds), 0)).values()) == {7}


@pytest.mark.parametrize("timeout_ms", [0, -1, 20])
async def test_after_the_timeout_begun_changes_go_on_and_others_never_begin(
    timeout_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(administration, "ADMIN_WAIT_MS_MIN", 10)
    gate, changes = Gate(), Changes()
    outcomes = await changes.run(gate.changes(50), timeout_ms)
    assert len(outcomes) == 50
    assert {code_of(one) for one in outcomes.values() if isinstance(one, LlogError)} == {ErrorCode.REQUEST_TIMED_OUT}
    gate.opened.set()
    await asyncio.gather(*changes.going_on(), return_exceptions=True)
    assert gate.running == 0
    assert len(gate.begun) == ADMIN_CHANGES_PER_REQUEST_MAX
    assert changes.going_on() == []


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (TopicNotFound("t", "no such topic"), "refused"),
        (MetadataUnavailable("memory", "put", "no answer"), "failed"),
        (MetadataUncertain("memory", "put", "no answer"), "uncertain"),
    ],
)
async def test_a_change_that_did_not_happen_is_audited_with_its_outcome(
    error: LlogError, outcome: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with caller() as kafka:
        call = kafka.call()
        with pytest.raises(type(error)), audited(call, "topic.alter", "t", "t"):
            raise error
        with pytest.raises(type(error)), audited(call, "topic.alter", "t", "t", dry_run=True):
            raise error
    [line] = audit_lines(caplog)
    assert (line["outcome"], line["object"]) == (outcome, "t")
