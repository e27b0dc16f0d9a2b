"""What a cluster does per day for a load: objects, index keys, requests, metadata operations, stored bytes. Pure.

The flush interval follows the broker's rule (`llog.broker.produce.flush`), with its constants, for requests that
arrive at random times: a flush starts `earliest` after the last one, but not before it has gathered for g ms; at the
latest `delay` after its first request; at once when the buffer is full. With r requests per ms, t = earliest and
d = min(delay, t), the mean interval is

    d + (1 - exp(-r (t - d))) / r + exp(-r (t - g)) / r

which is d for a dense load, and 1 / r + g for a sparse one.
"""

from __future__ import annotations

from math import ceil, exp, floor
from typing import Final

import msgspec

from llog.broker.produce.buffer import BATCH_GROUPS_PER_FLUSH_MAX
from llog.broker.produce.flush import BATCH_SMALL_BYTES_MAX, Pacing, pacing_of, pause_of
from llog.compactor.plan import COMPACTOR_MERGE_INPUTS_MIN, plan_vacuum_interval_ms
from llog.cost.inputs import CostInputs
from llog.limits import LOG_COMPACT_ENTRIES_MAX, LOG_MERGE_BYTES_DEFAULT, OBJECT_LIST_PAGE_MAX
from llog.telemetry.billing import plan_next_listing_ms

SECONDS_PER_DAY: Final = 86_400
COMPACTION_WRITES_PER_SEGMENT: Final = 8
"""Of metadata, beside the deletes of old keys: claim, settle, segment record twice, compaction record three times, and
the swap of the end key (docs/protocol.md section 7)."""
FIXED_POINT_ROUNDS: Final = 64
"""On a local store the pause depends on what a flush holds, which depends on the pause."""


class Flushes(msgspec.Struct, frozen=True):
    """Of one broker."""

    interval_ms: float
    requests: float
    """Per flush."""
    keys: float
    """Partitions with records in a flush: each gets one index key."""
    blob_bytes: float


class Segments(msgspec.Struct, frozen=True):
    """Of compaction, over all partitions."""

    interval_s: float
    """Between two segments of a partition."""
    bytes: float
    """Of a segment before merges."""
    per_day: float
    keys_per_day: float
    merge_factor: int
    """Segments that a merge joins."""
    merge_levels: int
    merges_per_day: float
    merge_gets_per_day: float
    left_per_day: float
    """Segments that remain of a day after merges."""
    left_keys_per_day: float


class Activity(msgspec.Struct, frozen=True):
    flushes: Flushes
    blobs_per_day: float
    keys_per_day: float
    segments: Segments | None
    """None without a compactor."""
    tail_gets_per_day: float
    cold_gets_per_day: float
    compaction_gets_per_day: float
    lists_per_day: float
    metadata_writes_per_s: float
    metadata_reads_per_s: float
    wal_bytes: float
    segment_bytes: float
    objects: float
    """Stored at one time."""

    @property
    def puts_per_day(self) -> float:
        written = 0.0 if self.segments is None else self.segments.per_day + self.segments.merges_per_day
        return self.blobs_per_day + written

    @property
    def gets_per_day(self) -> float:
        return self.tail_gets_per_day + self.cold_gets_per_day + self.compaction_gets_per_day


def mean_interval_ms(pacing: Pacing, pause_ms: float, upload_ms: float, requests_per_ms: float) -> float:
    """Between the starts of two flushes that are not full, when requests arrive at random times."""
    gather_ms = min(pacing.gather_ms, pacing.max_delay_ms)
    earliest_ms = max(pacing.interval_ms, pause_ms, upload_ms, gather_ms)
    bound_ms, rate = min(pacing.max_delay_ms, earliest_ms), requests_per_ms
    early, late = exp(-rate * (earliest_ms - bound_ms)), exp(-rate * (earliest_ms - gather_ms))
    return bound_ms + (1 - early + late) / rate


def mean_pause_ms(pacing: Pacing, keys: float, groups: float) -> float:
    """The pause is linear in what a flush holds, so it is interpolated between whole numbers."""
    low, high = (pause_of(pacing, whole(keys), round(groups)) for whole in (floor, ceil))
    return low + (high - low) * (keys - floor(keys))


def flushes_of(inputs: CostInputs) -> Flushes:
    load, brokers = inputs.load, inputs.brokers
    group_rate = load.records_per_s / load.records_per_group / brokers.brokers / 1_000
    rate = group_rate / load.partitions_per_request
    bytes_per_ms = load.records_per_s * load.record_bytes * load.stored_bytes_per_byte / brokers.brokers / 1_000
    full_ms = min(brokers.batch_max_bytes / bytes_per_ms, BATCH_GROUPS_PER_FLUSH_MAX / group_rate)
    # A flush holds a request at least.
    full_ms = max(full_ms, 1 / rate)
    owned = max(1.0, load.partitions * load.owners / brokers.brokers)
    covered = min(1.0, load.partitions_per_request / owned)

    def flush(interval_ms: float) -> Flushes:
        interval_ms = min(interval_ms, full_ms)
        requests = max(1.0, rate * interval_ms)
        keys = owned * (1 - (1 - covered) ** requests)
        return Flushes(interval_ms, requests, keys, bytes_per_ms * interval_ms)

    if brokers.pacing == "fixed":
        return flush(max(brokers.delay_ms, 1 / rate))
    pacing = pacing_of("file" if brokers.store == "local" else "s3", brokers.delay_ms)
    found = flush(mean_interval_ms(pacing, 0.0, brokers.upload_ms, rate))
    if brokers.store == "local":
        for _ in range(FIXED_POINT_ROUNDS):
            small = found.blob_bytes <= BATCH_SMALL_BYTES_MAX
            pause_ms = mean_pause_ms(pacing, found.keys, found.requests * load.partitions_per_request) if small else 0.0
            found = flush((found.interval_ms + mean_interval_ms(pacing, pause_ms, brokers.upload_ms, rate)) / 2)
    return found


def segments_of(inputs: CostInputs, keys_per_day: float) -> Segments:
    load, rules = inputs.load, inputs.compaction
    log_records_per_s = load.records_per_s / load.partitions
    log_bytes_per_s = log_records_per_s * load.record_bytes * load.stored_bytes_per_byte
    log_keys_per_s = keys_per_day / load.partitions / SECONDS_PER_DAY
    if rules.segment_records is not None:
        interval_s = rules.segment_records / log_records_per_s
    else:
        interval_s = min(
            rules.segment_bytes / log_bytes_per_s,
            # A run takes what is older than the minimum age, so that its last entry has this much time left.
            max(rules.segment_age_s - rules.min_age_s, 1.0),
            rules.window_bytes / (log_bytes_per_s * load.partitions),
            LOG_COMPACT_ENTRIES_MAX / log_keys_per_s,
        )
    interval_s = max(interval_s, 1 / log_keys_per_s)
    segment_bytes = log_bytes_per_s * interval_s
    per_day = load.partitions * SECONDS_PER_DAY / interval_s
    per_key = rules.records_per_segment_key
    keys = per_day if per_key is None else load.records_per_s * SECONDS_PER_DAY / per_key
    factor, levels, merged, sources, left = _merges(per_day, segment_bytes, rules.merge)
    left_keys = left if per_key is None else keys
    return Segments(interval_s, segment_bytes, per_day, keys, factor, levels, merged, sources, left, left_keys)


def _merges(per_day: float, segment_bytes: float, wanted: bool) -> tuple[int, int, float, float, float]:
    """Factor, levels, merges per day, segments read by them, and segments left."""
    factor = COMPACTOR_MERGE_INPUTS_MIN
    levels, merged, sources, left = 0, 0.0, 0.0, per_day
    while wanted and segment_bytes * factor <= LOG_MERGE_BYTES_DEFAULT:
        sources += left
        left /= factor
        merged += left
        segment_bytes *= factor
        levels += 1
    return factor, levels, merged, sources, left


def activity_of(inputs: CostInputs) -> Activity:
    load, brokers, rules = inputs.load, inputs.brokers, inputs.compaction
    flushes = flushes_of(inputs)
    blobs_per_day = brokers.brokers * SECONDS_PER_DAY * 1_000 / flushes.interval_ms
    keys_per_day = blobs_per_day * flushes.keys
    segments = segments_of(inputs, keys_per_day) if rules.compactors else None
    bytes_per_s = load.records_per_s * load.record_bytes * load.stored_bytes_per_byte

    retained_s = load.retention_hours * 3_600
    wal_s = retained_s if segments is None else min(retained_s, rules.segment_age_s + rules.vacuum_grace_s)
    objects = blobs_per_day * wal_s / SECONDS_PER_DAY
    if segments is not None:
        objects += segments.left_per_day * retained_s / SECONDS_PER_DAY
    cold_bytes = flushes.blob_bytes if segments is None else _left_bytes(segments, bytes_per_s)
    cold_per_s = bytes_per_s * load.cold_reads / min(load.cold_get_bytes, cold_bytes)
    compaction_gets = 0.0 if segments is None else blobs_per_day + segments.merge_gets_per_day
    tail_gets = blobs_per_day * load.consumers_fanout * (1 - load.tail_cache_share)

    return Activity(
        flushes=flushes,
        blobs_per_day=blobs_per_day,
        keys_per_day=keys_per_day,
        segments=segments,
        tail_gets_per_day=tail_gets,
        cold_gets_per_day=cold_per_s * SECONDS_PER_DAY,
        compaction_gets_per_day=compaction_gets,
        lists_per_day=_lists_per_day(inputs, objects),
        metadata_writes_per_s=_writes_per_day(inputs, blobs_per_day, keys_per_day, segments) / SECONDS_PER_DAY,
        metadata_reads_per_s=tail_gets / SECONDS_PER_DAY + cold_per_s,
        wal_bytes=bytes_per_s * wal_s,
        segment_bytes=0.0 if segments is None else bytes_per_s * retained_s,
        objects=objects,
    )


def _left_bytes(segments: Segments, bytes_per_s: float) -> float:
    return bytes_per_s * SECONDS_PER_DAY / segments.left_per_day


def _lists_per_day(inputs: CostInputs, objects: float) -> float:
    """Of billing, in every process, and of vacuum."""
    brokers, rules = inputs.brokers, inputs.compaction
    pages = max(1.0, objects / OBJECT_LIST_PAGE_MAX)
    billing_ms = plan_next_listing_ms(0, round(pages * rules.list_page_ms))
    processes = brokers.brokers + brokers.readers + rules.compactors
    lists = processes * pages * SECONDS_PER_DAY * 1_000 / billing_ms
    if rules.compactors:
        vacuum_ms = plan_vacuum_interval_ms(round(rules.vacuum_grace_s * 1_000), None)
        lists += pages * SECONDS_PER_DAY * 1_000 / vacuum_ms
    return lists


def _writes_per_day(inputs: CostInputs, blobs: float, keys: float, segments: Segments | None) -> float:
    """An append writes the control record and the index key of each partition: two writes each, or all in one."""
    atomic = inputs.brokers.metadata_store == "atomic"
    writes = blobs if atomic else 2 * keys
    if segments is not None:
        rewritten = segments.per_day + segments.merges_per_day
        deleted = keys + segments.keys_per_day - segments.left_keys_per_day
        writes += COMPACTION_WRITES_PER_SEGMENT * rewritten + (rewritten if atomic else deleted)
    return writes
