"""The JSON of every request and answer, as structs.

msgspec decodes and encodes them, and the OpenAPI page is made from them. The names, and which of them may be missing,
are the contract. An unknown field is refused, because a misspelt one would otherwise be ignored silently.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from llog.limits import GROUP_POSITION_METADATA_CHARS_MAX, GROUP_POSITIONS_PER_CALL_MAX, HTTP_TOPIC_PARTITIONS_MAX, MIB
from llog.log.keys import OFFSET_MAX, PARTITION_MAX, TOPIC_NAME_LENGTH_MAX

HTTP_CONSUME_BYTES_DEFAULT: Final = 4 * MIB
HTTP_CONSUME_BYTES_MAX: Final = 64 * MIB
HTTP_CONSUME_WAIT_MS_MAX: Final = 60_000

TOPIC_PATTERN: Final = "^[a-zA-Z0-9._-]+$"
TopicText = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=TOPIC_NAME_LENGTH_MAX,
        description="Letters, digits, `.`, `_` and `-`.",
        # Described here, checked by `check_topic`, which explains what is wrong.
        extra_json_schema={"pattern": TOPIC_PATTERN},
    ),
]
PartitionNumber = Annotated[int, Meta(ge=0, le=PARTITION_MAX)]
Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
TimestampMs = Annotated[int, Meta(ge=0, le=OFFSET_MAX, description="Milliseconds since 1970, UTC.")]
GroupName = Annotated[str, Meta(min_length=1, max_length=160)]


class RequestBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Defaults are left out, so optional fields only appear where they hold something."""


class Base64(RequestBody, frozen=True):
    """Bytes that are not text."""

    base64: bytes


Text = str | Base64 | None


# -- produce ---------------------------------------------------------------------------------------------------------


class RecordObject(RequestBody, frozen=True):
    """A record with more than a payload; one of `payload` (null: a tombstone), `value` and `base64` is its payload."""

    base64: bytes | UnsetType = UNSET
    payload: Text | UnsetType = UNSET
    """As `/consume` calls it."""
    value: Text | UnsetType = UNSET
    """The same under Kafka's name."""
    key: Text = None
    headers: dict[str, Text | list[Text]] = {}
    """A name that occurs several times has a list."""
    timestamp_ms: TimestampMs | UnsetType = UNSET


# What the types do not say, for the description of the API; the encoder checks it and explains what is wrong.
_ONE_PAYLOAD: Final = {"oneOf": [{"required": [name]} for name in ("base64", "payload", "value")]}
_WHOLE_CLAIM: Final = {
    "dependentRequired": {
        "producer_id": ["epoch", "sequence", "partition"],
        "epoch": ["producer_id", "sequence", "partition"],
        "sequence": ["producer_id", "epoch", "partition"],
    }
}
Records = Annotated[list[str | Annotated[RecordObject, Meta(extra_json_schema=_ONE_PAYLOAD)]], Meta(min_length=1)]


class BatchHead(RequestBody, frozen=True, kw_only=True):
    """A batch without its records."""

    topic: TopicText
    partition: PartitionNumber | UnsetType = UNSET
    """Without it every record has a key, which chooses the partition as in Kafka's clients (murmur2)."""
    producer_id: Annotated[int, Meta(ge=0, le=2**63 - 1)] | UnsetType = UNSET
    epoch: Annotated[int, Meta(ge=0, le=2**15 - 1)] | UnsetType = UNSET
    sequence: Annotated[int, Meta(ge=0, le=2**31 - 1)] | UnsetType = UNSET
    """Of the first record, counted per producer, epoch and log from 0 on."""


class ProduceBatch(BatchHead, frozen=True, kw_only=True):
    """Records for one log, or without `partition` for any logs of the topic. `producer_id` (a random number will do),
    `epoch` and `sequence` are sent together, and with `partition`: a batch that is sent again with the same three is
    stored once."""

    records: Records


class ProduceRequest(RequestBody, frozen=True):
    topic_partitions: Annotated[
        list[Annotated[ProduceBatch, Meta(extra_json_schema=_WHOLE_CLAIM)]],
        Meta(min_length=1, max_length=HTTP_TOPIC_PARTITIONS_MAX),
    ]


class ProduceResult(Answer, frozen=True):
    topic: str
    partition: int
    ok: bool
    start_offset: int | UnsetType = UNSET
    end_offset: int | UnsetType = UNSET
    count: int | UnsetType = UNSET
    index_key: str | UnsetType = UNSET
    wal_uri: str | UnsetType = UNSET
    repeated: bool = False
    """It was stored before, at these offsets."""
    batch: int | UnsetType = UNSET
    """The batch in `topic_partitions` that the result belongs to. Only sent if a batch of the request names no
    partition: such a batch has a result for each partition that its keys lead to."""
    records: list[int] | UnsetType = UNSET
    """Of a batch that names no partition: which of its records went here, in the order of their offsets."""
    error_type: str = ""
    error: str = ""


class ProduceAnswer(msgspec.Struct, frozen=True):
    results: list[ProduceResult]
    success_count: int
    error_count: int


# -- consume ---------------------------------------------------------------------------------------------------------


class ConsumePartition(RequestBody, frozen=True):
    topic: TopicText
    partition: PartitionNumber
    fetch_offset: Offset
    partition_max_bytes: Annotated[int, Meta(ge=1, le=HTTP_CONSUME_BYTES_MAX)] | None = None


class ConsumeBody(RequestBody, frozen=True):
    topic_partitions: Annotated[list[ConsumePartition], Meta(min_length=1, max_length=HTTP_TOPIC_PARTITIONS_MAX)]
    max_wait_ms: Annotated[int, Meta(ge=0, le=HTTP_CONSUME_WAIT_MS_MAX)] = 0
    min_bytes: Annotated[int, Meta(ge=0, le=HTTP_CONSUME_BYTES_MAX)] = 1
    max_bytes: Annotated[int, Meta(ge=1, le=HTTP_CONSUME_BYTES_MAX)] = HTTP_CONSUME_BYTES_DEFAULT


class ConsumedRecord(Answer, frozen=True):
    offset: int
    payload: Text
    """null: a tombstone."""
    key: Text = None
    headers: dict[str, Text | list[Text]] = {}
    timestamp_ms: int | UnsetType = UNSET
    """The producer's, if it sent one."""


class ConsumeResult(Answer, frozen=True):
    topic: str
    partition: int
    ok: bool
    fetch_offset: int
    high_watermark: int | UnsetType = UNSET
    """The last offset that can be read."""
    next_fetch_offset: int | UnsetType = UNSET
    records: list[ConsumedRecord] | UnsetType = UNSET
    log_start_offset: int | UnsetType = UNSET
    """For an offset out of range: the first offset that can be read."""
    error_type: str = ""
    error: str = ""


class ConsumeAnswer(msgspec.Struct, frozen=True):
    results: list[ConsumeResult]
    success_count: int
    error_count: int


# -- positions of groups ---------------------------------------------------------------------------------------------


class TopicPartition(RequestBody, frozen=True):
    topic: TopicText
    partition: PartitionNumber


class OffsetToCommit(RequestBody, frozen=True):
    topic: TopicText
    partition: PartitionNumber
    offset: Offset
    metadata: Annotated[str, Meta(max_length=GROUP_POSITION_METADATA_CHARS_MAX)] = ""


class OffsetsCommit(RequestBody, frozen=True):
    group: GroupName
    offsets: Annotated[list[OffsetToCommit], Meta(min_length=1, max_length=GROUP_POSITIONS_PER_CALL_MAX)]


class OffsetCommitResult(Answer, frozen=True):
    topic: str
    partition: int
    ok: bool
    offset: int
    error_type: str = ""
    error: str = ""


class OffsetsCommitAnswer(msgspec.Struct, frozen=True):
    group: str
    results: list[OffsetCommitResult]
    success_count: int
    error_count: int


SomeLogs = Annotated[list[TopicPartition], Meta(min_length=1, max_length=GROUP_POSITIONS_PER_CALL_MAX)]


class OffsetsFetch(RequestBody, frozen=True):
    """Without `topic_partitions`: every log where the group has a position."""

    group: GroupName
    topic_partitions: SomeLogs | None = None


class OffsetFetched(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int | None
    """null: the group has no position."""
    metadata: str = ""
    committed_at_ms: int | None = None


class OffsetsFetchAnswer(msgspec.Struct, frozen=True):
    group: str
    offsets: list[OffsetFetched]


# -- topics and partitions -------------------------------------------------------------------------------------------


ConfigValue = str | bool | int | float
_CONFIG: Final = (
    "By Kafka's names. `max.message.bytes` is the largest record (key, value, headers, and what a batch of that one "
    "record would add), not the largest batch: the broker makes the batches. docs/reference/topic-configs.md lists all "
    "configs; `without_effect` of the answer names those that are only stored."
)


class TopicCreate(RequestBody, frozen=True):
    topic: TopicText
    partitions: Annotated[int, Meta(ge=1, le=PARTITION_MAX)] = 1
    config: Annotated[dict[str, ConfigValue], Meta(description=_CONFIG)] = {}


class TopicAlter(RequestBody, frozen=True):
    """`config` sets names; null brings one back to its default."""

    config: Annotated[dict[str, ConfigValue | None], Meta(min_length=1, description=_CONFIG)]


class PartitionsAdd(RequestBody, frozen=True):
    count: Annotated[int, Meta(ge=1, le=PARTITION_MAX)]
    """The new number of partitions, including the existing ones."""


class TopicSummary(msgspec.Struct, frozen=True):
    topic: str
    topic_id: str
    partitions: int
    config: dict[str, str]
    created_at_ms: int
    auto_created: bool = False
    """A first write created the topic: produce adds partitions to it, up to LLOG_AUTO_PARTITIONS_MAX."""
    without_effect: list[str] = []
    """The names in `config` that are stored and have no effect."""


class TopicList(Answer, frozen=True):
    topics: list[TopicSummary]
    next_after: str = ""
    """More topics follow: ask again with `after` set to this."""


class PartitionState(msgspec.Struct, frozen=True):
    partition: int
    state: str
    """OPEN, FENCED, DELETED, or ABSENT: no record was ever written."""
    log_start_offset: int
    next_offset: int


class TopicDetail(msgspec.Struct, frozen=True):
    topic: str
    topic_id: str
    config: dict[str, str]
    created_at_ms: int
    partitions: list[PartitionState]
    auto_created: bool = False
    """A first write created the topic: produce adds partitions to it, up to LLOG_AUTO_PARTITIONS_MAX."""
    without_effect: list[str] = []
    """The names in `config` that are stored and have no effect."""


class TopicDeletionAnswer(msgspec.Struct, frozen=True):
    topic: str
    dry_run: bool
    partitions: int
    entries_removed: int
    segments_removed: int


class FenceBody(RequestBody, frozen=True):
    reason: Annotated[str, Meta(max_length=1_000)] = ""
    expected_epoch: Annotated[int, Meta(ge=0, le=OFFSET_MAX)] | None = None


class UnfenceBody(RequestBody, frozen=True):
    expected_epoch: Annotated[int, Meta(ge=0, le=OFFSET_MAX)] | None = None


class FenceAnswer(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    state: str
    epoch: int


class PartitionOffsets(Answer, frozen=True):
    topic: str
    partition: int
    log_start_offset: int
    next_offset: int
    """The offset of the next record."""
    timestamp_ms: int | UnsetType = UNSET
    """As requested."""
    offset: int | UnsetType | None = UNSET
    """Of the first record with this timestamp or a later one; null: there is none."""
    record_timestamp_ms: int | UnsetType = UNSET


class DeleteRecordsBody(RequestBody, frozen=True):
    before_offset: Annotated[int, Meta(ge=-1, le=OFFSET_MAX)]
    """The first offset to keep; -1 deletes every record stored now."""


class DeleteRecordsAnswer(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    log_start_offset: int
    entries_removed: int
    segments_removed: int


# -- errors and status -----------------------------------------------------------------------------------------------


class Health(Answer, frozen=True):
    """Every process reports its status; a broker and a compactor add fields about themselves."""

    status: Literal["ok", "degraded", "starting", "stopping"]
    reasons: list[str] = []
    broker_id: str | UnsetType = UNSET
    host: str | UnsetType = UNSET
    port: int | UnsetType = UNSET
    node_id: int | UnsetType = UNSET
    zone: str | UnsetType = UNSET
    kafka: str | UnsetType | None = UNSET
    """Address that Kafka clients use; null if the Kafka front end is off."""
    nodes: list[int] | UnsetType = UNSET
    """Live nodes of the cluster, this one included."""
    draining: bool | UnsetType = UNSET
    """It is about to stop and sends Kafka clients to other nodes."""
    started_at_ms: int | UnsetType = UNSET
    role: Literal["both", "write", "read"] | UnsetType = UNSET
    groups: dict[str, int] | UnsetType = UNSET
    """Consumer groups: `slots` (of 64) that it coordinates, `groups_in_memory`, and requests that are `waiting`."""
    acknowledged_means: str | UnsetType = UNSET
    fenced: list[str] | UnsetType = UNSET
    """Fenced logs that this broker met, each with the reason."""
    compactor_id: str | UnsetType = UNSET
    spark: str | UnsetType = UNSET
    """Spark of the stack that this broker belongs to: `starting`, `ready` or `unavailable (reason)`."""
