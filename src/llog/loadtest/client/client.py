"""One client of the raw engines: sends what is due, takes answers, and goes on at another broker when one fails.

While all is well a request costs two callbacks: a timer that sends it and the answer. After a failure the client sends
nothing new until it has repaired its order (`_repair`): all its unanswered requests have come back, and those that were
not stored are sent again, oldest first, to an available broker of their owner set. Their sequences make that safe: a
broker stores a batch once, and refuses it while an earlier one is missing.

A request that gets no answer within `timeout_s` is given up; what became of its records is uncertain. Brokers would
refuse the client's next sequences if they have not stored them, so the client goes on with a new identity.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from llog.loadtest.client.connection import Connection
from llog.loadtest.client.schedule import NEVER, Now
from llog.loadtest.client.selection import Brokers
from llog.loadtest.client.streams import Group
from llog.loadtest.client.wire import Identity, Outcome, Request, Stream, Verdict, Wire

RETRY_PAUSE_S_MIN: Final = 0.05
RETRY_PAUSE_S_MAX: Final = 2.0
"""Between two attempts of a client while no broker takes its requests; doubles from the least."""
ATTEMPT_SHARE: Final = 0.25
"""Of `timeout_s`: how long a client waits for one broker when its owner set has others."""
ATTEMPT_S_MIN: Final = 1.0
TIMER_S: Final = 0.001
"""Timers of the event loop have whole milliseconds: a request may leave half of one early or late."""
LATE_S: Final = 0.01
"""A request that leaves so much later than due, although its client had room, is the generator's fault."""


class Address(NamedTuple):
    host: str
    port: int


class Accounts(Protocol):
    """Where a client reports what happened to its requests."""

    def acknowledged(self, request: Request, producer: int) -> None: ...

    def failed(self, request: Request, producer: int, reason: str, *, uncertain: bool) -> None: ...

    def retried(self, reason: str) -> None: ...

    def sent_late(self) -> None:
        """Later than due although the client had room."""
        ...

    def remapped(self, group: Group, from_broker: int, failure: int, to_broker: int, reason: str) -> None: ...

    def sent(self, records: int) -> None: ...


class Surroundings(NamedTuple):
    """What the clients of a process share."""

    wire: Wire
    addresses: Sequence[Address]
    """By number of the broker."""
    brokers: Brokers
    accounts: Accounts
    now_s: Now
    timeout_s: float


class Client:
    def __init__(self, number: int, streams: Sequence[Stream], in_flight_max: int, around: Surroundings) -> None:
        self.number = number
        self.streams = streams
        self._in_flight_max = in_flight_max
        self._around = around
        self._queue: list[tuple[float, int, Stream]] = []
        self._connections: dict[int, Connection] = {}
        self._identity = Identity(-1, -1)
        self._spoiled = False
        """The identity cannot go on: a request was given up."""
        self._unanswered = 0
        """Requests without an outcome, among them those in `_back`."""
        self._back: list[Request] = []
        """Requests that came back and may have to be sent again."""
        self._room_since_s = -NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._repairing: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._draining = self._closed = False

    # -- what the process calls --

    async def open(self) -> None:
        """Connect to the preferred brokers and get an identity. Raises OSError or TimeoutError."""
        for broker in sorted({stream.plan.group.owners[0] for stream in self.streams}):
            await self._connect(broker)
        await self._renew(self.streams[0].plan.group.owners[0])

    def reschedule(self) -> None:
        """The schedules of the streams have begun anew."""
        self._queue = [(stream.schedule.next_due_s, number, stream) for number, stream in enumerate(self.streams)]
        heapq.heapify(self._queue)
        self._pump()

    async def drain(self, until_s: float) -> None:
        """Send nothing new and wait for answers; then give up what has none, and close."""
        self._draining = True
        while self._unanswered and (left_s := until_s - self._around.now_s()) > 0:
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left_s)
        self.close()
        for request in self._back:
            self._give_up(request, "no answer before the end", uncertain=True)
        self._back = []

    def check_timeouts(self, now_s: float) -> None:
        for connection in list(self._connections.values()):
            if connection.unanswered and now_s > self._patience_end_s(connection.unanswered[0]):
                connection.fail("timeout")

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._repairing is not None:
            self._repairing.cancel()
        for connection in list(self._connections.values()):
            connection.fail("closed")

    # -- while all is well --

    def _pump(self) -> None:
        """Send what is due and has room; set the timer for the next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._repairing is not None or self._draining:
            return
        while self._queue and self._unanswered < self._in_flight_max:
            due_s, number, stream = self._queue[0]
            delay_s = due_s - self._around.now_s()
            if delay_s == NEVER:
                return
            if delay_s > TIMER_S / 2:
                self._timer = asyncio.get_running_loop().call_later(max(delay_s, TIMER_S), self._pump)
                return
            if not stream.unanswered:
                self._select(stream)
            connection = self._connections.get(stream.broker)
            if connection is None:
                self._begin_repair()
                return
            stream.schedule.take()
            heapq.heapreplace(self._queue, (stream.schedule.next_due_s, number, stream))
            self._send_new(stream, due_s, connection)

    def _select(self, stream: Stream) -> None:
        """Choose a broker for a stream without unanswered requests."""
        choice = self._around.brokers.choose(stream.plan.group.owners, stream.turn)
        stream.turn += 1
        stream.broker = choice.broker
        if choice.instead_of is not None:
            self._note_remap(stream.plan.group, choice.instead_of, choice.broker)

    def _send_new(self, stream: Stream, due_s: float, connection: Connection) -> None:
        around = self._around
        request = Request(stream, due_s, around.now_s(), self._identity, around.wire.frame(stream))
        around.wire.fill(request, self.number)
        around.accounts.sent(stream.plan.request_records)
        if request.sent_s - due_s > LATE_S and self._room_since_s <= due_s:
            around.accounts.sent_late()
        self._unanswered += 1
        stream.unanswered += 1
        if self._unanswered == self._in_flight_max:
            self._room_since_s = NEVER
        self._send(request, connection)

    def _send(self, request: Request, connection: Connection) -> None:
        request.sendings += 1
        self._around.brokers.in_flight[connection.broker] += 1
        connection.send(request)

    def _on_answer(self, connection: Connection, request: Request, outcome: Outcome) -> None:
        self._around.brokers.in_flight[connection.broker] -= 1
        if outcome.verdict is Verdict.ACCEPTED:
            self._around.accounts.acknowledged(request, self.number)
            self._resolve(request)
            self._pump()
            return
        request.outcome = outcome
        self._back.append(request)
        if outcome.verdict is Verdict.RETRY:
            self._note_failure(connection.broker, outcome.reason)
        self._begin_repair()

    def _resolve(self, request: Request) -> None:
        """The request has its outcome; its frame is free."""
        self._around.wire.give_back(request.frame)
        request.stream.unanswered -= 1
        if self._unanswered == self._in_flight_max and self._repairing is None:
            self._room_since_s = self._around.now_s()
        self._unanswered -= 1
        self._changed.set()

    # -- after a failure --

    def _on_lost(self, connection: Connection, requests: list[Request], reason: str) -> None:
        self._around.brokers.in_flight[connection.broker] -= len(requests)
        if self._connections.get(connection.broker) is connection:
            del self._connections[connection.broker]
        for request in requests:
            request.outcome = Outcome(Verdict.RETRY, reason)
        self._back += requests
        if requests and not self._closed:
            self._note_failure(connection.broker, reason)
            self._begin_repair()

    def _note_failure(self, broker: int, reason: str) -> None:
        self._around.brokers.mark_unavailable(broker, reason)

    def _note_remap(self, group: Group, from_broker: int, to_broker: int) -> None:
        brokers = self._around.brokers
        reason = brokers.reasons[from_broker]
        self._around.accounts.remapped(group, from_broker, brokers.failures[from_broker], to_broker, reason)

    def _begin_repair(self) -> None:
        self._changed.set()
        self._room_since_s = NEVER
        if self._repairing is None and not self._closed:
            self._repairing = asyncio.create_task(self._repair())
            self._repairing.add_done_callback(self._end_repair)

    def _end_repair(self, task: asyncio.Task[None]) -> None:
        self._repairing = None
        if task.cancelled():
            return
        task.result()
        if self._unanswered < self._in_flight_max:
            self._room_since_s = self._around.now_s()
        self._pump()

    async def _repair(self) -> None:
        """Until every request has its outcome and the broker of the next one is connected."""
        pauses = backoff()
        while True:
            while len(self._back) < self._unanswered:
                self._changed.clear()
                await self._changed.wait()
            self._sort_out()
            stream = self._back[0].stream if self._back else self._next_stream()
            if stream is None:
                return
            self._reselect(stream)
            if not self._around.brokers.is_available(stream.broker):
                await asyncio.sleep(next(pauses))
            try:
                await self._connect(stream.broker)
                if self._back:
                    await self._send_again()
                elif self._spoiled:
                    await self._renew(stream.broker)
                else:
                    return
            except (OSError, TimeoutError) as error:
                self._note_failure(stream.broker, str(error) or "timeout")

    def _sort_out(self) -> None:
        """Give up the requests that came back and cannot succeed any more; order the others."""
        now_s, waiting = self._around.now_s(), set[Stream]()
        back, self._back = sorted(self._back, key=lambda request: (request.first_sent_s, request.sequence)), []
        for request in back:
            verdict, reason = request.outcome
            healable = request.stream in waiting and not self._spoiled
            if verdict is Verdict.RETRY or (verdict is Verdict.EARLIER_MISSING and healable):
                if now_s < self._deadline_s(request):
                    self._back.append(request)
                    waiting.add(request.stream)
                else:
                    self._give_up(request, reason, uncertain=True)
            else:
                self._give_up(request, reason, uncertain=request.sendings > 1)

    def _give_up(self, request: Request, reason: str, *, uncertain: bool) -> None:
        self._spoiled = True
        self._around.accounts.failed(request, self.number, reason, uncertain=uncertain)
        self._resolve(request)

    def _next_stream(self) -> Stream | None:
        """Of the next request, while there will be one."""
        return self._queue[0][2] if self._queue and not self._draining else None

    def _reselect(self, stream: Stream) -> None:
        """None of the client's requests is at a broker now, so its streams may move."""
        around, before, group = self._around, stream.broker, stream.plan.group
        if before not in group.owners:
            self._select(stream)
        elif not around.brokers.is_available(before):
            stream.broker = around.brokers.choose(group.owners, stream.turn).broker
            if stream.broker != before:
                self._note_remap(group, before, stream.broker)

    async def _send_again(self) -> None:
        """The oldest request and those behind it that have the same broker; others follow in the next round."""
        broker = self._back[0].stream.broker
        connection = self._connections[broker]
        streams = {request.stream for request in self._back}
        for stream in streams:
            if broker in stream.plan.group.owners:
                stream.broker = broker
        again = [request for request in self._back if request.stream.broker == broker]
        self._back = [request for request in self._back if request.stream.broker != broker]
        for request in again:
            request.sent_s = self._around.now_s()
            self._around.accounts.retried(request.outcome.reason)
            self._send(request, connection)

    async def _connect(self, broker: int) -> None:
        """Unless connected. Raises OSError or TimeoutError."""
        if broker not in self._connections:
            around, (host, port) = self._around, self._around.addresses[broker]
            self._connections[broker] = await Connection.open(
                around.wire, host, port, broker, self._on_answer, self._on_lost
            )

    async def _renew(self, broker: int) -> None:
        """A new identity from this broker. Raises OSError or TimeoutError."""
        self._identity = await self._around.wire.identify(self._connections[broker])
        for stream in self.streams:
            stream.identity_base = stream.next_sequence
        self._spoiled = False

    # -- limits --

    def _deadline_s(self, request: Request) -> float:
        return request.first_sent_s + self._around.timeout_s

    def _patience_end_s(self, request: Request) -> float:
        """How long the client waits for the broker that has the request now."""
        timeout_s = self._around.timeout_s
        if len(request.stream.plan.group.owners) > 1:
            timeout_s = min(timeout_s, max(ATTEMPT_S_MIN, timeout_s * ATTEMPT_SHARE))
        return min(request.sent_s + timeout_s, self._deadline_s(request))


def backoff() -> Iterator[float]:
    pause_s = RETRY_PAUSE_S_MIN
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, RETRY_PAUSE_S_MAX)
