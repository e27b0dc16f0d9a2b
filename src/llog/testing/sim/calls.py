"""A store call as a value: its actor, its effect, and its words in a trace.

Everything that can go wrong happens between request and effect; as a value, a call can wait, be held, get lost or
arrive late. `perform` takes effect in one step and returns the answer; an answer that is an exception is raised to the
caller. A call carries all it needs, so that it can be performed after its caller is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

from llog.errors import StoreError
from llog.testing.sim.faults import WRITE_FAULTS, Moment, SimFault

if TYPE_CHECKING:
    from llog.testing.sim.actor import Actor
from typing import Final

SIM_TRACE_VALUE_CHARS_MAX: Final = 120

T = TypeVar("T")


class Call:
    """One request of one actor. Subclasses say what it does."""

    __slots__ = ("abandoned", "actor", "future", "give_up", "number", "untouchable")

    operation: str
    faults: frozenset[SimFault] = WRITE_FAULTS
    writes: bool = True
    """It can change the store: without an answer it is uncertain whether it did."""
    of_one_object: bool = False
    """It writes or reads one object (see `Scheduler.objects_at_once`)."""
    breaks_objects_at_once: bool = False

    future: asyncio.Future[Any]
    give_up: Callable[[Call], None]

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.number = 0
        self.abandoned = False
        """The caller stopped waiting for the answer."""
        self.untouchable = False
        """It had its fault and gets no other."""

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            return (yield from self.future)
        except asyncio.CancelledError:
            self.give_up(self)
            raise

    # -- what it does -------------------------------------------------------------------------------------------------
    def perform(self) -> Any:
        raise AssertionError(f"{type(self).__name__} does not say what it does")

    def perform_as_of(self, moment: Moment) -> Any:
        """Answer as the store would have at that moment; for reads that may be stale."""
        raise AssertionError(f"{type(self).__name__} cannot be stale")

    def perform_missing(self) -> Any:
        """Answer as if the change had been missed; for notices."""
        raise AssertionError(f"{type(self).__name__} cannot be missed")

    def old_answers(self, most: int) -> list[Moment]:
        """Moments before the changes that this read would see, the newest first."""
        return []

    def uncertain(self) -> StoreError:
        raise AssertionError(f"{type(self).__name__} cannot be uncertain")

    def unavailable(self) -> StoreError:
        raise AssertionError(f"{type(self).__name__} cannot be unavailable")

    def commutes_with(self, other: Call) -> bool:
        """Does it make no difference to the store, nor to either's answer, which of them comes first?"""
        return False

    def content(self) -> int:
        """A hash of what it would do."""
        return hash(tuple(self.parts()))

    # -- words --------------------------------------------------------------------------------------------------------
    def parts(self) -> Sequence[tuple[str, str]]:
        """Operation and path of each thing it touches."""
        return ()

    def words(self) -> str:
        """What the actor does, with a verb in front: "gets a/b"."""
        return " and ".join(f"{operation}s {path}" for operation, path in self.parts())

    def answer_words(self, answer: Any) -> str:
        return answer_words(answer)

    def matches(self, operation: str, path: str) -> bool:
        """Whether it does that (`*` = anything) to a path that the glob fits."""
        return any(
            fnmatchcase(part_operation, operation) and fnmatchcase(part_path, path)
            for part_operation, part_path in self.parts()
        )


async def answers_of(calls: Sequence[Call]) -> list[Any]:
    """The answer of each call, in order; an error is an answer too. Cancelling one cancels all."""
    answers: list[Any] = []
    for position, call in enumerate(calls):
        try:
            answers.append(await call)
        except asyncio.CancelledError:
            for other in calls[position + 1 :]:
                other.give_up(other)
            raise
        except Exception as error:
            answers.append(error)
    return answers


def answer_words(answer: Any) -> str:
    if isinstance(answer, StoreError):
        return f"refused: {answer.reason or type(answer).__name__}"
    if isinstance(answer, BaseException):
        return f"{type(answer).__name__}: {answer}"
    return "done" if answer is None else str(answer)


def excerpt(value: bytes) -> str:
    text = value[: SIM_TRACE_VALUE_CHARS_MAX * 4].decode("utf-8", "backslashreplace")
    return text if len(text) <= SIM_TRACE_VALUE_CHARS_MAX else text[:SIM_TRACE_VALUE_CHARS_MAX] + "…"


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits, as those of the memory stores."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise AssertionError(f"{coroutine!r} waited")


def digest(value: Any) -> int:
    """A hash of an answer or event: equal values, equal digests."""
    if isinstance(value, BaseException):
        return hash((type(value).__name__, str(value)))
    if isinstance(value, list):
        return hash(tuple(map(digest, value)))
    if isinstance(value, (bytearray, memoryview)):
        return hash(bytes(value))
    try:
        return hash(value)
    except TypeError:
        return hash(repr(value))
