"""Bounded retry with exponential back-off and full jitter.

Time, sleep and randomness come in as arguments, because the log also runs under simulation. The loop itself stays with
the caller, which knows what to decide again in each round:

    async for round_number in Rounds(ROUNDS_MAX, pause):
        try:
            return await attempt(strict=round_number > 0)
        except VersionConflict:
            continue
    raise Busy(...)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

__all__ = ["Backoff", "RandomBits", "Rounds", "Sleep"]

RandomBits = Callable[[int], int]
"""An integer of that many random bits, as `random.getrandbits` returns it."""
Sleep = Callable[[float], Awaitable[object]]
"""Wait for that many seconds."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next attempt: drawn evenly from zero to a ceiling that doubles up to `max_ms`."""

    first_ms: int
    max_ms: int

    def ceiling_ms(self, round_number: int) -> int:
        """The longest wait after round `round_number`, which counts from 0."""
        # The exponent is capped before it is used: many rounds must not build a huge number.
        return min(self.max_ms, self.first_ms << min(round_number, 30))

    def seconds(self, round_number: int, random_bits: RandomBits) -> float:
        return random_bits(16) / 65_536 * self.ceiling_ms(round_number) / 1_000


class Rounds:
    """Asynchronous iterator over round numbers from 0 to `rounds_max` - 1, with a pause after each round."""

    __slots__ = ("_pause", "_round", "_rounds_max")

    def __init__(self, rounds_max: int, pause: Callable[[int], Awaitable[object]]) -> None:
        """`pause` waits after the round of that number."""
        self._rounds_max, self._pause, self._round = rounds_max, pause, 0

    def __aiter__(self) -> Rounds:
        return self

    async def __anext__(self) -> int:
        # Not an async generator: leaving the loop early must not leave a generator for the event loop to close.
        if self._round:
            await self._pause(self._round - 1)
        if self._round >= self._rounds_max:
            raise StopAsyncIteration
        self._round += 1
        return self._round - 1
