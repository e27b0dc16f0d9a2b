"""Every metadata value: JSON on the wire, frozen structs in hand.

Why it exists: many processes of several releases read and write these. Fields are the protocol's (docs/protocol.md);
this module only turns them into bytes and back. What must stay true
- every value carries `v`, and a process never writes a value whose `v` is higher than it knows: a newer release put
  fields there that it would drop (hazard h18). `encode_value` refuses;
- every value under a log carries `incarnation`: which life of the topic name it belongs to;
- fields are only ever added, with a default; golden files of every value are read by all later releases;
- what is written can be read. Nothing checks a struct when it is made, so a float or a bool where a number belongs
  would stay in the store for ever, and whoever reads it next would find the log damaged. `encode_value` reads it first.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

import msgspec

from llog.errors import InvalidField, UnsupportedFormat
from llog.formats.buffers import Buffer, json_decoder, json_value

VALUE_VERSION: Final = 1

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
LogState = Literal["OPEN", "FENCED", "DELETED"]
EntryType = Literal["WAL", "COMPACTED"]
# Open on purpose: an entry with an encoding of a later release can be listed and kept, only not decoded.
Encoding = str
TopicState = Literal["LIVE", "DELETING", "DELETED"]
CompactionState = Literal["WRITING_COMPACTED_INDEX", "DELETING_OLD", "UPDATING_CURSOR"]
CompactionKind = Literal["COMPACT", "MERGE", "KEY_COMPACT"]
SegmentState = Literal[
    "COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED"
]
PartitionDeleteState = Literal["DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED", "DELETE_PARTITION_FINISHED"]


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """A top-level value: what one metadata key holds."""

    known_version: ClassVar[int] = VALUE_VERSION
    v: Count = VALUE_VERSION


class ProducerBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One batch of an idempotent producer inside an append: what its retries are recognised by."""

    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int
    start_offset: Count


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """An append whose offsets are reserved but whose index entry may not be written yet."""

    append_id: str
    incarnation: Count = 1
    epoch: Count = 0
    start_offset: Count
    end_offset: Count
    msg_count: Count
    entry_type: EntryType = "WAL"
    data_key: str
    encoding: Encoding
    byte_offset: Count | None = None
    byte_length: Count | None = None
    max_timestamp_ms: int = -1
    producers: tuple[ProducerBatch, ...] = ()
    created_at_ms: Count


class ControlRecord(Value, frozen=True, kw_only=True):
    """The one value per log that every append moves by compare-and-set."""

    incarnation: Count = 1
    log_state: LogState
    epoch: Count = 0
    sequence_counter: Count
    log_start_offset: Count = 0
    commit_horizon_ms: Count = 0
    pending: Pending | None = None
    fence_reason: str = ""


class IndexEntry(Value, frozen=True, kw_only=True):
    """Maps the offsets that end at its key to bytes. Without a byte range it means the whole object."""

    type: EntryType
    level: Count = 0
    msg_count: Count
    record_count: Count | None = None
    data_key: str
    encoding: Encoding
    byte_offset: Count | None = None
    byte_length: Count | None = None
    footer_length: Count | None = None
    append_id: str = ""
    incarnation: Count = 1
    epoch: Count = 0
    max_timestamp_ms: int = -1
    producers: tuple[ProducerBatch, ...] = ()
    created_at_ms: Count


class CompactionRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run in flight: enough for any process to finish it. `entry` is the whole COMPACTED entry it publishes."""

    compaction_id: str
    kind: CompactionKind
    state: CompactionState
    start_offset: Count
    end_offset: Count
    last_start_offset: Count
    end_version: Count
    msg_count: Count
    data_key: str
    encoding: Encoding
    created_at_ms: Count
    sources: tuple[str, ...] = ()
    """Of a MERGE or KEY_COMPACT: the segments it replaces. Blobs are listed in the segment itself."""
    epochs: dict[int, int] = {}
    entry: IndexEntry


class CompactionRecord(Value, frozen=True, kw_only=True):
    """The one value per log that guards all rewriting."""

    incarnation: Count = 1
    offset: Count
    segment_horizon_ms: Count = 0
    in_flight: CompactionRun | None = None


class CompactorClaim(Value, frozen=True, kw_only=True):
    incarnation: Count = 1
    compactor_id: str
    claimed_at_ms: Count


class TopicRecord(Value, frozen=True, kw_only=True):
    topic_id: str
    incarnation: Count
    state: TopicState
    partition_count: Count
    partition_count_ever: Count = 0
    """Of the lives before: vacuum looks at the tombstones of those partitions too (h26)."""
    first_offset: Count = 1
    """Where its logs begin: 1 for topics of the direct writer and the HTTP API, 0 for those of the Kafka API."""
    config: dict[str, str] = {}
    created_at_ms: Count = 0


class ProducerState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one producer: its epoch and its last batches (Kafka keeps five)."""

    producer_id: int
    epoch: int
    batches: tuple[ProducerBatch, ...]
    updated_at_ms: Count


class SinkMark(msgspec.Struct, frozen=True, kw_only=True):
    """The last append of a streaming query that this log holds."""

    query: str
    batch: Count
    n: Count


class ProducerSnapshot(Value, frozen=True, kw_only=True):
    """Head of the producer snapshot: state of all producers as of an offset, in immutable pages."""

    incarnation: Count = 1
    as_of: Count
    pages: Count


class ProducerPage(Value, frozen=True, kw_only=True):
    incarnation: Count = 1
    producers: tuple[ProducerState, ...] = ()
    sinks: tuple[SinkMark, ...] = ()


class SegmentRecord(Value, frozen=True, kw_only=True):
    """One segment in the catalogue. Not a reference: only entries, pending and in_flight keep an object alive."""

    segment_id: str
    incarnation: Count
    start_offset: Count
    end_offset: Count
    size_bytes: Count
    max_timestamp_ms: int = -1
    epochs: dict[int, int] = {}
    sources: tuple[str, ...] = ()
    custom_metadata: str = ""
    state: SegmentState
    state_changed_at_ms: Count = 0
    data_key: str = ""
    adopted_over: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Of a segment that a recovery published: what the entries named that it took the place of, which need not be what
    it was made of. Not written for any other."""


class PartitionDelete(Value, frozen=True, kw_only=True):
    incarnation: Count
    state: PartitionDeleteState


class BrokerRegistration(Value, frozen=True, kw_only=True):
    broker_id: str
    addresses: dict[str, str]
    """Front end → host:port, e.g. `{"http": "127.0.0.1:8080"}`."""
    zone: str = ""
    roles: tuple[str, ...] = ()
    started_at_ms: Count = 0


class ClusterId(Value, frozen=True, kw_only=True):
    """The identity of a cluster; a marker object in each of its object stores says the same (without `stores`)."""

    cluster_id: str
    created_at_ms: Count
    stores: tuple[str, ...] = ()
    """URLs of the object stores that carry the marker."""


class ProducerIdBlock(Value, frozen=True, kw_only=True):
    next_producer_id: Count


class SinkSlice(msgspec.Struct, frozen=True, kw_only=True):
    """One append of a commit plan: a slice of an uploaded blob for one log."""

    topic: str
    partition: Count
    n: Count
    append_id: str
    data_key: str
    encoding: Encoding
    byte_offset: Count
    byte_length: Count
    msg_count: Count
    max_timestamp_ms: int = -1


class SinkPlan(Value, frozen=True, kw_only=True):
    """The commit plan of one Spark batch: whoever finds it finishes it."""

    query: str
    batch: Count
    slices: tuple[SinkSlice, ...]
    created_at_ms: Count


class GroupOffset(Value, frozen=True, kw_only=True):
    """The position of a consumer group in one log."""

    topic: str
    partition: Count
    offset: Count
    leader_epoch: int = -1
    metadata: str = ""
    committed_at_ms: Count = 0


VALUES: Final[tuple[type[Value], ...]] = (
    ControlRecord,
    IndexEntry,
    CompactionRecord,
    CompactorClaim,
    TopicRecord,
    ProducerSnapshot,
    ProducerPage,
    SegmentRecord,
    PartitionDelete,
    BrokerRegistration,
    ClusterId,
    ProducerIdBlock,
    SinkPlan,
    GroupOffset,
)
"""Every kind of value that some metadata key holds; each has a golden file."""

V = TypeVar("V", bound=Value)
_DECODERS: Final[dict[type[Any], msgspec.json.Decoder[Any]]] = {kind: json_decoder(kind) for kind in VALUES}
_ENCODER: Final = msgspec.json.Encoder()


def decode_value(kind: type[V], data: Buffer, source: str) -> V:
    """Read a value. A newer `v` can be read (unknown fields are passed over) but then not be written back."""
    value: V = json_value(_DECODERS[kind], data, source, kind.__name__)
    return value


def encode_value(value: Value, source: str = "") -> bytes:
    """Bytes of a value; refuses one that a newer release wrote (hazard h18), and one that nobody could read."""
    kind = type(value)
    if value.v > value.known_version:
        raise UnsupportedFormat(
            source or kind.__name__,
            f"written by a newer release (v {value.v}, this one knows {value.known_version}): "
            "upgrade this process before it may change the value",
        )
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = json_decoder(kind)
    try:
        data = _ENCODER.encode(value)
        decoder.decode(data)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise InvalidField(source or kind.__name__, f"{kind.__name__} is not written: {error}") from None
    return data
