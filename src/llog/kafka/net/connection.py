"""One Kafka client's connection: requests are handled at once and in order, answers leave in the same order.

Every frame takes a slot, and its handler starts before the next frame is looked at, so what a handler does before it
returns happens in the order of frames. A slot is left when its answer is ready and all earlier answers were written.
At most `IN_FLIGHT_MAX` slots are taken; then, while a frame waits for memory, and while the client does not take its
answers, the socket is not read.

A connection ends, after the answers to earlier requests, at the first frame that is not a request, or whose handler
failed. When the client is gone, its long polls are cancelled; its appends go on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from functools import partial
from typing import Any, Final, cast

from msgspec import Struct

from llog.errors import FormatError, InvalidField, RequestOverload, UnsupportedFormat
from llog.kafka.apis.handler import Answer, Client
from llog.kafka.codec import Buffer
from llog.kafka.net.answers import AnswerQueue
from llog.kafka.net.arrival import Arrival
from llog.kafka.net.context import ConnectionContext
from llog.kafka.net.frames import Frame, FrameReader
from llog.kafka.net.memory import UNAUTHENTICATED_FRAME_BYTES_MAX
from llog.kafka.net.slot import Slot
from llog.kafka.sasl import SaslSession
from llog.limits import KIB
from llog.listener.connection import SEND_TIMEOUT_MS, Connection, ConnectionSet, address

IN_FLIGHT_MAX: Final = 64
"""Requests of one connection that are not answered."""
FEW_IN_FLIGHT: Final = 8
"""With more, little is read ahead: frames that cannot be handled yet would wait in memory that is not counted."""
FRAMES_PER_TURN: Final = 64
"""Frames of one connection that are handled in one turn of the loop; then other connections have theirs."""
SEND_TOGETHER_BYTES_MAX: Final = 64 * KIB
"""Answers that are ready at the same time leave in one write, up to this size: each write wakes the client."""
IDLE_MS_MAX: Final = 600_000
"""Kafka's default, `connections.max.idle.ms`."""


class KafkaConnection(Connection, asyncio.BufferedProtocol):
    _answers: AnswerQueue

    def __init__(self, peers: ConnectionSet, context: ConnectionContext) -> None:
        super().__init__(peers)
        self._context = context
        self._arrival = Arrival(
            context, now_ms=self._now_ms, missing=self._missing, on_room=self._serve, stalled=self._stalled
        )
        self._frames = FrameReader(context.scratch, self._arrival.admit)
        self._slots: deque[Slot] = deque()
        self._untaken_bytes = 0
        """What answers hold that were written and that the client has not taken."""
        self._serve_scheduled = self._leave_scheduled = False
        self._ending = False
        """No further frame is handled; the connection closes behind the last answer."""
        self._mute = False
        """No further answer is written."""
        self._peer = Client("", 0, "")

    # -- the transport's calls -----------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._answers = AnswerQueue(self.transport)
        host, port = self.client or ("", 0)
        reached = address(transport.get_extra_info("sockname"))
        self._peer = Client(host, port, "" if reached is None else f"{reached[0]}:{reached[1]}")
        self._arrival.client = host
        if self._context.authentication is not None:
            self._context.authentication.begin(self._peer, transport.get_extra_info("ssl_object"))
            if self._peer.sasl is not None:
                self._arrival.limit_bytes = UNAUTHENTICATED_FRAME_BYTES_MAX
        self._context.log.connected(1)
        if self.admitted:
            self.expect_within(self._idle_ms())
        else:
            self._refuse("connections", f"{self.peers.connections_max} connections are open")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._arrival.end()
        self._answers.clear()
        self._silence()
        self._give_taken()
        self._context.log.connected(-1)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.buffer(little=len(self._slots) > FEW_IN_FLIGHT or self._context.is_tight)

    def buffer_updated(self, nbytes: int) -> None:
        if not self._ending:
            self._frames.received(nbytes)
            self._serve()

    def eof_received(self) -> bool:
        """The client sends no more. It may still read, so what is in flight is answered, except long polls."""
        self._cancel_polls()
        self._end()
        return bool(self._slots) and self.transport.get_extra_info("ssl_object") is None

    def resume_writing(self) -> None:
        super().resume_writing()
        self._leave_slots()

    def begin_stop(self) -> None:
        self._end()

    def deadline_passed(self) -> None:
        if self._arrival.share is None:
            self._end()  # idle
        elif (patience_ms := self._arrival.patience_ms()) > 0 and not self._arrival.waits_for_room:
            self.expect_within(patience_ms)
        else:
            self._stalled()

    # -- requests ------------------------------------------------------------------------------------------------------
    def _serve(self) -> None:
        """Handle the frames that have arrived, as far as slots, memory and this turn allow."""
        self._serve_scheduled = False
        is_hungry = False
        try:
            for _ in range(FRAMES_PER_TURN):
                if self._ending or len(self._slots) >= IN_FLIGHT_MAX or not self.is_writable:
                    break
                frame = self._frames.next()
                if frame is None:
                    is_hungry = self._frames.is_hungry
                    break
                self._begin(frame)
            else:
                self._serve_soon()
        except InvalidField as error:
            self._refuse("size", str(error))
        except (RequestOverload, MemoryError) as error:
            self._refuse("overload", str(error))
        self._frames.keep()
        if not self._ending:
            self.read(is_hungry)
            if self._arrival.share is not None:
                self.expect_within(self._arrival.patience_ms())
            else:
                self.expect_within(None if self._slots else self._idle_ms())

    def _serve_soon(self) -> None:
        if not self._serve_scheduled:
            self._serve_scheduled = True
            self.loop.call_soon(self._serve)

    def _begin(self, frame: Frame) -> None:
        context = self._context
        slot = Slot(self._arrival.complete(), context.front_end, len(frame), context.now())
        self._slots.append(slot)
        sasl = self._peer.sasl
        if sasl is not None and (reason := sasl.refusal(frame)):
            self._refuse("unauthenticated", reason)
            self._done(slot)
            return
        try:
            slot.request = request = context.dispatcher.read(frame, self._peer, slot.frame.give, slot.answer.hold)
        except FormatError as error:
            self._refuse("unsupported" if isinstance(error, UnsupportedFormat) else "malformed", str(error))
            self._done(slot)
            return
        try:
            result = request.handle(request.call)
        except Exception as error:
            self._fail(slot, error)
            return
        if result is None or isinstance(result, Struct):
            self._answer(slot, result)
        else:
            self._await(slot, result)

    def _await(self, slot: Slot, result: Awaitable[Answer]) -> None:
        slot.awaited = awaited = asyncio.ensure_future(result)
        if awaited is not result:
            tasks = cast("set[Any]", self.peers.tasks)
            tasks.add(awaited)
            awaited.add_done_callback(tasks.discard)
        awaited.add_done_callback(partial(self._came, slot))

    def _came(self, slot: Slot, awaited: asyncio.Future[Answer]) -> None:
        slot.awaited = None
        if awaited.cancelled():
            self._done(slot)
        elif (error := awaited.exception()) is not None:
            self._fail(slot, error)
        else:
            self._answer(slot, awaited.result())

    # -- answers -------------------------------------------------------------------------------------------------------
    def _answer(self, slot: Slot, message: Answer) -> None:
        try:
            slot.encode(message)
        except Exception as error:
            self._fail(slot, error)
        else:
            if self._peer.sasl is not None:
                self._heed(self._peer.sasl)
            self._done(slot)

    def _heed(self, sasl: SaslSession) -> None:
        """The client may just have authenticated, or failed to."""
        if sasl.is_authenticated:
            self._arrival.limit_bytes = None
        if self._peer.ends:
            self._ending = True

    def _fail(self, slot: Slot, error: BaseException) -> None:
        """The handler raised: the connection ends at this slot."""
        self._context.log.failed(slot, self._peer, error)
        slot.buffers = None
        self._ending = True
        self._done(slot)

    def _done(self, slot: Slot) -> None:
        slot.is_done = True
        slot.frame.give()
        if self._mute:
            self._slots.remove(slot)
            self._drop(slot)
        elif self._slots[0] is slot:
            if len(self._slots) == 1:
                self._leave_slots()
            elif not self._leave_scheduled:  # one flush answers many requests
                self._leave_scheduled = True
                self.loop.call_soon(self._leave_slots)

    def _leave_slots(self) -> None:
        """Write the answers that are ready and have no slot before them."""
        self._leave_scheduled = False
        slots, answers = self._slots, self._answers
        while self.is_writable and not self._mute:
            if self.transport.is_closing():
                self._silence()  # the client is gone; `connection_lost` follows
            elif answers:
                answers.write_piece()
            elif not slots or not slots[0].is_done:
                break
            elif slots[0].buffers is None:
                self._silence()
            else:
                self._send_ready()
        if self.is_writable and not answers:
            self._give_taken()
        if self._ending:
            self._end()
        elif not self.is_reading and not self._arrival.waits_for_room:
            self._serve_soon()
        elif not slots and self._arrival.share is None:
            self.expect_within(self._idle_ms())

    def _send_ready(self) -> None:
        slots, buffers, byte_length = self._slots, list[Buffer](), 0
        while slots and slots[0].is_done and slots[0].buffers is not None and byte_length < SEND_TOGETHER_BYTES_MAX:
            slot = slots.popleft()
            self._context.log.finished(slot, self._peer)
            self._untaken_bytes += slot.answer.held_bytes
            buffers += slot.buffers or ()
            byte_length += slot.answer_bytes
        if buffers:
            self._answers.add(buffers, byte_length)

    def _give_taken(self) -> None:
        if self._untaken_bytes:
            self._context.front_end.give(self._untaken_bytes)
            self._untaken_bytes = 0

    def _drop(self, slot: Slot) -> None:
        """Nobody gets this answer."""
        slot.answer.settle(0)
        self._context.log.finished(slot, self._peer)

    # -- the end -------------------------------------------------------------------------------------------------------
    def _refuse(self, reason: str, error: str) -> None:
        """Handle no further frame."""
        self._context.log.refused(reason, self._peer, error)
        self._end()

    def _stalled(self) -> None:
        """The frame that is arriving comes too slowly, or waited too long for room."""
        self._context.log.refused("stalled", self._peer, "it arrives too slowly, or waited too long for memory")
        self._arrival.give_up()
        self._end()

    def _end(self) -> None:
        """Handle no further frame, and close behind the last answer."""
        self._ending = True
        self._arrival.give_up()
        if self._slots or self._answers:
            self.read(False)
            self.expect_within(None)
        elif not self.transport.is_closing():
            self.transport.close()
            self.expect_within(SEND_TIMEOUT_MS)  # for what the transport still holds

    def _silence(self) -> None:
        """Write no further answer, and close behind those that were written."""
        self._mute = self._ending = True
        self._cancel_polls()
        for slot in [slot for slot in self._slots if slot.is_done]:
            self._slots.remove(slot)
            self._drop(slot)
        if not self.transport.is_closing():
            self.transport.close()
            self.expect_within(SEND_TIMEOUT_MS)

    def _cancel_polls(self) -> None:
        for slot in self._slots:
            slot.cancel_poll()

    def _idle_ms(self) -> float:
        sasl = self._peer.sasl
        return IDLE_MS_MAX if sasl is None or sasl.is_authenticated else sasl.patience_ms()

    def _missing(self) -> int:
        return self._frames.missing_bytes

    def _now_ms(self) -> float:
        return self.loop.time() * 1_000
