"""Changes of topics over Kafka: who asked for them, how many run at once, and how long a client waits.

Every change writes the audit line that HTTP writes, in the name of the client's principal, and drops what this broker
remembers of the topic. A client names the time that it waits for a change. A change that takes longer goes on, because
half a change would have to be finished by another process; the client gets REQUEST_TIMED_OUT and finds the outcome by
looking. A change that has not begun by then never begins.

A client that names no time expects its changes to begin all the same, and to hear of those that are refused: librdkafka
takes REQUEST_TIMED_OUT for a success then. It is answered when they are done, or after ADMIN_WAIT_MS_MIN.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar

from llog.audit_log import Outcome, Principal, act_as, write_refusal
from llog.errors import LlogError, UncertainOutcome
from llog.kafka.apis.handler import Call
from llog.kafka.error_codes import ErrorCode, Refusal, code_of

ADMIN_CHANGES_MAX: Final = 32
"""Changes of topics that one broker makes at once for Kafka clients."""
ADMIN_CHANGES_PER_REQUEST_MAX: Final = 16
ADMIN_WAIT_MS_MIN: Final = 500
"""How long a request waits for its changes that allows less."""
KAFKA_FIRST_OFFSET: Final = 0
"""Of topics that Kafka clients create."""

K = TypeVar("K")
T = TypeVar("T")

_FAILED: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR})
"""Codes of changes that failed; with any other, the change was refused."""


class Changes:
    """The changes of one broker."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(ADMIN_CHANGES_MAX)
        self._workers: set[asyncio.Task[None]] = set()

    def going_on(self) -> list[asyncio.Task[None]]:
        """What works on changes, also on those whose clients wait no longer."""
        return list(self._workers)

    async def run(self, changes: Mapping[K, Callable[[], Awaitable[T]]], timeout_ms: int) -> dict[K, T | LlogError]:
        """The result of each change, or its error."""
        outcomes: dict[K, T | LlogError] = {}
        left = iter(changes.items())
        busy: set[asyncio.Task[None] | None] = set()
        expired = False

        async def work() -> None:
            own = asyncio.current_task()
            for name, change in left:
                async with self._slots:
                    busy.add(own)
                    try:
                        outcomes[name] = await change()
                    except LlogError as error:
                        outcomes[name] = error
                    finally:
                        busy.discard(own)
                if expired:
                    return

        workers = [asyncio.create_task(work()) for _ in range(min(len(changes), ADMIN_CHANGES_PER_REQUEST_MAX))]
        for worker in workers:
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        if workers:
            done, waiting = await asyncio.wait(workers, timeout=max(timeout_ms, ADMIN_WAIT_MS_MIN) / 1_000)
            expired = True
            for worker in waiting - busy:
                worker.cancel()
            for worker in done:
                worker.result()
        late = Refusal(ErrorCode.REQUEST_TIMED_OUT, f"not done within {timeout_ms} ms; it may be done later")
        return {name: outcomes.get(name, late) for name in changes}


@contextmanager
def audited(call: Call, action: str, subject: str, topic: str, *, dry_run: bool = False) -> Iterator[None]:
    """Around one change. `subject` is what the audit line names; `topic` is forgotten. A dry run writes no line."""
    if dry_run:
        yield
        return
    act_as(Principal(call.client.principal, call.client.host))
    try:
        yield
    except LlogError as error:
        refused: Outcome = "failed" if code_of(error) in _FAILED else "refused"
        write_refusal(action, subject, "uncertain" if isinstance(error, UncertainOutcome) else refused, error)
        raise
    finally:
        call.services.topics.forget(topic)
