"""Every metadata value: JSON in the store, frozen structs in memory.

Processes of several releases read and write these values; docs/protocol.md defines their fields.
- Every value has `v`. A process does not write a value with a higher `v` than it knows, because it would drop the
  fields that a newer release added (h18): `encode_value` refuses it.
- Every value under a log has `incarnation`, the incarnation of the topic that it belongs to.
- Fields are only added, with a default. Later releases read the golden files of every value.
- `encode_value` decodes what it encodes: a struct does not check its fields, and a float or a bool in place of a number
  would make the log unreadable for every process.
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
# A plain string, so that an entry with the encoding of a later release can be listed and kept, though not decoded.
Encoding = str
TopicState = Literal["LIVE", "DELETING", "DELETED"]
CompactionState = Literal["WRITING_COMPACTED_INDEX", "DELETING_OLD", "UPDATING_CURSOR"]
CompactionKind = Literal["COMPACT", "MERGE", "KEY_COMPACT"]
SegmentState = Literal[
    "COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED"
]
PartitionDeleteState = Literal["DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED", "DELETE_PARTITION_FINISHED"]


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """A top-level value, stored under one metadata key."""

    known_version: ClassVar[int] = VALUE_VERSION
    v: Count = VALUE_VERSION


class ProducerBatch(msgspec.Struct, frozen=True, kw_only=True):
    """One batch of an idempotent producer in an append, by which its retries are recognised."""

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
    """The value per log that every append changes by compare-and-set."""

    incarnation: Count = 1
    log_state: LogState
    epoch: Count = 0
    sequence_counter: Count
    log_start_offset: Count = 0
    commit_horizon_ms: Count = 0
    pending: Pending | None = None
    fence_reason: str = ""


class IndexEntry(Value, frozen=True, kw_only=True):
    """Maps the offsets that end at its key to bytes; without a byte range, to the whole object."""

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
    """A run in flight, with all that another process needs to finish it. `entry` is the COMPACTED entry to publish."""

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
    """The segments that a MERGE or KEY_COMPACT replaces. The segment itself lists its source blobs."""
    epochs: dict[int, int] = {}
    entry: IndexEntry


class CompactionRecord(Value, frozen=True, kw_only=True):
    """The value per log that guards all rewriting."""

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
    """The largest number of earlier incarnations: vacuum also reads the tombstones of those partitions (h26)."""
    first_offset: Count = 1
    """First offset of its logs: 1 for topics of the direct writer and the HTTP API, 0 for those of the Kafka API."""
    config: dict[str, str] = {}
    created_at_ms: Count = 0
    auto_created: bool = False
    """A first write created the topic, so HTTP produce may add partitions. Without the field (records of earlier
    releases) the topic counts as created explicitly: no write adds partitions."""


class ProducerState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one producer: its epoch and its last batches (five, as in Kafka)."""

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
    forgot: bool = False
    """Producers of this log were forgotten, because there were too many, by a restore or with an earlier incarnation:
    an unknown producer that goes on with a later number may be one of them."""


class ProducerPage(Value, frozen=True, kw_only=True):
    incarnation: Count = 1
    producers: tuple[ProducerState, ...] = ()
    sinks: tuple[SinkMark, ...] = ()


class SegmentRecord(Value, frozen=True, kw_only=True):
    """One segment in the catalogue. It is not a reference: only entries, pending and in_flight keep an object alive."""

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
    """Only of a segment that a recovery published: the objects named by the entries that it replaced, which may differ
    from its sources."""


class PartitionDelete(Value, frozen=True, kw_only=True):
    incarnation: Count
    state: PartitionDeleteState


class BrokerRegistration(Value, frozen=True, kw_only=True):
    broker_id: str
    addresses: dict[str, str]
    """Front end → host:port for clients, e.g. `{"http": "127.0.0.1:8080", "kafka": "127.0.0.1:9092"}`."""
    zone: str = ""
    roles: tuple[str, ...] = ()
    started_at_ms: Count = 0
    node_id: int = -1
    """The broker's number, by which Kafka clients know it; -1 of releases without node ids."""
    draining: bool = False
    """It is about to stop: clients should use other brokers."""


class NodeClaim(Value, frozen=True, kw_only=True):
    """The broker that holds a node id. Ephemeral."""

    broker_id: str
    claimed_at_ms: Count


class CoordinatorClaim(Value, frozen=True, kw_only=True):
    """The node that coordinates the consumer groups of one slot. Ephemeral."""

    node_id: Count
    broker_id: str
    session: str
    """The session that the record belongs to, so that a process knows the claims of its present session."""
    claimed_at_ms: Count


class ClusterId(Value, frozen=True, kw_only=True):
    """The identity of a cluster. A marker object in each of its object stores repeats it (without `stores`)."""

    cluster_id: str
    created_at_ms: Count
    stores: tuple[str, ...] = ()
    """URLs of the object stores with the marker."""


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
    """The commit plan of one Spark batch. Any process that finds it may finish it."""

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
    generation: int = -1
    """The generation or epoch of the group as of the commit; a commit of a lower one is refused. -1: the group never
    had members."""


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
    NodeClaim,
    CoordinatorClaim,
)
"""Every kind of metadata value; each has a golden file."""

V = TypeVar("V", bound=Value)
_DECODERS: Final[dict[type[Any], msgspec.json.Decoder[Any]]] = {kind: json_decoder(kind) for kind in VALUES}
_ENCODER: Final = msgspec.json.Encoder()


def decode_value(kind: type[V], data: Buffer, source: str) -> V:
    """Decode a value. One with a newer `v` can be read (unknown fields are ignored) but not written back."""
    value: V = json_value(_decoder(kind), data, source, kind.__name__)
    return value


def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    """Other packages have values of their own."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = json_decoder(kind)
    return decoder


def encode_value(value: Value, source: str = "") -> bytes:
    """Encode a value. Refuses one that a newer release wrote (h18), and one that could not be decoded."""
    kind = type(value)
    if value.v > value.known_version:
        raise UnsupportedFormat(
            source or kind.__name__,
            f"written by a newer release (v {value.v}, this one knows {value.known_version}): "
            "upgrade this process before it may change the value",
        )
    decoder = _decoder(kind)
    try:
        data = _ENCODER.encode(value)
        decoder.decode(data)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise InvalidField(
            source or kind.__name__, f"{kind.__name__} was not written because it could not be read back: {error}"
        ) from None
    return data
