"""The body of a produce request as record groups, ready to be appended. Pure: large bodies are handled in a thread.

Several batches for one log become pieces of one record group, in order. A plain body is never made into Python objects
(`plain_scan`); any other is decoded, and its batches of text are encoded together. A malformed request is refused
whole, with its field named. Both ways of reading give the same groups.

A batch without a partition is divided by its records' keys into a batch for each partition. That needs the topic's
number of partitions, which is not in the request: such a request is encoded in a second step (`KeyedRequest`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from msgspec import UNSET, UnsetType

from llog.errors import InvalidArgument, LogError
from llog.formats.buffers import Buffer, total_length
from llog.formats.records.bytes_batch import ENCODING as BYTES_BATCH
from llog.formats.records.bytes_batch import encode_bytes_batch
from llog.formats.records.encode import encode_columns, largest_record_bytes, plain_record_bytes
from llog.formats.records.plain_batches import (
    NO_PRODUCER,
    PlainBatch,
    ProducerFields,
    encode_payloads,
    encode_plain_batches,
)
from llog.formats.records.record_batch import TimestampType
from llog.formats.records.record_columns import columns_from_rows
from llog.http.json.decode import checked_log, decoded_produce
from llog.http.json.plain_scan import ScannedRequest, scan
from llog.http.json.produce_route import Origin, PlannedBatch, divided, keyed_rows
from llog.http.json.produce_rows import rows_of
from llog.http.json.schemas import ProduceBatch
from llog.limits import HTTP_TOPIC_PARTITIONS_MAX, KIB
from llog.log.append.append import EncodedGroup
from llog.log.append.pieces import Piece
from llog.log.keys import Log
from llog.log.producers import SEQUENCE_MODULUS, ProducerClaim
from llog.log.topics.record_limits import AT_THE_CLOCK, TimestampSpan, span_of

HTTP_SCAN_BYTES_MIN: Final = 16 * KIB
"""Smaller bodies are not tried with the kernel, which costs some microseconds to call."""

KAFKA: Final = "kafka-v2"
_TEXTS: Final = {str}


class RequestBatch(NamedTuple):
    """A batch of the request, and the piece of a record group that it became."""

    log: Log
    msg_count: int
    group: int
    piece: int
    record_bytes_max: int
    """Size of its largest record as a batch of its own."""
    span: TimestampSpan = AT_THE_CLOCK
    refusal: LogError | None = None
    """Why it is not appended; then it is in no group."""
    origin: Origin | None = None
    """None if all batches of the request name their partition."""


class EncodedRequest(NamedTuple):
    groups: list[EncodedGroup]
    batches: list[RequestBatch]
    """One per batch, in the order of the request."""


class EncodedBatch(NamedTuple):
    """One batch, ready to be a piece."""

    encoding: str
    body: Sequence[Buffer]
    piece: Piece
    record_bytes_max: int
    span: TimestampSpan = AT_THE_CLOCK


def encoded_request(
    body: bytes, *, encoding: str, now_ms: int, scan_bytes_min: int = HTTP_SCAN_BYTES_MIN
) -> EncodedRequest | KeyedRequest:
    """`InvalidArgument` names the field that cannot be accepted."""
    if encoding == KAFKA and len(body) >= scan_bytes_min:
        scanned = scan(body)
        if scanned is not None:
            _check_topics(scanned.topics)
            logs = list(map(Log, scanned.topics, scanned.partitions))
            return _arranged(logs, _scanned_batches(scanned, now_ms))
    batches = decoded_produce(body).topic_partitions
    _check_topics([batch.topic for batch in batches])
    planned: list[PlannedBatch] = []
    for number, batch in enumerate(batches):
        if isinstance(batch.partition, UnsetType):
            return KeyedRequest(batches, encoding, now_ms)
        planned.append(PlannedBatch(Log(batch.topic, batch.partition), batch, number))
    return _encoded(planned, encoding, now_ms)


class KeyedRequest:
    """A request in which the keys of some batches choose the partitions: well-formed, and not encoded yet."""

    def __init__(self, batches: Sequence[ProduceBatch], encoding: str, now_ms: int) -> None:
        self._batches, self._encoding, self._now_ms = batches, encoding, now_ms
        self._rows = {
            number: keyed_rows(batch, f"topic_partitions[{number}]", now_ms)
            for number, batch in enumerate(batches)
            if isinstance(batch.partition, UnsetType)
        }
        self.topics = {batches[number].topic for number in self._rows}
        """Topics whose number of partitions is needed."""

    def encoded(self, partition_counts: Mapping[str, int]) -> EncodedRequest:
        planned: list[PlannedBatch] = []
        for number, batch in enumerate(self._batches):
            if isinstance(batch.partition, UnsetType):
                planned += divided(batch, number, self._rows[number], partition_counts[batch.topic])
            else:
                log = Log(batch.topic, batch.partition)
                planned.append(PlannedBatch(log, batch, number, origin=Origin(number)))
        if len(planned) > HTTP_TOPIC_PARTITIONS_MAX:
            reason = f"its keys lead to {len(planned)} partitions; at most {HTTP_TOPIC_PARTITIONS_MAX} in one request"
            raise InvalidArgument("topic_partitions", reason)
        return _encoded(planned, self._encoding, self._now_ms)


def _check_topics(topics: Sequence[str]) -> None:
    for topic in dict.fromkeys(topics):
        checked_log(topic, 0, f"topic_partitions[{topics.index(topic)}].topic")


def _encoded(planned: Sequence[PlannedBatch], encoding: str, now_ms: int) -> EncodedRequest:
    logs = [plan.log for plan in planned]
    # A slice of bare payloads holds one batch, so a log that is named twice gets the other encoding.
    times = Counter(logs)
    wanted = [encoding if times[log] == 1 else KAFKA for log in logs]
    return _arranged(logs, _encoded_batches(planned, wanted, now_ms), [plan.origin for plan in planned])


def _arranged(
    logs: Sequence[Log], batches: Sequence[EncodedBatch], origins: Sequence[Origin | None] | None = None
) -> EncodedRequest:
    """Batches of one log become pieces of one group, in order."""
    origins = [None] * len(logs) if origins is None else origins
    if len(set(logs)) == len(logs):  # nearly always
        rows = list(zip(logs, batches, origins, strict=True))
        return EncodedRequest(
            [_single(log, batch) for log, batch, _ in rows],
            [
                RequestBatch(log, batch.piece.msg_count, number, 0, batch.record_bytes_max, batch.span, None, origin)
                for number, (log, batch, origin) in enumerate(rows)
            ],
        )
    by_log: dict[Log, list[EncodedBatch]] = {}
    places = []
    for log, batch, origin in zip(logs, batches, origins, strict=True):
        own = by_log.setdefault(log, [])
        own.append(batch)
        places.append((log, batch.piece.msg_count, len(own) - 1, batch.record_bytes_max, batch.span, origin))
    group_of = {log: number for number, log in enumerate(by_log)}
    return EncodedRequest(
        [_group(log, own) for log, own in by_log.items()],
        [
            RequestBatch(log, count, group_of[log], piece, largest, span, None, origin)
            for log, count, piece, largest, span, origin in places
        ],
    )


def _single(log: Log, batch: EncodedBatch) -> EncodedGroup:
    encoding, body, piece, _, _ = batch
    return EncodedGroup(log, piece.msg_count, encoding, body, piece.max_timestamp_ms, (), (piece,))


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


def _scanned_batches(scanned: ScannedRequest, now_ms: int) -> list[EncodedBatch]:
    counts, claims = scanned.msg_counts, scanned.claims
    encoded = encode_payloads(
        scanned.payloads,
        counts,
        timestamp_ms=now_ms,
        log_append_time=True,
        producers=None if claims.count(None) == len(claims) else _producers(claims),
    )
    return _as_pieces(encoded, counts, claims, now_ms)


def _encoded_batches(planned: Sequence[PlannedBatch], encodings: Sequence[str], now_ms: int) -> list[EncodedBatch]:
    """One for each. Batches of nothing but text, which nearly all are, are encoded together."""
    claims = [_claim(plan.batch, plan.path) for plan in planned]
    plain = [
        place
        for place, plan in enumerate(planned)
        if plan.rows is None and encodings[place] == KAFKA and set(map(type, plan.batch.records)) == _TEXTS
    ]
    together = iter(_plain_batches([planned[n].batch for n in plain], [claims[n] for n in plain], now_ms))
    taken = set(plain)
    return [
        next(together) if place in taken else _encoded_batch(plan, claims[place], encodings[place], now_ms)
        for place, plan in enumerate(planned)
    ]


def _plain_batches(
    batches: Sequence[ProduceBatch], claims: Sequence[ProducerClaim | None], now_ms: int
) -> list[EncodedBatch]:
    records = cast(list[list[str]], [batch.records for batch in batches])
    encoded = encode_plain_batches(records, timestamp_ms=now_ms, log_append_time=True, producers=_producers(claims))
    return _as_pieces(encoded, list(map(len, records)), claims, now_ms)


def _producers(claims: Sequence[ProducerClaim | None]) -> list[ProducerFields]:
    return [
        NO_PRODUCER if claim is None else (claim.producer_id, claim.epoch, claim.first_sequence) for claim in claims
    ]


def _as_pieces(
    encoded: Sequence[PlainBatch], counts: Sequence[int], claims: Sequence[ProducerClaim | None], now_ms: int
) -> list[EncodedBatch]:
    return [
        EncodedBatch(
            KAFKA,
            [data],
            Piece(count, len(data), claim, now_ms, payload_bytes=payload_bytes),
            plain_record_bytes(payload_bytes_max),
        )
        for (data, payload_bytes_max, payload_bytes), count, claim in zip(encoded, counts, claims, strict=True)
    ]


def _encoded_batch(plan: PlannedBatch, claim: ProducerClaim | None, encoding: str, now_ms: int) -> EncodedBatch:
    rows = rows_of(plan.batch.records, f"{plan.path}.records", now_ms) if plan.rows is None else plan.rows
    largest = largest_record_bytes(rows.values, rows.keys, rows.headers)
    count, bare = len(rows.values), rows.bare_values()
    if bare is not None and encoding == BYTES_BATCH:
        body = encode_bytes_batch(bare)
        piece = Piece(count, total_length(body), claim, now_ms, payload_bytes=total_length(bare))
        return EncodedBatch(BYTES_BATCH, body, piece, largest)
    producer: dict[str, Any] = {} if claim is None else _producer_fields(claim)
    # Without a timestamp of the producer the batch says LOG_APPEND_TIME, and its records show none when read.
    stamped = rows.timestamps_ms is not None
    columns = columns_from_rows(
        rows.values,
        keys=rows.keys,
        headers=rows.headers,
        timestamps_ms=now_ms if rows.timestamps_ms is None else rows.timestamps_ms,
    )
    timestamp_type = TimestampType.CREATE_TIME if stamped else TimestampType.LOG_APPEND_TIME
    data: Buffer = encode_columns(columns, timestamp_type=timestamp_type, **producer)
    payload_bytes = columns.values.data.nbytes
    if rows.timestamps_ms is None:
        piece = Piece(count, len(data), claim, now_ms, payload_bytes=payload_bytes)
        return EncodedBatch(KAFKA, [data], piece, largest)
    piece = Piece(count, len(data), claim, max(rows.timestamps_ms), payload_bytes=payload_bytes)
    return EncodedBatch(KAFKA, [data], piece, largest, span_of(rows.timestamps_ms, now_ms))


def _producer_fields(claim: ProducerClaim) -> dict[str, int]:
    return {"producer_id": claim.producer_id, "producer_epoch": claim.epoch, "base_sequence": claim.first_sequence}


def _claim(batch: ProduceBatch, path: str) -> ProducerClaim | None:
    if batch.producer_id is batch.epoch is batch.sequence is UNSET:
        return None
    given = {name: getattr(batch, name) for name in ("producer_id", "epoch", "sequence")}
    missing = [name for name, value in given.items() if value is UNSET]
    if missing:
        raise InvalidArgument(f"{path}.{missing[0]}", "missing: send producer_id, epoch and sequence, or none")
    first = given["sequence"]
    last = (first + len(batch.records) - 1) % SEQUENCE_MODULUS
    return ProducerClaim(given["producer_id"], given["epoch"], first, last)
