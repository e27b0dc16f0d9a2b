"""One of everything that has a byte form, with every field set: for golden files, fuzz seeds and tests."""

from __future__ import annotations

from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import walk
from llog.formats.segment import ENTRY, Segment, SegmentBuilder
from llog.formats.segment import ProducerSummary as SegmentProducer
from llog.formats.shared_blob import BlobGroup, build_shared_blob
from llog.formats.values import (
    BrokerRegistration,
    ClusterId,
    CompactionRecord,
    CompactionRun,
    CompactorClaim,
    ControlRecord,
    CoordinatorClaim,
    GroupOffset,
    IndexEntry,
    NodeClaim,
    PartitionDelete,
    Pending,
    ProducerBatch,
    ProducerIdBlock,
    ProducerPage,
    ProducerSnapshot,
    ProducerState,
    SegmentRecord,
    SinkMark,
    SinkPlan,
    SinkSlice,
    TopicRecord,
    Value,
    encode_value,
)
from llog.log.ids import new_object_id
from llog.log.keys import Keys, Log
from llog.stores.metadata.port import Key

NOW_MS = 1_760_000_000_000
BLOB_ID = new_object_id(NOW_MS, lambda bits: (1 << bits) // 3)
SEGMENT_ID = new_object_id(NOW_MS + 60_000, lambda bits: (1 << bits) // 5)
LOG = Log("orders", 7)
BLOB_URI = f"s3://bucket/llog/wal-shared/{BLOB_ID}"
SEGMENT_URI = f"s3://bucket/llog/orders/partitions/7/data/compacted/{SEGMENT_ID}"

_PRODUCERS = (ProducerBatch(producer_id=9, epoch=1, first_sequence=0, last_sequence=24, start_offset=48),)
_PENDING = Pending(
    append_id="append-1",
    incarnation=2,
    epoch=3,
    start_offset=48,
    end_offset=72,
    msg_count=25,
    data_key=BLOB_URI,
    encoding="kafka-v2",
    byte_offset=2048,
    byte_length=12000,
    max_timestamp_ms=NOW_MS,
    producers=_PRODUCERS,
    created_at_ms=NOW_MS,
)
_COMPACTED = IndexEntry(
    type="COMPACTED",
    level=1,
    msg_count=100,
    record_count=90,
    data_key=SEGMENT_URI,
    encoding="kafka-v2",
    byte_offset=0,
    byte_length=65536,
    footer_length=1024,
    append_id="",
    incarnation=2,
    epoch=3,
    max_timestamp_ms=NOW_MS,
    created_at_ms=NOW_MS + 60_000,
)
_WAL = IndexEntry(
    type="WAL",
    msg_count=25,
    data_key=BLOB_URI,
    encoding="kafka-v2",
    byte_offset=2048,
    byte_length=12000,
    append_id="append-1",
    incarnation=2,
    epoch=3,
    max_timestamp_ms=NOW_MS,
    producers=_PRODUCERS,
    created_at_ms=NOW_MS,
)
_RUN = CompactionRun(
    compaction_id="run-1",
    kind="COMPACT",
    state="WRITING_COMPACTED_INDEX",
    start_offset=1,
    end_offset=100,
    last_start_offset=73,
    end_version=12,
    msg_count=100,
    data_key=SEGMENT_URI,
    encoding="kafka-v2",
    created_at_ms=NOW_MS + 60_000,
    sources=(BLOB_URI,),
    entry=_COMPACTED,
)

VALUE_SAMPLES: list[Value] = [
    ControlRecord(
        incarnation=2,
        log_state="OPEN",
        epoch=3,
        sequence_counter=73,
        log_start_offset=1,
        commit_horizon_ms=NOW_MS - 3_600_000,
        pending=_PENDING,
        fence_reason="",
    ),
    _WAL,
    _COMPACTED,
    CompactionRecord(incarnation=2, offset=1, segment_horizon_ms=NOW_MS - 3_600_000, in_flight=_RUN),
    CompactorClaim(incarnation=2, compactor_id="compactor-1", claimed_at_ms=NOW_MS),
    TopicRecord(
        topic_id="3f0e6b6e-2d0b-4c58-8f5e-7a9b3a1c2d4e",
        incarnation=2,
        state="LIVE",
        partition_count=8,
        config={"retention.ms": "604800000", "cleanup.policy": "compact"},
        created_at_ms=NOW_MS,
        auto_created=True,
    ),
    ProducerSnapshot(incarnation=2, as_of=73, pages=1, forgot=True),
    ProducerPage(
        incarnation=2,
        producers=(ProducerState(producer_id=9, epoch=1, batches=_PRODUCERS, updated_at_ms=NOW_MS),),
        sinks=(SinkMark(query="q-1", batch=4, n=2),),
    ),
    SegmentRecord(
        segment_id=SEGMENT_ID,
        incarnation=2,
        start_offset=1,
        end_offset=100,
        size_bytes=66560,
        max_timestamp_ms=NOW_MS,
        epochs={3: 1},
        sources=(BLOB_URI,),
        custom_metadata="note",
        state="COPY_SEGMENT_FINISHED",
        state_changed_at_ms=NOW_MS + 61_000,
        data_key=SEGMENT_URI,
    ),
    PartitionDelete(incarnation=2, state="DELETE_PARTITION_MARKED"),
    BrokerRegistration(
        broker_id="broker-1",
        addresses={"http": "127.0.0.1:8080", "kafka": "127.0.0.1:9092"},
        zone="eu-1a",
        roles=("read", "write"),
        started_at_ms=NOW_MS,
        node_id=3,
        draining=True,
    ),
    ClusterId(cluster_id="c0ffee", created_at_ms=NOW_MS),
    ProducerIdBlock(next_producer_id=1000),
    SinkPlan(
        query="q-1",
        batch=4,
        slices=(
            SinkSlice(
                topic="orders",
                partition=7,
                n=0,
                append_id="q-1/4/orders:7/0",
                data_key=BLOB_URI,
                encoding="kafka-v2",
                byte_offset=512,
                byte_length=4096,
                msg_count=10,
                max_timestamp_ms=NOW_MS,
            ),
        ),
        created_at_ms=NOW_MS,
    ),
    GroupOffset(
        topic="orders", partition=7, offset=73, leader_epoch=3, metadata="m", committed_at_ms=NOW_MS, generation=4
    ),
    NodeClaim(broker_id="broker-1", claimed_at_ms=NOW_MS),
    CoordinatorClaim(node_id=3, broker_id="broker-1", session="s-1", claimed_at_ms=NOW_MS),
]


def encoded(value: Value) -> bytes:
    return encode_value(value)


def metadata_keys() -> list[Key]:
    tree = Keys()
    return [
        tree.topic("orders"),
        tree.control(LOG),
        tree.compaction(LOG),
        tree.claim(LOG),
        tree.partition_delete(LOG),
        tree.producers(LOG),
        tree.producer_page(LOG, 73, 0),
        tree.index_entry(LOG, 72),
        tree.segment(LOG, SEGMENT_ID),
        tree.cluster_id(),
        tree.broker("broker-1"),
        tree.producer_ids(),
        tree.group_item("billing", "orders:7"),
        tree.sink("q-1", 4),
        tree.node(3),
    ]


def object_names() -> list[str]:
    tree = Keys()
    return [tree.blob_object(BLOB_ID), tree.segment_object(LOG, SEGMENT_ID), tree.cluster_marker_object()]


def batch_bytes(first: int, count: int) -> bytearray:
    """One RecordBatch of `count` records with keys, headers and a null value, at base offset `first`."""
    values = [b"value-%d" % i if i % 3 else None for i in range(first, first + count)]
    batch = bytearray(
        encode_records(
            values,
            keys=[b"key-%d" % (i % 4) for i in range(first, first + count)],
            headers=[[("source", b"test"), ("empty", None)] if i % 2 else [] for i in range(count)],
            timestamps_ms=[NOW_MS + i for i in range(first, first + count)],
        )
    )
    batch[:8] = first.to_bytes(8, "big")
    return batch


def segment(batches: int = 3) -> Segment:
    builder = SegmentBuilder(topic="orders", partition=7, incarnation=2)
    for i in range(batches):
        data = batch_bytes(1 + 10 * i, 10)
        builder.add(data, walk(data, "sample"))
    return builder.finish(
        start_offset=1,
        end_offset=max(1, 10 * batches),
        level=1,
        created_at_ms=NOW_MS + 60_000,
        epochs={3: 1},
        producers=[SegmentProducer(producer_id=9, epoch=1, last_sequence=24, last_offset=30)],
        sources=[BLOB_URI],
    )


def segment_bytes() -> bytes:
    return b"".join(segment().buffers)


def empty_segment_bytes() -> bytes:
    return b"".join(segment(0).buffers)


def plain_segment_bytes() -> bytes:
    """The same object without our extension, as another writer of the format makes it."""
    made = segment()
    data = b"".join(made.buffers)
    data_length = made.byte_length - made.footer_length
    index_length = 8 + 3 * ENTRY.itemsize
    return data[:data_length] + data[-index_length:]


def blob_bytes() -> bytes:
    groups = [
        BlobGroup("orders", 7, 10, "kafka-v2", [batch_bytes(0, 10)]),
        BlobGroup("orders", 8, 4, "kafka-v2", [batch_bytes(0, 4)]),
    ]
    return b"".join(build_shared_blob(groups, created_at_ms=NOW_MS, writer_id="writer-1").buffers)
