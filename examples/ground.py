"""The ground of llog in one page: from records to bytes to objects, order by metadata, and back.

    .venv/bin/python examples/ground.py

Runs on the embedded stores (LMDB and a local directory) in a temporary directory and prints each step.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time

from llog.errors import VersionConflict
from llog.formats.records.decode import decode_records
from llog.formats.records.encode import encode_records
from llog.formats.records.record_batch import patch_offsets, walk
from llog.formats.shared_blob import BlobGroup, build_shared_blob
from llog.formats.values import ControlRecord, IndexEntry, decode_value, encode_value
from llog.log.ids import new_object_id
from llog.log.keys import Keys, Log, offset_name
from llog.settings import Settings
from llog.stores.metadata.port import ABSENT, MetadataStore, Put
from llog.stores.objects.port import ObjectStore
from llog.wiring import open_metadata_store, open_object_store

KEYS = Keys("llog")
ORDERS, CLICKS = Log("orders", 0), Log("clicks", 0)


async def append(metadata: MetadataStore, objects: ObjectStore) -> None:
    """Two logs, one blob, one PUT, one metadata transaction."""
    now_ms = time.time_ns() // 1_000_000
    records = {
        ORDERS: encode_records([b"apple", b"pear"], keys=[b"ada", b"bob"], timestamps_ms=now_ms),
        CLICKS: encode_records([b"home"], timestamps_ms=now_ms),
    }
    counts = {ORDERS: 2, CLICKS: 1}
    groups = [BlobGroup(log.topic, log.partition, counts[log], "kafka-v2", [b]) for log, b in records.items()]
    blob = build_shared_blob(groups, created_at_ms=now_ms, writer_id="example")
    name = KEYS.blob_object(new_object_id(now_ms, random.getrandbits))
    await objects.put(name, blob.buffers)
    print(f"put     {objects.uri(name)}: {blob.byte_length} bytes, {len(blob.slices)} logs in one object")

    writes = []
    for log, part in zip(records, blob.slices, strict=True):
        last = counts[log]
        control = ControlRecord(log_state="OPEN", sequence_counter=last + 1, log_start_offset=1)
        entry = IndexEntry(
            type="WAL",
            msg_count=last,
            data_key=objects.uri(name),
            encoding="kafka-v2",
            byte_offset=part.byte_offset,
            byte_length=part.byte_length,
            created_at_ms=now_ms,
        )
        writes.append(
            [
                Put(KEYS.control(log), encode_value(control), expected=ABSENT),
                Put(KEYS.index_entry(log, last), encode_value(entry), expected=ABSENT),
            ]
        )
    for log, outcome in zip(records, await metadata.write(writes), strict=True):
        print(f"order   {log}: offsets 1 to {counts[log]}, versions {outcome}")


async def read(metadata: MetadataStore, objects: ObjectStore, log: Log, offset: int) -> list[tuple[int, bytes | None]]:
    """The entry that covers the offset, its bytes by one range GET, the records from them."""
    found = await metadata.ceiling(KEYS.index(log), offset_name(offset))
    assert found is not None, "nothing there yet"
    entry = decode_value(IndexEntry, found.value, found.key.path)
    parsed = KEYS.parse(found.key.path)
    assert parsed is not None
    assert entry.byte_offset is not None
    assert entry.byte_length is not None
    data = bytearray(await objects.get_range(objects.name_of(entry.data_key), entry.byte_offset, entry.byte_length))
    # Offsets were unknown when the batch was uploaded; they are patched in on the way out.
    patch_offsets(data, walk(data, entry.data_key), parsed.offset - entry.msg_count + 1, leader_epoch=0)
    columns = decode_records(data, entry.data_key)
    return list(zip(columns.offsets.tolist(), columns.values.tolist(), strict=True))


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        settings = Settings.from_env(
            {"LLOG_METADATA_URL": f"lmdb://{directory}/metadata", "LLOG_OBJECTS_URL": f"file://{directory}/objects"}
        )
        async with (
            await open_metadata_store(settings.metadata_url, settings) as metadata,
            await open_object_store(settings.objects_url, settings) as objects,
        ):
            await append(metadata, objects)
            for log in (ORDERS, CLICKS):
                print(f"read    {log}: {await read(metadata, objects, log, 1)}")
            try:
                await metadata.put(KEYS.control(ORDERS), b"{}", expected=ABSENT)
            except VersionConflict as refused:
                print(f"refused {refused}")


if __name__ == "__main__":
    asyncio.run(main())
