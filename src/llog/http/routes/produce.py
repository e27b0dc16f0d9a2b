"""`POST /produce`: records for many logs in, an outcome for each batch out.

The pure half turns a body into record groups (`produce_encode`) and outcomes into an answer (`answer_of`). One log may
be named by several batches of a request: they become pieces of one group, in order, and each has its own outcome.

A record larger than its topic's `max.message.bytes` takes its batch along, and no other. The broker makes the batches
that are stored, so it is the record, as a batch of its own, that must fit.

What must stay true: a malformed request is refused whole, before anything is appended; a body's bytes are accounted for
from the socket on, and handed over to the producer without a moment in which they count twice or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from litestar import Request, Response, post

from llog.broker.topic_configs import Config
from llog.errors import (
    AppendNotCommitted,
    BackPressureRejected,
    LlogError,
    LogError,
    RecordTooLarge,
    RequestOverload,
)
from llog.http.json.produce_encode import EncodedRequest, Place, encoded_request
from llog.http.json.replies import RETRY_AFTER, json_reply
from llog.http.json.schemas import ErrorAnswer, ProduceAnswer, ProduceRequest, ProduceResult
from llog.http.listener.body import TakenBody
from llog.http.listener.runtime import Access, request_record, runtime_of
from llog.http.routes.openapi import operation
from llog.log.append.append import Appended, EncodedGroup, piece_outcomes
from llog.log.append.pieces import Landed


@post(
    "/produce",
    status_code=200,
    opt={Access.KEY: Access.WRITE},
    summary="Append records to one or many logs",
    operation_class=operation(
        ProduceRequest,
        {
            200: (ProduceAnswer, "Every batch is durable, at these offsets."),
            409: (ProduceAnswer, "At least one batch failed; the others are durable."),
            413: (None, "The body is larger than LLOG_HTTP_BODY_MAX_BYTES."),
            503: (ProduceAnswer | ErrorAnswer, "Back-pressure, for every batch: nothing was accepted, try again."),
        },
    ),
)
async def produce(request: Request) -> Response[bytes]:  # type: ignore[type-arg]
    runtime = runtime_of(request)
    services = runtime.broker
    if refusal := services.refusal():
        raise RequestOverload(f"{refusal}; nothing was accepted")
    async with TakenBody(runtime, request) as body:
        now_ms, encoding = services.context.now_ms(), services.settings.encoding
        encoded = await runtime.off_loop(
            body.size, lambda: encoded_request(body.joined(), encoding=encoding, now_ms=now_ms)
        )
        configs = await services.topic_configs.of({place.log.topic for place in encoded.places})
        encoded = within_limits(encoded, configs)
    # The body was given back just now, and `produce` takes the groups before anybody else has a turn.
    produced = await services.produce(encoded.groups)
    record = request_record(request)
    record.timings, record.batches = produced.timings, len(encoded.places)
    status, answer = answer_of(encoded, produced.outcomes)
    return json_reply(answer, status, headers=RETRY_AFTER if status == 503 else None)


# -- the topics' limits ------------------------------------------------------------------------------------------------


def within_limits(encoded: EncodedRequest, configs: Mapping[str, Config]) -> EncodedRequest:
    """Without the batches that hold a record too large for their topic; those are refused, each for itself."""
    refusals = [_refusal(place, configs[place.log.topic]) for place in encoded.places]
    if not any(refusals):
        return encoded
    places = [place._replace(refusal=why) for place, why in zip(encoded.places, refusals, strict=True)]
    kept: dict[int, list[int]] = {}
    for row, place in enumerate(places):
        if place.refusal is None:
            kept.setdefault(place.group, []).append(row)
    groups: list[EncodedGroup] = []
    for number, rows in kept.items():
        pieces = [places[row].piece for row in rows]  # in order: batches of one log are its pieces as they came
        for piece, row in enumerate(rows):
            places[row] = places[row]._replace(group=len(groups), piece=piece)
        groups.append(encoded.groups[number].only(pieces))
    return EncodedRequest(groups, places)


def _refusal(place: Place, config: Config) -> LogError | None:
    if isinstance(config, LlogError):
        return AppendNotCommitted(*place.log, f"its topic's configs could not be read: {config}")
    limit = config.max_message_bytes
    return RecordTooLarge(*place.log, place.record_bytes_max, limit) if place.record_bytes_max > limit else None


# -- outcomes as an answer ---------------------------------------------------------------------------------------------


def answer_of(encoded: EncodedRequest, outcomes: Sequence[Appended | LogError]) -> tuple[int, ProduceAnswer]:
    """The status: 200 when every batch landed, 503 when every one met back-pressure, else 409."""
    pieces = [piece_outcomes(group, outcome) for group, outcome in zip(encoded.groups, outcomes, strict=True)]
    results: list[ProduceResult] = []
    errors: list[LogError] = []
    for place in encoded.places:
        if place.refusal is not None:
            errors.append(place.refusal)
            results.append(_failed(place, place.refusal))
            continue
        outcome, piece = outcomes[place.group], pieces[place.group][place.piece]
        if isinstance(outcome, Appended) and isinstance(piece, Landed):
            results.append(_landed(place, piece, outcome))
        else:
            error = piece if isinstance(piece, LogError) else outcome
            assert isinstance(error, LogError)
            errors.append(error)
            results.append(_failed(place, error))
    answer = ProduceAnswer(results, len(results) - len(errors), len(errors))
    if not errors:
        return 200, answer
    refused = len(errors) == len(results) and all(isinstance(error, BackPressureRejected) for error in errors)
    return (503 if refused else 409), answer


def _landed(place: Place, piece: Landed, appended: Appended) -> ProduceResult:
    return ProduceResult(
        topic=place.log.topic,
        partition=place.log.partition,
        ok=True,
        start_offset=piece.start_offset,
        end_offset=piece.end_offset,
        count=place.msg_count,
        index_key=appended.index_key,
        wal_uri=appended.wal_uri,
        repeated=piece.repeated,
    )


def _failed(place: Place, error: LogError) -> ProduceResult:
    return ProduceResult(
        topic=place.log.topic,
        partition=place.log.partition,
        ok=False,
        error_type=type(error).__name__,
        error=str(error),
    )
