"""Judges the batch of one partition as a Kafka broker does, and makes a record group of it.

A refused batch gets Kafka's code, which decides whether its client retries, splits the batch or gives up. Errors of
single records are named where Kafka names them: null keys in a compacted topic, and timestamps outside the window.

Timestamps: in a topic with `message.timestamp.type=LogAppendTime` the batch is stamped with the time of the write. In
others records keep their timestamps, and the header is corrected where it contradicts its records. Both change the
frame in place, which belongs to this request alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from llog.errors import DecodedTooLarge, FormatError
from llog.formats.buffers import Buffer
from llog.formats.records.decode import decode_records
from llog.formats.records.produced import NO_RECORD, NO_TIMESTAMP_MS, BatchFault, ProducedBatch, stamp, walk_inflated
from llog.formats.records.record_batch import LOG_APPEND_TIME, Codec
from llog.formats.records.record_columns import RecordColumns
from llog.kafka.error_codes import ErrorCode
from llog.log.append.append import EncodedGroup
from llog.log.append.pieces import Piece
from llog.log.keys import Log
from llog.log.producers import SEQUENCE_MODULUS, ProducerClaim
from llog.log.topics.config import TopicConfig
from llog.log.topics.known_topics import KnownTopic

ZSTD_FROM_VERSION: Final = 7
# Records of one batch whose errors an answer names; clients show them to people.
RECORD_ERRORS_MAX: Final = 100

ENCODING: Final = "kafka-v2"
Flags = npt.NDArray[np.bool_]


class RecordError(NamedTuple):
    record: int
    reason: str


class RefusedBatch(NamedTuple):
    code: ErrorCode
    reason: str
    records: tuple[RecordError, ...] = ()


class AcceptedBatch(NamedTuple):
    group: EncodedGroup
    append_time_ms: int
    """The timestamp that all records got; NO_TIMESTAMP_MS: they keep their own."""


_FAULTS: Final[Mapping[BatchFault, tuple[ErrorCode, str]]] = {
    BatchFault.NO_BATCH: (ErrorCode.INVALID_RECORD, "a partition needs one record batch, and has none"),
    BatchFault.BAD_MAGIC: (ErrorCode.CORRUPT_MESSAGE, "the batch has an unknown magic"),
    BatchFault.OLD_MAGIC: (ErrorCode.INVALID_RECORD, "only batches of magic 2 are accepted"),
    BatchFault.BAD_LENGTH: (ErrorCode.CORRUPT_MESSAGE, "the batch is shorter than its header"),
    BatchFault.INCOMPLETE: (ErrorCode.INVALID_RECORD, "the batch is longer than the bytes that were sent"),
    BatchFault.MORE_BATCHES: (ErrorCode.INVALID_RECORD, "a partition needs exactly one record batch, and has more"),
    BatchFault.BAD_CHECKSUM: (ErrorCode.CORRUPT_MESSAGE, "the batch does not have its checksum"),
    BatchFault.UNKNOWN_CODEC: (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "the batch names an unknown compression codec"),
    BatchFault.BASE_OFFSET_SET: (ErrorCode.INVALID_RECORD, "the base offset of a batch to append must be 0"),
    BatchFault.BAD_COUNT: (ErrorCode.INVALID_RECORD, "the batch's record count contradicts its offsets or its length"),
    BatchFault.CONTROL_BATCH: (ErrorCode.INVALID_RECORD, "clients may not write control batches"),
    BatchFault.HORIZON_SET: (ErrorCode.INVALID_RECORD, "clients may not set a delete horizon"),
}
"""All but TOO_LARGE and BAD_RECORD, whose reasons have numbers."""


def judge(
    log: Log, topic: KnownTopic, records: Buffer | None, batch: ProducedBatch, *, version: int, now_ms: int
) -> AcceptedBatch | RefusedBatch:
    """`batch` is what `check_batches` found in `records`; `version` is the request's."""
    config = topic.config
    if batch.fault or records is None or batch.attributes or batch.producer_id >= 0:  # else there is nothing to refuse
        refused = _refusal(config, batch, version)
        if refused is not None or records is None:
            return refused or _of_fault(config, batch)
    if config.compact and batch.codec is not Codec.NONE:
        try:
            batch = walk_inflated(records, batch)
        except DecodedTooLarge as error:
            return RefusedBatch(ErrorCode.MESSAGE_TOO_LARGE, str(error))
        except FormatError as error:
            return RefusedBatch(ErrorCode.CORRUPT_MESSAGE, str(error))
        if batch.fault is not BatchFault.NONE:
            return _of_fault(config, batch)
    refused = _refused_records(config, records, batch, now_ms)
    return refused or _accepted(log, topic, records, batch, now_ms)


def _refusal(config: TopicConfig, batch: ProducedBatch, version: int) -> RefusedBatch | None:
    if batch.fault is not BatchFault.NONE:
        return _of_fault(config, batch)
    if batch.codec is Codec.ZSTD and version < ZSTD_FROM_VERSION:
        reason = f"zstd needs Produce v{ZSTD_FROM_VERSION}, this request has v{version}"
        return RefusedBatch(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, reason)
    if batch.is_transactional:
        return RefusedBatch(ErrorCode.INVALID_TXN_STATE, "transactions are not supported yet")
    if batch.producer_id >= 0 and (batch.producer_epoch < 0 or batch.base_sequence < 0):
        return RefusedBatch(ErrorCode.INVALID_RECORD, "a batch with a producer id needs an epoch and a sequence number")
    return None


def _of_fault(config: TopicConfig, batch: ProducedBatch) -> RefusedBatch:
    if batch.fault is BatchFault.TOO_LARGE:
        reason = f"the batch takes {batch.byte_length} bytes, more than max.message.bytes of {config.max_message_bytes}"
        return RefusedBatch(ErrorCode.MESSAGE_TOO_LARGE, reason)
    if batch.fault is BatchFault.BAD_RECORD:
        reason = f"record {batch.bad_record} of the batch, or what follows it, is malformed"
        return RefusedBatch(ErrorCode.INVALID_RECORD, reason)
    return RefusedBatch(*_FAULTS[batch.fault])


def _accepted(log: Log, topic: KnownTopic, records: Buffer, batch: ProducedBatch, now_ms: int) -> AcceptedBatch:
    append_time, count = topic.config.log_append_time, batch.record_count
    newest_ms = now_ms if append_time else batch.newest_ms
    if append_time or newest_ms != batch.max_timestamp or batch.attributes & LOG_APPEND_TIME:
        records = _writable(records)
        stamp(records, newest_ms, log_append_time=append_time)
    claim = None
    if batch.producer_id >= 0:
        last = (batch.base_sequence + count - 1) % SEQUENCE_MODULUS
        claim = ProducerClaim(batch.producer_id, batch.producer_epoch, batch.base_sequence, last)
    piece = Piece(count, batch.byte_length, claim, newest_ms, topic.incarnation, batch.value_bytes)
    group = EncodedGroup(log, count, ENCODING, (records,), newest_ms, (), (piece,))
    return AcceptedBatch(group, now_ms if append_time else NO_TIMESTAMP_MS)


def _writable(records: Buffer) -> Buffer:
    return bytearray(records) if memoryview(records).readonly else records


# -- single records ----------------------------------------------------------------------------------------------------


def _refused_records(config: TopicConfig, records: Buffer, batch: ProducedBatch, now_ms: int) -> RefusedBatch | None:
    """The refusal of a batch in which single records break a rule of their topic."""
    if config.compact and batch.null_key != NO_RECORD:
        errors = _record_errors(
            records, lambda columns: columns.keys.null_flags(), "a record of a compacted topic needs a key"
        )
        return RefusedBatch(ErrorCode.INVALID_RECORD, "records without a key in a compacted topic", errors)
    if config.log_append_time:
        if not batch.is_log_append_time:
            return None
        return RefusedBatch(ErrorCode.INVALID_TIMESTAMP, "only a broker sets the timestamp type to LogAppendTime")
    oldest_ms, newest_ms = now_ms - config.timestamp_before_max_ms, now_ms + config.timestamp_after_max_ms
    if batch.newest_ms <= newest_ms and (batch.oldest_ms >= oldest_ms or batch.oldest_ms == NO_TIMESTAMP_MS):
        return None

    def outside(columns: RecordColumns) -> Flags:
        given = columns.timestamps_ms
        flags: Flags = ((given > newest_ms) | (given < oldest_ms)) & (given != NO_TIMESTAMP_MS)
        return flags

    reason = (
        f"its timestamp is not between {oldest_ms} and {newest_ms}, the topic's window around the time of the write"
    )
    errors = _record_errors(records, outside, reason) if batch.codec is Codec.NONE else ()
    return RefusedBatch(ErrorCode.INVALID_TIMESTAMP, "records have timestamps outside the topic's window", errors)


def _record_errors(records: Buffer, is_wrong: Callable[[RecordColumns], Flags], reason: str) -> tuple[RecordError, ...]:
    """The records that are wrong, for the answer. Only a refused batch is decoded."""
    wrong = np.flatnonzero(is_wrong(decode_records(records, "batch", verify=False)))
    return tuple(RecordError(row, reason) for row in wrong[:RECORD_ERRORS_MAX].tolist())
