"""The record groups that users of the library append, judged by their topics' limits, and the results they get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index
from typing import NamedTuple

from llog.errors import AppendNotCommitted, InvalidArgument, LlogError, LogError, StoreError
from llog.formats.buffers import Buffer, total_length
from llog.formats.records.bytes_batch import ENCODING as BYTES_BATCH
from llog.formats.records.bytes_batch import encode_bytes_batch
from llog.formats.records.encode import encode_columns, plain_record_bytes, record_bytes
from llog.formats.records.record_columns import Header, columns_from_rows
from llog.log.append.append import EncodedGroup
from llog.log.append.pieces import Piece
from llog.log.keys import Log, check_partition, check_topic
from llog.log.topics.known_topics import Config, KnownTopics
from llog.log.topics.record_limits import AT_THE_CLOCK, TimestampSpan, refusal_of_records, span_of


@dataclass(frozen=True)
class SharedAppendGroup:
    """Records for one log. Payloads are bytes or text (UTF-8); None is a tombstone. Keys, headers and timestamps, if
    given, have one element per payload."""

    topic: str
    partition: int
    payloads: Sequence[bytes | str | None]
    keys: Sequence[bytes | str | None] | None = None
    headers: Sequence[Sequence[Header] | None] | None = None
    timestamps_ms: Sequence[int] | None = field(default=None)

    @property
    def log(self) -> Log:
        return Log(check_topic(self.topic), check_partition(self.partition))


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The offsets and the object of an appended record group."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    count: int
    index_key: str
    wal_uri: str


class MeasuredGroup(NamedTuple):
    """An encoded group, and what its topic's limits apply to."""

    encoded: EncodedGroup
    record_bytes_max: int
    span: TimestampSpan = AT_THE_CLOCK


def encode_group(group: SharedAppendGroup, *, encoding: str, now_ms: int) -> MeasuredGroup:
    """Raises `InvalidArgument` for a group that can never be stored."""
    if isinstance(group.payloads, str | bytes):  # sequences too, but not of records
        raise InvalidArgument(
            "payloads", f"{group.log}: must be a list of records, got one {type(group.payloads).__name__}"
        )
    if not group.payloads:
        raise InvalidArgument("payloads", f"{group.log}: a group holds at least one record")
    payloads = [_bytes("payloads", payload) for payload in group.payloads]
    plain = group.keys is None and group.headers is None and group.timestamps_ms is None
    if encoding == BYTES_BATCH:
        if not plain or None in payloads:
            raise InvalidArgument("encoding", f"{BYTES_BATCH} holds bare payloads: no key, header, timestamp or null")
        bare = [payload for payload in payloads if payload is not None]
        encoded = _encoded(group.log, len(bare), encoding, encode_bytes_batch(bare), now_ms, total_length(bare))
        return MeasuredGroup(encoded, plain_record_bytes(max(map(len, bare))))
    timestamps = None if group.timestamps_ms is None else _timestamps(group.timestamps_ms)
    keys = None if group.keys is None else [_bytes("keys", key) for key in group.keys]
    columns = columns_from_rows(
        payloads, keys=keys, headers=group.headers, timestamps_ms=now_ms if timestamps is None else timestamps
    )
    newest_ms = now_ms if timestamps is None else max(timestamps)
    payload_bytes = columns.values.data.nbytes
    encoded = _encoded(group.log, len(payloads), encoding, [encode_columns(columns)], newest_ms, payload_bytes)
    span = AT_THE_CLOCK if timestamps is None else span_of(timestamps, now_ms)
    return MeasuredGroup(encoded, int(record_bytes(columns).max()), span)


def _encoded(
    log: Log, count: int, encoding: str, body: Sequence[Buffer], newest_ms: int, payload_bytes: int
) -> EncodedGroup:
    piece = Piece(count, total_length(body), None, newest_ms, payload_bytes=payload_bytes)
    return EncodedGroup(log, count, encoding, body, newest_ms, pieces=(piece,))


async def judged_groups(
    configs: KnownTopics, groups: Sequence[MeasuredGroup], now_ms: int
) -> list[EncodedGroup | LogError]:
    """Each group as its topic takes it, or why the topic refuses it. Raises the store's error if no config could be
    read."""
    by_topic = await configs.of({group.encoded.log.topic for group in groups})
    failed = [config for config in by_topic.values() if isinstance(config, StoreError)]
    if failed and len(failed) == len(by_topic):
        raise failed[0]
    return [_judged(group, by_topic[group.encoded.log.topic], now_ms) for group in groups]


def _judged(group: MeasuredGroup, config: Config, now_ms: int) -> EncodedGroup | LogError:
    log = group.encoded.log
    if isinstance(config, LlogError):
        return AppendNotCommitted(*log, f"the configs of its topic could not be read: {config}")
    refusal = refusal_of_records(log, config, group.record_bytes_max, group.span, now_ms)
    if refusal is not None:
        return refusal
    return group.encoded.at_append_time(now_ms) if config.log_append_time else group.encoded


def _timestamps(given: Sequence[int]) -> list[int]:
    """As Python integers: the highest goes into a metadata value, which takes no other type."""
    try:
        return [index(timestamp_ms) for timestamp_ms in given]
    except TypeError as error:
        raise InvalidArgument("timestamps_ms", f"must be whole milliseconds: {error}") from None


def _bytes(argument: str, value: bytes | str | None) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    if value is None or isinstance(value, bytes):
        return value
    raise InvalidArgument(argument, f"must be bytes, str or None, got {type(value).__name__}")
