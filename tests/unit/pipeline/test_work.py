"""Tasks by their place, in this process and through bytes."""

from __future__ import annotations

import msgspec
import pytest

from llog.errors import ObjectNotFound
from llog.pipeline.runtime.tasks import (
    LocalTasks,
    Task,
    TaskFailed,
    TaskTools,
    decoded_outcome,
    encoded_item,
    perform,
)
from llog.stores.objects.port import ObjectStore


class Number(msgspec.Struct, frozen=True):
    value: int
    name: str = ""


class Doubled(msgspec.Struct, frozen=True):
    value: int
    parts: tuple[str, ...] = ()


async def double(tools: TaskTools, item: Number) -> Doubled:
    if item.value < 0:
        raise ObjectNotFound("file:///nowhere", item.name)
    if item.value == 0:
        raise ZeroDivisionError
    return Doubled(2 * item.value, (item.name,))


async def nothing(_: str) -> ObjectStore:
    raise AssertionError("not asked for")


DOUBLE = Task(f"{__name__}:double", Number, Doubled)
TOOLS = TaskTools(find_object=nothing, open_store=nothing)  # type: ignore[arg-type]


async def test_outcomes_come_in_the_order_of_items_and_a_foreseen_error_is_one_of_them() -> None:
    told: dict[int, Doubled | TaskFailed] = {}
    items = [Number(3, "a"), Number(-1, "gone"), Number(5)]
    outcomes = await LocalTasks(TOOLS).run(DOUBLE, items, told.__setitem__)
    assert outcomes == [told[0], told[1], told[2]]
    assert outcomes[0] == Doubled(6, ("a",))
    assert isinstance(outcomes[1], TaskFailed)
    assert (outcomes[1].error_type, outcomes[1].retriable) == ("ObjectNotFound", ObjectNotFound("x", "y").retriable)
    assert "gone" in outcomes[1].error


async def test_what_nobody_foresaw_fails_the_run() -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await LocalTasks(TOOLS).run(DOUBLE, [Number(1), Number(0)])
    assert raised.group_contains(ZeroDivisionError)


@pytest.mark.parametrize("item", [Number(7, "ä"), Number(-1, "gone")])
async def test_an_item_comes_to_the_same_through_bytes(item: Number) -> None:
    [here] = await LocalTasks(TOOLS).run(DOUBLE, [item])
    assert decoded_outcome(DOUBLE, await perform(DOUBLE, TOOLS, encoded_item(item))) == here
