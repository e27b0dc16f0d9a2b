"""Produce, API key 0, versions 3 to 13: records for many partitions in, an offset or an error for each out.

    v3   one batch of magic 2 per partition    v4   KAFKA_STORAGE_ERROR       v5   log_start_offset
    v7   zstd                                  v8   record_errors, messages   v9   flexible
    v10  leader and endpoints of a moved partition (KIP-951)                  v12  transactions of version 2
    v13  topics by id

Versions 0 to 2 are advertised, because librdkafka compresses only for brokers that know them, and are not served.

`acks` 1 and -1 mean the same: an answer is sent when the records are durable and ordered. With 0 none is sent; a fault
that is found at once closes the connection, so that the client reads its metadata again. Produce never creates or grows
a topic: its records mean the incarnation that was looked up. An append that is not decided within the client's timeout
is answered with REQUEST_TIMED_OUT and goes on. Left out: transactional batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from llog.broker.produce.buffer import TimedOutcomes
from llog.errors import LlogError, LogDeleted, RequestRefused, ValueTooLarge
from llog.kafka.apis.handler import Answer, Call, Handler
from llog.kafka.authorization import judged_by_id
from llog.kafka.codec import Versions
from llog.kafka.codec.messages.produce import ProduceRequest, ProduceResponse
from llog.kafka.error_codes import ErrorCode, code_of
from llog.kafka.produce.judge import RefusedBatch
from llog.kafka.produce.lane import Lane
from llog.kafka.produce.moved import moved, moved_from
from llog.kafka.produce.request import (
    IDS_FROM_VERSION,
    PlannedRequest,
    Target,
    byte_length_of,
    find_targets,
    fresh_targets,
    has_compressed,
    refuse_all,
)
from llog.limits import MIB
from llog.log.topics.known_topics import KnownTopic
from llog.security.acl import ResourceType

if TYPE_CHECKING:
    from llog.kafka.services import KafkaServices

KEY: Final = 0
# Records of one request that are checked on the event loop, which takes up to 0.3 ms per MiB; more go to a thread.
CHECKED_INLINE_BYTES_MAX: Final = 4 * MIB
# Threads that check records; each may hold RECORD_BATCH_DECODED_BYTES_MAX of decompressed ones.
CHECKING_THREADS: Final = 2
# For requests that give no timeout.
TIMEOUT_MS_DEFAULT: Final = 30_000

_CHECKERS: Final = ThreadPoolExecutor(CHECKING_THREADS, thread_name_prefix="llog-produce")
_ACKS: Final = (-1, 0, 1)
_BAD_ACKS: Final = RefusedBatch(ErrorCode.INVALID_REQUIRED_ACKS, "acks must be -1, 0 or 1")
_NO_TRANSACTION: Final = RefusedBatch(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactional id authorization failed"
)
_TIMED_OUT: Final = RefusedBatch(
    ErrorCode.REQUEST_TIMED_OUT, "the append was not decided within the request's timeout; it may still happen"
)


def handle(call: Call) -> Answer | Awaitable[Answer]:
    request: ProduceRequest = call.request
    if request.acks not in _ACKS:
        return refuse_all(request, _BAD_ACKS)
    transactional_id = request.transactional_id
    if transactional_id is not None and not call.allows(ResourceType.TRANSACTIONAL_ID, transactional_id):
        return refuse_all(request, _NO_TRANSACTION)
    denied = _denied(call)
    if moved_from(call):
        if request.acks == 0:
            raise RequestRefused("produce without acknowledgement: this node takes no records")
        return moved(call, denied)
    lane: Lane = call.client.state.setdefault(KEY, Lane())
    targets = fresh_targets(request, call.version, call.services.topics, denied) if lane.is_free else None
    if targets is not None:
        targets = _authorized(call, targets)
        if _is_short(call, targets):
            return _submitted(call, _planned(call, targets))
    return _answer_later(lane.run(lambda: _look_up_and_submit(call, denied)))


def _denied(call: Call) -> Collection[str]:
    """Names of topics that the client may not write to, of a request by name."""
    if call.authorizer is None or call.version >= IDS_FROM_VERSION:
        return ()
    return call.denied(ResourceType.TOPIC, [data.name for data in call.request.topic_data])


def _authorized(call: Call, targets: list[Target]) -> list[Target]:
    """Of a request by id: without the topics that the client may not write to."""
    if call.authorizer is None or call.version < IDS_FROM_VERSION:
        return targets
    return [judged_by_id(call, target) for target in targets]


async def _look_up_and_submit(call: Call, denied: Collection[str]) -> Answer | asyncio.Future[Answer]:
    """Ends when the request is submitted; what it returns is, or becomes, the answer."""
    request: ProduceRequest = call.request
    targets = _authorized(call, await find_targets(request, call.version, call.services.topics, denied))
    if _is_short(call, targets):
        return _submitted(call, _planned(call, targets))
    loop = asyncio.get_running_loop()
    return _submitted(call, await loop.run_in_executor(_CHECKERS, _planned, call, targets))


def _is_short(call: Call, targets: Sequence[Target]) -> bool:
    """Whether the batches are checked on the event loop. Compressed batches of a compacted topic are decompressed, to
    look for keys: even a small one may take long."""
    request: ProduceRequest = call.request
    if (call.frame_bytes or byte_length_of(request)) > CHECKED_INLINE_BYTES_MAX:
        return False
    return not any(
        isinstance(topic, KnownTopic) and topic.config.compact and has_compressed(data)
        for topic, data in zip(targets, request.topic_data, strict=True)
    )


async def _answer_later(submitting: asyncio.Task[Answer | asyncio.Future[Answer]]) -> Answer:
    """Shielded: a connection that is lost does not keep its records from being appended."""
    submitted = await asyncio.shield(submitting)
    return await submitted if isinstance(submitted, asyncio.Future) else submitted


def _planned(call: Call, targets: list[Target]) -> PlannedRequest:
    return PlannedRequest(call.request, call.version, targets, call.services.broker.context.now_ms())


def _submitted(call: Call, planned: PlannedRequest) -> Answer | asyncio.Future[Answer]:
    request: ProduceRequest = call.request
    if request.acks == 0 and (refused := planned.refused()):
        raise RequestRefused(f"produce without acknowledgement: {refused[0].reason}")
    call.release_frame()  # the groups hold its bytes, which `submit` counts
    try:
        outcomes = call.services.broker.submit(planned.groups)
    except LlogError as error:
        if request.acks == 0:
            raise
        code = ErrorCode.MESSAGE_TOO_LARGE if isinstance(error, ValueTooLarge) else code_of(error)
        return refuse_all(request, RefusedBatch(code, str(error)))
    if request.acks == 0:
        outcomes.add_done_callback(lambda done: _forget_deleted(call.services, done.result()))
        return None
    return _Waiting(call, planned, outcomes).answer


class _Waiting:
    """A submitted request until its outcomes are known, or its timeout has passed."""

    __slots__ = ("_call", "_planned", "_timer", "answer")

    def __init__(self, call: Call, planned: PlannedRequest, outcomes: asyncio.Future[TimedOutcomes]) -> None:
        loop, timeout_ms = asyncio.get_running_loop(), call.request.timeout_ms
        self._call, self._planned = call, planned
        self.answer: asyncio.Future[Answer] = loop.create_future()
        self._timer = loop.call_later((timeout_ms if timeout_ms > 0 else TIMEOUT_MS_DEFAULT) / 1_000, self._time_out)
        outcomes.add_done_callback(self._decided)

    def _time_out(self) -> None:
        self._set(refuse_all(self._call.request, _TIMED_OUT))

    def _decided(self, outcomes: asyncio.Future[TimedOutcomes]) -> None:
        self._timer.cancel()
        done, broker = outcomes.result(), self._call.services.broker
        self._call.timings = done.timings
        _forget_deleted(self._call.services, done)
        self._set(self._planned.answer(done.outcomes, broker.log_start_offset))

    def _set(self, answer: ProduceResponse) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


def _forget_deleted(services: KafkaServices, done: TimedOutcomes) -> None:
    """Read topics again that turned out to be deleted, or created again."""
    for outcome in done.outcomes:
        if isinstance(outcome, LogDeleted):
            services.topics.forget(outcome.topic)


HANDLER = Handler(
    key=KEY,
    handle=handle,
    versions=Versions(3, 13),
    advertised=Versions(0, 13),
    added={
        3: "one batch of magic 2 per partition",
        5: "log_start_offset",
        7: "zstd",
        8: "record_errors and messages",
        10: "leader and endpoints of a partition that moved",
        13: "topics by id",
    },
    left_out="transactional batches",
)
