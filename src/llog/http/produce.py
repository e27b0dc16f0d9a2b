"""`POST /produce`: records for many logs in, an outcome for each batch out.

The pure half turns a body into record groups (`encoded_request`) and outcomes into an answer (`answer_of`); it runs in
a thread when the body is large. One log may be named by several batches of a request: they become pieces of one group,
in order, and each has its own outcome.

What must stay true: a malformed request is refused whole, before anything is appended; a body's bytes are accounted for
from the socket on, and handed over to the producer without a moment in which they count twice or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from litestar import Request, Response, post
from msgspec import UNSET

from llog.errors import BackPressureRejected, InvalidArgument, LogError
from llog.formats.buffers import total_length
from llog.formats.bytes_batch import ENCODING as BYTES_BATCH
from llog.formats.bytes_batch import encode_bytes_batch
from llog.formats.crc import Buffer
from llog.formats.plain_batch import encode_plain_records
from llog.formats.record_batch import TimestampType
from llog.formats.record_columns import Header, columns_from_rows
from llog.formats.records import encode_columns
from llog.http.body import taken_body
from llog.http.decode import decoded_produce
from llog.http.openapi import operation
from llog.http.replies import RETRY_AFTER, json_reply
from llog.http.runtime import Access, request_record, runtime_of
from llog.http.schemas import (
    Base64,
    ProduceAnswer,
    ProduceBatch,
    ProduceRequest,
    ProduceResult,
    RecordObject,
    Text,
)
from llog.log.append import Appended, EncodedGroup, piece_outcomes
from llog.log.keys import Log, check_topic
from llog.log.pieces import Landed, Piece
from llog.log.producers import SEQUENCE_MODULUS, ProducerClaim

KAFKA: Final = "kafka-v2"


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
            503: (ProduceAnswer, "Every batch met back-pressure: nothing was accepted, try again."),
        },
    ),
)
async def produce(request: Request) -> Response[bytes]:  # type: ignore[type-arg]
    runtime = runtime_of(request)
    services = runtime.broker
    async with taken_body(runtime, request) as body:
        now_ms, encoding = services.context.now_ms(), services.settings.encoding
        encoded = await runtime.off_loop(
            body.size, lambda: encoded_request(body.joined(), encoding=encoding, now_ms=now_ms)
        )
    # The body was given back just now, and `produce` takes the groups before anybody else has a turn.
    produced = await services.produce(encoded.groups)
    record = request_record(request)
    record.timings, record.batches = produced.timings, len(encoded.places)
    status, answer = answer_of(encoded, produced.outcomes)
    return json_reply(answer, status, headers=RETRY_AFTER if status == 503 else None)


# -- a body as record groups -------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where a batch of the request went."""

    log: Log
    msg_count: int
    group: int
    piece: int


class EncodedRequest(NamedTuple):
    groups: list[EncodedGroup]
    places: list[Place]
    """One per batch, in the order of the request."""


class EncodedBatch(NamedTuple):
    """One batch, ready to be a piece."""

    encoding: str
    body: Sequence[Buffer]
    piece: Piece


class Rows(NamedTuple):
    """A batch's records, column by column; None where no record has such a thing."""

    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    headers: list[list[Header]] | None = None
    timestamps_ms: list[int] | None = None

    def bare_values(self) -> list[bytes] | None:
        """The values, where there is nothing beside them and none is null."""
        if self.keys is None and self.headers is None and self.timestamps_ms is None and None not in self.values:
            return cast(list[bytes], self.values)
        return None


def encoded_request(body: bytes, *, encoding: str, now_ms: int) -> EncodedRequest:
    """`InvalidArgument` names the field that cannot be accepted."""
    request = decoded_produce(body)
    by_log: dict[Log, list[int]] = {}
    logs = []
    for number, batch in enumerate(request.topic_partitions):
        log = checked_log(batch.topic, batch.partition, f"topic_partitions[{number}].topic")
        logs.append(log)
        by_log.setdefault(log, []).append(number)
    groups: list[EncodedGroup] = []
    places: list[Place | None] = [None] * len(logs)
    for log, numbers in by_log.items():
        # A slice of bare payloads is one batch, so a log that is named twice gets the other encoding.
        wanted = encoding if len(numbers) == 1 else KAFKA
        batches = [
            _encoded_batch(request.topic_partitions[number], f"topic_partitions[{number}]", wanted, now_ms)
            for number in numbers
        ]
        for piece, (number, encoded) in enumerate(zip(numbers, batches, strict=True)):
            places[number] = Place(log, encoded.piece.msg_count, len(groups), piece)
        groups.append(_group(log, batches))
    return EncodedRequest(groups, [place for place in places if place is not None])


def checked_log(topic: str, partition: int, path: str) -> Log:
    try:
        return Log(check_topic(topic), partition)
    except InvalidArgument as error:
        raise InvalidArgument(path, error.reason) from None


def _group(log: Log, batches: Sequence[EncodedBatch]) -> EncodedGroup:
    pieces = tuple(batch.piece for batch in batches)
    return EncodedGroup(
        log,
        sum(piece.msg_count for piece in pieces),
        batches[0].encoding,
        [buffer for batch in batches for buffer in batch.body],
        max(piece.max_timestamp_ms for piece in pieces),
        pieces=pieces,
    )


def _encoded_batch(batch: ProduceBatch, path: str, encoding: str, now_ms: int) -> EncodedBatch:
    rows = _rows(batch.records, f"{path}.records", now_ms)
    claim = _claim(batch, path)
    count, bare = len(rows.values), rows.bare_values()
    if bare is not None and encoding == BYTES_BATCH:
        body = encode_bytes_batch(bare)
        return EncodedBatch(BYTES_BATCH, body, Piece(count, total_length(body), claim, now_ms))
    producer: dict[str, Any] = {} if claim is None else _producer_fields(claim)
    if bare is not None:
        data: Buffer = encode_plain_records(bare, timestamp_ms=now_ms, log_append_time=True, **producer)
        return EncodedBatch(KAFKA, [data], Piece(count, len(data), claim, now_ms))
    # Where the producer gave no time it is the broker's, and says so: such a record shows none when it is read.
    stamped = rows.timestamps_ms is not None
    columns = columns_from_rows(
        rows.values,
        keys=rows.keys,
        headers=rows.headers,
        timestamps_ms=now_ms if rows.timestamps_ms is None else rows.timestamps_ms,
    )
    timestamp_type = TimestampType.CREATE_TIME if stamped else TimestampType.LOG_APPEND_TIME
    data = encode_columns(columns, timestamp_type=timestamp_type, **producer)
    newest_ms = now_ms if rows.timestamps_ms is None else max(rows.timestamps_ms)
    return EncodedBatch(KAFKA, [data], Piece(count, len(data), claim, newest_ms))


def _producer_fields(claim: ProducerClaim) -> dict[str, int]:
    return {"producer_id": claim.producer_id, "producer_epoch": claim.epoch, "base_sequence": claim.first_sequence}


def _rows(records: Sequence[str | RecordObject], path: str, now_ms: int) -> Rows:
    if set(map(type, records)) == {str}:
        return Rows(list(map(str.encode, cast(Sequence[str], records))))
    objects = [record if isinstance(record, RecordObject) else None for record in records]
    values = [
        record.encode() if isinstance(record, str) else _payload(record, f"{path}[{row}]")
        for row, record in enumerate(records)
    ]
    keyed = any(record is not None and record.key is not None for record in objects)
    headed = any(record is not None and record.headers for record in objects)
    stamped = any(record is not None and record.timestamp_ms is not UNSET for record in objects)
    return Rows(
        values,
        [None if record is None else _bytes(record.key) for record in objects] if keyed else None,
        [[] if record is None else _headers(record) for record in objects] if headed else None,
        [now_ms if record is None or record.timestamp_ms is UNSET else record.timestamp_ms for record in objects]
        if stamped
        else None,
    )


def _payload(record: RecordObject, path: str) -> bytes | None:
    if isinstance(record.base64, bytes):
        if record.value is not UNSET:
            raise InvalidArgument(f"{path}.value", "a record has a value or base64, not both")
        return record.base64
    if record.value is UNSET:
        raise InvalidArgument(f"{path}.value", "missing: a record has a value (null for a tombstone) or base64")
    return _bytes(record.value)


def _bytes(text: Text) -> bytes | None:
    if text is None:
        return None
    return text.base64 if isinstance(text, Base64) else text.encode()


def _headers(record: RecordObject) -> list[Header]:
    return [
        (name, _bytes(value))
        for name, values in record.headers.items()
        for value in (values if isinstance(values, list) else [values])
    ]


def _claim(batch: ProduceBatch, path: str) -> ProducerClaim | None:
    if batch.producer_id is batch.epoch is batch.sequence is UNSET:
        return None
    given = {name: getattr(batch, name) for name in ("producer_id", "epoch", "sequence")}
    missing = [name for name, value in given.items() if value is UNSET]
    if missing:
        raise InvalidArgument(f"{path}.{missing[0]}", "missing: producer_id, epoch and sequence come together")
    first = given["sequence"]
    last = (first + len(batch.records) - 1) % SEQUENCE_MODULUS
    return ProducerClaim(given["producer_id"], given["epoch"], first, last)


# -- outcomes as an answer ---------------------------------------------------------------------------------------------


def answer_of(encoded: EncodedRequest, outcomes: Sequence[Appended | LogError]) -> tuple[int, ProduceAnswer]:
    """The status: 200 when every batch landed, 503 when every one met back-pressure, else 409."""
    pieces = [piece_outcomes(group, outcome) for group, outcome in zip(encoded.groups, outcomes, strict=True)]
    results, errors = [], []
    for place in encoded.places:
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
