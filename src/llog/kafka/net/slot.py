"""The place of one request among the answers of its connection, and the memory that it holds."""

from __future__ import annotations

import asyncio

from llog.broker.produce.pool import MemoryPool
from llog.kafka.apis.handler import Answer
from llog.kafka.codec import Buffer
from llog.kafka.dispatch import Request
from llog.kafka.net.answer_errors import first_error
from llog.kafka.net.memory import AnswerShare, FrameShare


class Slot:
    __slots__ = (
        "answer",
        "answer_bytes",
        "awaited",
        "buffers",
        "error_code",
        "frame",
        "frame_bytes",
        "is_done",
        "request",
        "started",
    )

    def __init__(self, frame: FrameShare, answers: MemoryPool, frame_bytes: int, started: float) -> None:
        self.frame, self.answer = frame, AnswerShare(answers)
        self.frame_bytes, self.started = frame_bytes, started
        self.request: Request | None = None
        self.awaited: asyncio.Future[Answer] | None = None
        self.is_done = False
        self.buffers: list[Buffer] | None = None
        """Of the answer: empty if the client wants none; None once the slot is done: the connection ends here."""
        self.answer_bytes = self.error_code = 0

    def encode(self, message: Answer) -> None:
        """Make the answer's frame. `NotEncodable` for a message that its version cannot carry."""
        assert self.request is not None
        self.error_code = 0 if message is None else first_error(message)
        self.buffers = [] if message is None else self.request.answer(message)
        self.answer_bytes = sum([memoryview(buffer).nbytes for buffer in self.buffers])
        self.answer.settle(self.answer_bytes)

    def cancel_poll(self) -> None:
        """The client is gone. What only it would use ends; appends go on."""
        if self.awaited is not None and self.request is not None and self.request.handler.ends_with_client:
            self.awaited.cancel()
