"""`POST /produce`: records for many logs in, an outcome for each batch out.

One log may be named by several batches of a request: they become pieces of one record group, in order, and each has its
own outcome. A record larger than its topic's `max.message.bytes`, or with a timestamp outside the topic's window, fails
its batch, and no other; the broker makes the batches that are stored, so the limit of size applies to the record as a
batch of its own.

A batch may leave its partition to the keys of its records; then it has a result for each partition they lead to.

A malformed request is refused whole, before anything is appended. A body's bytes are counted from the socket on and
handed over to the producer without a moment in which they count twice or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from litestar import Request, Response, post
from msgspec import UNSET

from llog.errors import (
    AppendNotCommitted,
    AppendUncertain,
    LlogError,
    LogError,
    RequestOverload,
    TopicNotFound,
)
from llog.http.json.produce_encode import EncodedRequest, KeyedRequest, RequestBatch, encoded_request
from llog.http.json.produce_route import Origin
from llog.http.json.schemas import ProduceAnswer, ProduceRequest, ProduceResult
from llog.http.routes.authorization import check_creation, check_rights
from llog.http.routes.errors import status_of
from llog.http.routes.openapi import operation
from llog.http.routes.runtime import Runtime, TakenBody, record_of, response_of, runtime_of
from llog.listener.http1 import RETRY_AFTER, ErrorAnswer, Reply, json_reply
from llog.listener.tokens import Access
from llog.log.append.append import Appended, EncodedGroup, piece_outcomes
from llog.log.append.pieces import Landed
from llog.log.topics.config import TopicConfig
from llog.log.topics.known_topics import Config, KnownTopic
from llog.log.topics.record_limits import refusal_of_records
from llog.security.acl import Operation, ResourceType
from llog.telemetry.request_log import RequestRecord


@post(
    "/produce",
    status_code=200,
    opt={Access.KEY: Access.WRITE},
    summary="Append records to one or many logs",
    operation_class=operation(
        ProduceRequest,
        {
            200: (ProduceAnswer, "Every batch is durable, at these offsets."),
            409: (ProduceAnswer, "At least one batch failed, and a retry does not help; the others are durable."),
            413: (None, "The body is larger than LLOG_HTTP_BODY_MAX_BYTES."),
            503: (
                ProduceAnswer | ErrorAnswer,
                "No batch is known to be durable: back-pressure, or a store fails. With Retry-After, none was stored.",
            ),
        },
    ),
)
async def produce(request: Request) -> Response[bytes]:  # type: ignore[type-arg]
    return response_of(await produce_records(runtime_of(request), record_of(request)))


async def produce_records(runtime: Runtime, record: RequestRecord) -> Reply:
    services = runtime.services
    if refusal := services.refusal():
        raise RequestOverload(f"{refusal}; nothing was accepted")
    async with TakenBody(runtime, record.exchange) as body:
        now_ms, encoding = services.context.now_ms(), services.settings.encoding
        request = await runtime.off_loop(
            body.size, lambda: encoded_request(body.joined(), encoding=encoding, now_ms=now_ms)
        )
        if services.security.authorizer is not None:
            await _check_rights(runtime, record, request)
        if isinstance(request, KeyedRequest):
            encoded = await _routed(runtime, request, body.size)
        else:
            encoded = request
        configs = await services.topics.of({batch.log.topic for batch in encoded.batches})
        encoded = within_limits(at_append_time(encoded, configs, now_ms), configs, now_ms)
    # The body's bytes were given back just now, and `produce` takes the groups' before any other task runs.
    produced = await services.produce(encoded.groups)
    record.timings, record.batches = produced.timings, len(encoded.batches)
    status, answer = answer_of(encoded, produced.outcomes)
    if status != 200:
        first = next(result for result in answer.results if not result.ok)
        record.note_failures(first.error_type, first.error, answer.error_count, len(answer.results))
    may_repeat = status == 503 and not any(result.error_type == AppendUncertain.__name__ for result in answer.results)
    return json_reply(answer, status, RETRY_AFTER if may_repeat else None)


async def _check_rights(runtime: Runtime, record: RequestRecord, request: EncodedRequest | KeyedRequest) -> None:
    """A request that names a topic it may not write to is refused whole; one that would create a topic or add a
    partition without the right to, too."""
    if isinstance(request, KeyedRequest):
        wanted = dict.fromkeys(request.topics, 0)
    else:
        wanted = {}
        for batch in request.batches:
            wanted[batch.log.topic] = max(batch.log.partition, wanted.get(batch.log.topic, 0))
    check_rights(runtime, record, ResourceType.TOPIC, wanted, Operation.WRITE)
    known = await runtime.services.topics.find(wanted)
    made = [topic for topic, partition in wanted.items() if not _exists(known[topic], partition)]
    if made:
        check_creation(runtime, record, made)


def _exists(topic: KnownTopic | LlogError, partition: int) -> bool:
    if isinstance(topic, LlogError):
        return not isinstance(topic, TopicNotFound)
    return partition < topic.partition_count


async def _routed(runtime: Runtime, request: KeyedRequest, size: int) -> EncodedRequest:
    """With a partition for each record. A topic that cannot be read fails the request: nothing was accepted."""
    counts: dict[str, int] = {}
    for topic, count in (await runtime.services.topics.partition_counts(request.topics)).items():
        if isinstance(count, LlogError):
            raise count
        counts[topic] = count
    return await runtime.off_loop(size, lambda: request.encoded(counts))


# -- the topics' limits ------------------------------------------------------------------------------------------------


def at_append_time(encoded: EncodedRequest, configs: Mapping[str, Config], now_ms: int) -> EncodedRequest:
    """With the time of the write as timestamp of all records whose topic wants that."""
    topics = {topic for topic, config in configs.items() if isinstance(config, TopicConfig) and config.log_append_time}
    if not topics:
        return encoded
    groups = [group.at_append_time(now_ms) if group.log.topic in topics else group for group in encoded.groups]
    return EncodedRequest(groups, encoded.batches)


def within_limits(encoded: EncodedRequest, configs: Mapping[str, Config], now_ms: int) -> EncodedRequest:
    """Without the batches that hold a record beyond the limits of their topic: each of those gets a refusal."""
    refusals = [_refusal(batch, configs[batch.log.topic], now_ms) for batch in encoded.batches]
    if not any(refusals):
        return encoded
    batches = [batch._replace(refusal=reason) for batch, reason in zip(encoded.batches, refusals, strict=True)]
    kept: dict[int, list[int]] = {}
    for row, batch in enumerate(batches):
        if batch.refusal is None:
            kept.setdefault(batch.group, []).append(row)
    groups: list[EncodedGroup] = []
    for number, rows in kept.items():
        pieces = [batches[row].piece for row in rows]  # in order: a log's batches are its pieces
        for piece, row in enumerate(rows):
            batches[row] = batches[row]._replace(group=len(groups), piece=piece)
        groups.append(encoded.groups[number].only(pieces))
    return EncodedRequest(groups, batches)


def _refusal(batch: RequestBatch, config: Config, now_ms: int) -> LogError | None:
    if isinstance(config, LlogError):
        return AppendNotCommitted(*batch.log, f"the configs of its topic could not be read: {config}")
    return refusal_of_records(batch.log, config, batch.record_bytes_max, batch.span, now_ms)


# -- outcomes as an answer ---------------------------------------------------------------------------------------------


def answer_of(encoded: EncodedRequest, outcomes: Sequence[Appended | LogError]) -> tuple[int, ProduceAnswer]:
    """The status: 200 when every batch landed; 503 when none did and the broker or its stores are the cause; else 409.

    A mix is a 409: the same request, sent again, would store the batches that landed twice."""
    pieces = [piece_outcomes(group, outcome) for group, outcome in zip(encoded.groups, outcomes, strict=True)]
    results: list[ProduceResult] = []
    errors: list[LogError] = []
    for batch in encoded.batches:
        if batch.refusal is not None:
            errors.append(batch.refusal)
            results.append(_failed(batch, batch.refusal))
            continue
        outcome, piece = outcomes[batch.group], pieces[batch.group][batch.piece]
        if isinstance(outcome, Appended) and isinstance(piece, Landed):
            results.append(_landed(batch, piece, outcome))
        else:
            error = piece if isinstance(piece, LogError) else outcome
            assert isinstance(error, LogError)
            errors.append(error)
            results.append(_failed(batch, error))
    answer = ProduceAnswer(results, len(results) - len(errors), len(errors))
    if not errors:
        return 200, answer
    none_landed = len(errors) == len(results)
    return (503 if none_landed and all(status_of(error) == 503 for error in errors) else 409), answer


def _landed(batch: RequestBatch, piece: Landed, appended: Appended) -> ProduceResult:
    return ProduceResult(
        topic=batch.log.topic,
        partition=batch.log.partition,
        ok=True,
        start_offset=piece.start_offset,
        end_offset=piece.end_offset,
        count=batch.msg_count,
        index_key=appended.index_key,
        wal_uri=appended.wal_uri,
        repeated=piece.repeated,
        **_origin(batch.origin),
    )


def _failed(batch: RequestBatch, error: LogError) -> ProduceResult:
    return ProduceResult(
        topic=batch.log.topic,
        partition=batch.log.partition,
        ok=False,
        error_type=type(error).__name__,
        error=str(error),
        **_origin(batch.origin),
    )


def _origin(origin: Origin | None) -> dict[str, Any]:
    if origin is None:
        return {}
    return {"batch": origin.number, "records": UNSET if origin.records is None else origin.records}
