"""One Kafka client's connection: requests are handled at once and in order, answers leave in the same order.

Every frame takes a slot, and its handler starts before the next frame is looked at, so what a handler does before it
returns happens in the order of frames. A slot is left when its answer is ready and all earlier answers were written.
At most `IN_FLIGHT_MAX` slots are taken; then, and while the client does not take its answers, the socket is not read.

A connection ends, after the answers to earlier requests, at the first frame that is not a request, or whose handler
failed. When the client is gone, its long polls are cancelled; its appends go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from llog.errors import FormatError, LlogError
from llog.kafka.apis.handler import Answer, Client
from llog.kafka.codec import Buffer
from llog.kafka.net.frames import Frame, FrameReader
from llog.listener.connection import Connection, ConnectionSet, address

if TYPE_CHECKING:
    from llog.kafka.dispatch import Request
    from llog.kafka.net.context import ConnectionContext

IN_FLIGHT_MAX: Final = 64
"""Requests of one connection that are not answered."""
FRAMES_PER_TURN: Final = 64
"""Frames of one connection that are handled in one turn of the loop; then other connections have theirs."""
IDLE_MS_MAX: Final = 600_000
"""Kafka's default, `connections.max.idle.ms`."""

_log: Final = logging.getLogger("llog.kafka")


class Slot:
    """The place of one request among the answers of its connection."""

    __slots__ = ("answer", "awaited", "done", "frame_bytes", "request", "started")

    def __init__(self, frame_bytes: int, started: float) -> None:
        self.frame_bytes, self.started = frame_bytes, started
        self.request: Request | None = None
        self.awaited: asyncio.Future[Answer] | None = None
        self.done = False
        self.answer: list[Buffer] | None = None
        """None, once it is done: nothing can be answered, so the connection ends here."""


class KafkaConnection(Connection, asyncio.BufferedProtocol):
    def __init__(self, peers: ConnectionSet, context: ConnectionContext) -> None:
        super().__init__(peers)
        self._context = context
        self._frames = FrameReader(context.scratch, self._admit, context.frame_bytes_max)
        self._slots: deque[Slot] = deque()
        self._reserved_bytes = 0
        """For the frame that is arriving."""
        self._waits_for_room = False
        self._ending = False
        """No further frame is read; the connection closes behind the last answer."""
        self._kafka_client = Client("", 0, "")

    # -- the transport's calls -----------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        host, port = self.client or ("", 0)
        reached = address(transport.get_extra_info("sockname"))
        self._kafka_client = Client(host, port, "" if reached is None else f"{reached[0]}:{reached[1]}")
        if not self.admitted:
            self._context.refused("connections")
            self.transport.abort()
            return
        self.expect_within(IDLE_MS_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._ending = True
        self._give(self._reserved_bytes)
        self._reserved_bytes = 0
        for slot in self._slots:
            self._cancel(slot)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._ending:
            return
        self._frames.received(nbytes)
        self._serve()

    def eof_received(self) -> bool:
        """The client sends no more. It may still read, so what is in flight is answered, except long polls."""
        for slot in self._slots:
            self._cancel(slot)
        self._end()
        return bool(self._slots) and self.transport.get_extra_info("ssl_object") is None

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write_answers()

    def begin_stop(self) -> None:
        self._end()

    # -- requests ------------------------------------------------------------------------------------------------------
    def _serve(self) -> None:
        """Handle the frames that have arrived, as far as slots, memory and this turn allow."""
        try:
            for _ in range(FRAMES_PER_TURN):
                if self._ending or len(self._slots) >= IN_FLIGHT_MAX or not self._writable.is_set():
                    break
                frame = self._frames.next()
                if frame is None:
                    break
                self._begin(frame)
            else:
                self.loop.call_soon(self._serve)
        except FormatError as error:
            self._refuse("size", error)
        self._frames.keep()
        self._update_reading()

    def _begin(self, frame: Frame) -> None:
        context = self._context
        slot = Slot(len(frame), context.now())
        self._slots.append(slot)
        self._reserved_bytes = 0
        release = partial(self._release, slot)
        try:
            slot.request = request = context.dispatcher.read(frame, self._kafka_client, release)
            del frame
        except FormatError as error:
            self._refuse("format", error, slot)
            return
        try:
            result = request.handle(request.call)
        except Exception as error:
            self._failed(slot, error)
            return
        if result is None or isinstance(result, Struct):
            self._answered(slot, result)
        else:
            self._await(slot, result)

    def _await(self, slot: Slot, result: Awaitable[Answer]) -> None:
        if asyncio.isfuture(result):
            slot.awaited = result
        else:
            slot.awaited = task = asyncio.ensure_future(result)
            self.peers.tasks.add(task)  # type: ignore[arg-type]
            task.add_done_callback(self.peers.tasks.discard)  # type: ignore[arg-type]
        slot.awaited.add_done_callback(partial(self._came, slot))

    def _came(self, slot: Slot, future: asyncio.Future[Answer]) -> None:
        if future.cancelled():
            self._done(slot, None)
        elif (error := future.exception()) is not None:
            self._failed(slot, error)
        else:
            self._answered(slot, future.result())

    # -- answers -------------------------------------------------------------------------------------------------------
    def _answered(self, slot: Slot, message: Answer) -> None:
        assert slot.request is not None
        if message is None:
            self._done(slot, [])
            return
        try:
            buffers = slot.request.answer(message)
        except Exception as error:
            self._failed(slot, error)
            return
        self._done(slot, buffers)

    def _failed(self, slot: Slot, error: BaseException) -> None:
        name = "" if slot.request is None else slot.request.api.name
        fields = {"api": name, "client": self._kafka_client.host}
        if isinstance(error, LlogError):
            _log.warning("a Kafka handler raised: %s", error, extra={"llog": fields})
        else:
            _log.error("a Kafka handler failed", exc_info=error, extra={"llog": fields})
        self._context.refused("failed")
        self._done(slot, None)

    def _done(self, slot: Slot, answer: list[Buffer] | None) -> None:
        slot.done, slot.answer = True, answer
        self._release(slot)
        if self._slots and self._slots[0] is slot:
            self._write_answers()

    def _write_answers(self) -> None:
        """Write the answers that are ready and have no slot before them."""
        slots, transport = self._slots, self.transport
        while slots and slots[0].done and self._writable.is_set():
            slot = slots.popleft()
            if slot.answer is None:
                self._ending = True
                slots.clear()
            elif slot.answer and not transport.is_closing():
                transport.writelines(slot.answer)
        if self._ending:
            if not slots:
                transport.close()
        elif not self._waits_for_room:
            self.loop.call_soon(self._serve) if self._frames.kept_bytes else self._update_reading()

    # -- memory --------------------------------------------------------------------------------------------------------
    def _admit(self, size: int) -> bool:
        if self._waits_for_room:
            return False
        if self._context.pool.try_take(size):
            self._reserved_bytes = size
            return True
        return False

    def _release(self, slot: Slot) -> None:
        self._give(slot.frame_bytes)
        slot.frame_bytes = 0

    def _give(self, byte_length: int) -> None:
        if byte_length:
            self._context.pool.give(byte_length)

    # -- the end -------------------------------------------------------------------------------------------------------
    def _refuse(self, reason: str, error: FormatError, slot: Slot | None = None) -> None:
        """End the connection behind the answers in flight."""
        fields = {"client": self._kafka_client.host, "reason": reason}
        _log.info("refused a frame: %s", error, extra={"llog": fields})
        self._context.refused(reason)
        self._end()
        if slot is not None:
            self._done(slot, None)

    def _end(self) -> None:
        self._ending = True
        if not self._slots:
            self.transport.close()
        else:
            self.read(False)

    def _cancel(self, slot: Slot) -> None:
        if slot.awaited is not None and slot.request is not None and slot.request.handler.ends_with_client:
            slot.awaited.cancel()

    def _update_reading(self) -> None:
        self.read(not (self._ending or self._frames.kept_bytes >= 4 or len(self._slots) >= IN_FLIGHT_MAX))
        self.expect_within(None if self._slots else IDLE_MS_MAX)
