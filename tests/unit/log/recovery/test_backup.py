"""The backup's bytes, its places, and what a restore changes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from llog.errors import (
    FormatError,
    InvalidArgument,
    LogBusy,
    RestoreRefused,
    TruncatedInput,
    UnknownProducer,
    UnsupportedFormat,
)
from llog.formats.backup import (
    BACKUP_FRAME_BYTES,
    BackedUp,
    BackupDecoder,
    BackupEncoder,
    Begin,
    Commit,
    Discard,
    End,
    Header,
    Line,
)
from llog.formats.values import (
    ClusterId,
    CompactionRecord,
    ControlRecord,
    GroupOffset,
    ProducerIdBlock,
    TopicRecord,
    decode_value,
    encode_value,
)
from llog.log.append.append import Appended, Appender
from llog.log.context import LogContext
from llog.log.ids import new_object_id
from llog.log.keys import Keys, Log
from llog.log.producer_ids import ProducerIds
from llog.log.producers import ProducerClaim
from llog.log.recovery.backup import write_backup
from llog.log.recovery.backup_logs import copy_log
from llog.log.recovery.backup_places import BackupFile, BackupObjects, list_backups
from llog.log.recovery.restore import inspect_backup, release_vacuum, restore_backup
from llog.log.recovery.restore_records import (
    NO_VERSION,
    RESTORE_PRODUCER_ID_LEAP,
    plan_compaction,
    plan_control,
    plan_producer_ids,
)
from llog.pipeline.compact.once import compact_once
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.port import ObjectStore
from tests import samples
from tests.contract.backup_suite import backed_up, check_all, memory_context, restored
from tests.contract.log_suite import ORDERS, contents, group

HEADER = Header(backup_id=samples.BLOB_ID, root="llog", started_at_ms=1)
END = End(lines=0, crc32c=0, records=0, logs=0, highest_version=0, finished_at_ms=2)


def encoded(*lines: Line) -> bytes:
    encoder = BackupEncoder()
    return b"".join(encoder.add(line) for line in lines) + encoder.flush()


def decoded(data: bytes, piece: int = 2**30) -> list[Line]:
    decoder = BackupDecoder("test")
    lines = [line for i in range(0, len(data), piece) for line in decoder.feed(data[i : i + piece])]
    decoder.close()
    return lines


# -- bytes ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.text(min_size=1, max_size=20), st.binary(max_size=50))), st.integers(1, 100))
def test_lines_come_back_whatever_the_pieces(records: list[tuple[str, bytes]], piece: int) -> None:
    put = [BackedUp.of(path, i, value) for i, (path, value) in enumerate(records)]
    lines: list[Line] = [HEADER, Begin(kind="cluster"), *put, Commit(records=len(put)), replace(END, records=len(put))]
    back = decoded(encoded(*lines), piece)
    assert back[:-1] == lines[:-1]
    assert [line.value for line in back if isinstance(line, BackedUp)] == [value for _, value in records]


def test_a_large_backup_is_many_frames_that_zstd_reads_as_one() -> None:
    import cramjam

    value = bytes(range(33, 127)) * 4_000
    records = [BackedUp.of(f"k{i}", i, value) for i in range(8)]
    data = encoded(HEADER, Begin(kind="cluster"), *records, Commit(records=8), replace(END, records=8))
    assert data.count(b"[*M\x18") > len(records) * len(value) // (2 * BACKUP_FRAME_BYTES)
    frames = b""
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at + 8 : at + 12], "little")
        frames += bytes(cramjam.zstd.decompress(data[at + 16 : at + 16 + length]))
        at += 16 + length
    assert frames.count(b"\n") == 12
    assert [line.path for line in decoded(data) if isinstance(line, BackedUp)] == [f"k{i}" for i in range(8)]


WHOLE = encoded(HEADER, Begin(kind="cluster"), BackedUp.of("a", 1, b"v"), Commit(records=1), replace(END, records=1))


@pytest.mark.parametrize("length", range(0, len(WHOLE), 7))
def test_a_torn_backup_is_refused(length: int) -> None:
    with pytest.raises(TruncatedInput, match="incomplete"):
        decoded(WHOLE[:length])


@pytest.mark.parametrize("at", range(0, len(WHOLE), 3))
def test_a_flipped_bit_anywhere_is_noticed(at: int) -> None:
    data = bytearray(WHOLE)
    data[at] ^= 4
    with pytest.raises(FormatError):
        decoded(bytes(data))


@pytest.mark.parametrize(
    "lines",
    [
        (Begin(kind="cluster"),),
        (HEADER, HEADER),
        (HEADER, BackedUp.of("a", 1, b"v"), END),
        (HEADER, Begin(kind="cluster"), END),
        (HEADER, Begin(kind="cluster"), Begin(kind="cluster")),
        (HEADER, Begin(kind="cluster"), BackedUp.of("a", 1, b"v"), Commit(records=2)),
        (HEADER, Begin(kind="cluster"), BackedUp.of("a", 1, b"v"), Commit(records=1), END),
        (HEADER, Begin(kind="cluster"), BackedUp.of("a", 1, b"v"), Discard(reason="x"), replace(END, records=1)),
        (HEADER, Commit(records=0)),
        (HEADER, END, HEADER),
    ],
)
def test_lines_that_do_not_belong_where_they_stand_are_refused(lines: tuple[Line, ...]) -> None:
    with pytest.raises(FormatError):
        decoded(encoded(*lines))


def test_a_backup_of_a_later_release_is_refused() -> None:
    with pytest.raises(UnsupportedFormat, match="version 2"):
        decoded(encoded(replace(HEADER, v=2)))


# -- places ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def objects() -> ObjectStore:
    return MemoryObjectStore(f"memory://backup-{time.time_ns()}")


@pytest.fixture
async def source(objects: ObjectStore) -> LogContext:
    context = memory_context(objects, atomic=False)
    appender = Appender(context)
    for number in range(4):
        await appender.append([group(ORDERS, b"%d" % number)])
    await appender.close()
    return context


def an_id(context: LogContext) -> str:
    return new_object_id(context.now_ms(), context.random_bits)


async def test_a_backup_without_a_manifest_or_a_part_is_refused(source: LogContext, objects: ObjectStore) -> None:
    place = await backed_up(source, objects)
    part = source.keys.backup_part_object(place.backup_id, 0)
    data = bytes(await objects.get(part))
    for damaged in (data[:-1], data[:-1] + bytes([data[-1] ^ 1])):
        await objects.put(part, [damaged])
        with pytest.raises(FormatError):
            await inspect_backup(source, place)
    await objects.delete(part)
    with pytest.raises(TruncatedInput, match="part 0 is missing"):
        await inspect_backup(source, place)
    await objects.delete(source.keys.backup_manifest_object(place.backup_id))
    with pytest.raises(TruncatedInput, match="no manifest"):
        await inspect_backup(source, place)


async def test_only_whole_backups_are_listed_and_a_failed_one_leaves_nothing(
    source: LogContext, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await backed_up(source, objects), await backed_up(source, objects)
    await objects.delete(source.keys.backup_manifest_object(first.backup_id))
    listed = [manifest async for manifest in list_backups(objects, source.keys)]
    assert [manifest.backup_id for manifest in listed] == [second.backup_id]
    assert (listed[0].logs, listed[0].root) == (1, source.keys.root)

    async def fails(*_: object) -> None:
        raise LogBusy(*ORDERS, "always")

    monkeypatch.setattr("llog.log.recovery.backup_logs.copy_log", fails)
    before = [meta.name async for meta in objects.list(source.keys.backups())]
    with pytest.raises(LogBusy):
        await backed_up(source, objects)
    assert [meta.name async for meta in objects.list(source.keys.backups())] == before


async def test_a_file_appears_whole_or_not_at_all_and_is_never_overwritten(
    source: LogContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metadata.backup"
    await write_backup(source, BackupFile(path), an_id(source))
    assert os.listdir(tmp_path) == [path.name]
    with pytest.raises(InvalidArgument, match="already exists"):
        await write_backup(source, BackupFile(path), an_id(source))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(TruncatedInput, match="incomplete"):
        await inspect_backup(source, BackupFile(path))

    async def fails(*_: object) -> None:
        raise LogBusy(*ORDERS, "always")

    monkeypatch.setattr("llog.log.recovery.backup_logs.copy_log", fails)
    with pytest.raises(LogBusy):
        await write_backup(source, BackupFile(tmp_path / "other"), an_id(source))
    with pytest.raises(InvalidArgument, match="cannot be opened"):
        await inspect_backup(source, BackupFile(tmp_path / "other"))
    with pytest.raises(InvalidArgument, match="cannot be opened"):
        await write_backup(source, BackupFile(tmp_path / "no" / "directory"), an_id(source))
    assert os.listdir(tmp_path) == [path.name]


# -- copies of a log ------------------------------------------------------------------------------------------------


async def test_a_log_that_moves_during_a_copy_is_copied_again(source: LogContext) -> None:
    lines: list[Line] = []
    appender = Appender(source)

    async def emit(line: Line) -> None:
        first = isinstance(line, Begin) and not lines
        lines.append(line)
        if first:
            await appender.append([group(ORDERS, b"an append is no reason")])
            await compact_once(source, ORDERS)

    await copy_log(source, ORDERS, emit)
    await appender.close()
    assert [type(line) for line in lines if not isinstance(line, BackedUp)] == [Begin, Discard, Begin, Commit]


async def test_appends_during_a_copy_are_left_out_of_it(source: LogContext) -> None:
    lines: list[Line] = []
    appender = Appender(source)

    async def emit(line: Line) -> None:
        if isinstance(line, Begin):
            await appender.append([group(ORDERS, b"too late")])
        lines.append(line)

    await copy_log(source, ORDERS, emit)
    await appender.close()
    paths = [line.path for line in lines if isinstance(line, BackedUp)]
    assert source.keys.index_entry(ORDERS, 4).path in paths
    assert source.keys.index_entry(ORDERS, 5).path not in paths
    assert paths[-1] == source.keys.control(ORDERS).path, "control comes last"


async def test_a_log_that_never_rests_fails_the_backup(source: LogContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llog.log.recovery.backup_logs.is_coherent", lambda *_: False)
    monkeypatch.setattr("llog.log.recovery.backup_logs.BACKUP_LOG_ROUNDS_MAX", 3)

    async def emit(_: Line) -> None:
        pass

    with pytest.raises(LogBusy, match="changed"):
        await copy_log(source, ORDERS, emit)


# -- what is put back -----------------------------------------------------------------------------------------------

CONTROL = ControlRecord(log_state="OPEN", sequence_counter=9, commit_horizon_ms=50, pending=samples._PENDING)
TOPIC = TopicRecord(topic_id="t", incarnation=1, state="LIVE", partition_count=1)


def test_horizons_rise_to_the_instant_of_the_restore() -> None:
    restored_control = plan_control(CONTROL, TOPIC, restored_at_ms=100)
    assert restored_control == replace(CONTROL, commit_horizon_ms=100)
    assert plan_control(CONTROL, TOPIC, restored_at_ms=10).commit_horizon_ms == 50
    record = CompactionRecord(offset=1, segment_horizon_ms=50)
    planned = plan_compaction(record, restored_at_ms=100, end_key_version_then=None, end_key_version_now=None)
    assert planned.segment_horizon_ms == 100


def test_the_log_of_a_topic_deleted_meanwhile_becomes_a_tombstone() -> None:
    buried = plan_control(CONTROL, replace(TOPIC, state="DELETED"), restored_at_ms=100)
    assert (buried.log_state, buried.pending) == ("DELETED", None)
    assert plan_control(CONTROL, replace(TOPIC, state="DELETING"), restored_at_ms=100).log_state == "OPEN"
    assert plan_control(CONTROL, None, restored_at_ms=100).log_state == "OPEN"


@pytest.mark.parametrize(
    ("then", "now", "version"), [(12, 99, 99), (13, 99, NO_VERSION), (12, None, NO_VERSION), (None, 99, NO_VERSION)]
)
def test_a_run_in_flight_expects_the_version_its_end_key_has_now(
    then: int | None, now: int | None, version: int
) -> None:
    record = CompactionRecord(offset=1, in_flight=samples._RUN)
    planned = plan_compaction(record, restored_at_ms=1, end_key_version_then=then, end_key_version_now=now)
    assert planned.in_flight == replace(samples._RUN, end_version=version)


def test_producer_ids_leap_ahead() -> None:
    assert plan_producer_ids(ProducerIdBlock(next_producer_id=5)).next_producer_id == 5 + RESTORE_PRODUCER_ID_LEAP


async def test_producer_ids_given_after_a_backup_without_any_are_not_given_again(
    source: LogContext, objects: ObjectStore
) -> None:
    place = await backed_up(source, objects)
    since = [await ProducerIds(source).next() for _ in range(3)]
    target = memory_context(objects, atomic=False)
    await restored(target, place)
    assert await ProducerIds(target).next() > max(since)


async def test_a_restored_log_has_forgotten_the_producers_that_began_since(
    source: LogContext, objects: ObjectStore
) -> None:
    appender = Appender(source)
    await appender.append([group(ORDERS, b"a", producers=(ProducerClaim(7, 0, 0, 0),))])
    place = await backed_up(source, objects)
    await appender.append([group(ORDERS, b"b", producers=(ProducerClaim(8, 0, 0, 0),))])
    await appender.close()
    target = memory_context(objects, atomic=False)
    await restored(target, place)
    appender = Appender(target)
    for claim, expected in ((ProducerClaim(8, 0, 1, 1), UnknownProducer), (ProducerClaim(7, 0, 1, 1), Appended)):
        [answer] = await appender.append([group(ORDERS, b"c", producers=(claim,))])
        assert isinstance(answer, expected)
    await appender.close()


async def test_keys_of_the_cluster_come_back_and_ephemeral_ones_do_not(
    source: LogContext, objects: ObjectStore
) -> None:
    keys, metadata = source.keys, source.metadata
    offset = GroupOffset(topic="orders", partition=0, offset=3)
    await metadata.put(keys.group_item("g/ü", "orders:0"), encode_value(offset))
    await metadata.put(keys.cluster_id(), encode_value(ClusterId(cluster_id="c", created_at_ms=1)))
    await metadata.put(keys.producer_ids(), encode_value(ProducerIdBlock(next_producer_id=5)))
    await metadata.put(keys.key_of(f"{keys.root}/@cluster/of-a-later-release"), b"\xff\x00")
    session = await metadata.open_session(timeout_ms=5_000)
    await metadata.put(keys.broker("b"), b"{}", session=session)
    await metadata.put(keys.claim(ORDERS), b"{}", session=session)
    target = memory_context(objects, atomic=False)
    await restored(target, await backed_up(source, objects))
    found = {r.key.path: r.value async for r in target.metadata.scan_tree(keys.root)}
    assert found[keys.group_item("g/ü", "orders:0").path] == encode_value(offset)
    assert found[f"{keys.root}/@cluster/of-a-later-release"] == b"\xff\x00"
    block = decode_value(ProducerIdBlock, found[keys.producer_ids().path], "")
    assert block.next_producer_id > 5
    assert keys.broker("b").path not in found
    assert keys.claim(ORDERS).path not in found
    there = await target.metadata.get(keys.group_item("g/ü", "orders:0"))
    assert there is not None, "it lies on the shard where it is looked for"


async def test_a_run_in_flight_is_finished_after_a_restore(
    source: LogContext, objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llog.log.rewrite import publish

    async def stop(*_: object) -> None:
        raise RuntimeError("stopped")

    written = await contents(source, ORDERS)
    for step in ("_swap_end_key", "_move", "_delete_lower_keys"):
        with monkeypatch.context() as patched:
            patched.setattr(publish, step, stop)
            with pytest.raises((RuntimeError, ExceptionGroup)):  # a group, where logs are compacted in parallel
                await compact_once(source, ORDERS, max_offsets=3)
        target = memory_context(objects)
        await restored(target, await backed_up(source, objects))
        await check_all(target, [ORDERS])
        done = await compact_once(target, ORDERS)
        assert done is not None
        assert (done.resumed, done.end_offset) == (True, 3), step
        await check_all(target, [ORDERS])
        assert await contents(target, ORDERS) == written


async def test_an_append_that_was_pending_is_settled_after_a_restore(objects: ObjectStore) -> None:
    source = memory_context(objects, atomic=False)
    appender = Appender(source)
    await appender.append([group(ORDERS, b"a")])
    await appender.close()
    key = source.keys.index_entry(ORDERS, 1)
    entry = await source.metadata.get(key)
    assert entry is not None
    await appender.append([group(ORDERS, b"b")])
    await source.metadata.delete(source.keys.index_entry(ORDERS, 2))
    target = memory_context(objects)
    await restored(target, await backed_up(source, objects))
    await check_all(target, [ORDERS])
    again = Appender(target)
    await again.append([group(ORDERS, b"c")])
    await again.close()
    assert await contents(target, ORDERS) == [(1, b"a"), (2, b"b"), (3, b"c")]
    await check_all(target, [ORDERS])


async def test_backups_of_another_root_or_cluster_are_refused(source: LogContext, objects: ObjectStore) -> None:
    place = await backed_up(source, objects)
    other = memory_context(MemoryObjectStore(f"memory://other-{time.time_ns()}"))
    with pytest.raises(RestoreRefused, match="LLOG_ROOT_PREFIX"):
        await inspect_backup(other, place)
    target = memory_context(objects)
    marker = encode_value(ClusterId(cluster_id="foreign", created_at_ms=1))
    await objects.put(target.keys.cluster_marker_object(), [marker])
    with pytest.raises(RestoreRefused, match="belongs to cluster foreign"):
        await restored(target, place)


async def test_an_unfinished_restore_keeps_vacuum_held(source: LogContext, objects: ObjectStore) -> None:
    place = await backed_up(source, objects)
    target = memory_context(objects)
    found = await inspect_backup(target, place)

    async def stop(*_: object) -> None:
        raise RuntimeError("stopped")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("llog.log.recovery.restore.put_back", stop)
        with pytest.raises(RuntimeError):
            await restore_backup(target, place, found)
    with pytest.raises(RestoreRefused, match="not complete"):
        await release_vacuum(target)
    other = await backed_up(source, objects)
    with pytest.raises(RestoreRefused, match="already held"):
        await restored(target, other)
    await restore_backup(target, place, found)
    assert await release_vacuum(target) is not None


def test_names_of_backups_are_below_the_root() -> None:
    keys = Keys("team/prod")
    assert keys.backup_manifest_object(samples.BLOB_ID) == f"team/prod/@backup/{samples.BLOB_ID}/manifest"
    place = BackupObjects(MemoryObjectStore("memory://names"), keys, samples.BLOB_ID)
    assert place.where == f"memory://names/team/prod/@backup/{samples.BLOB_ID}"
    assert Log("a", 1) == ("a", 1)
