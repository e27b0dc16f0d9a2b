"""The estimate that `llog cost` prints: figures with their formulas, dollars per month by item, and Kafka's transfer
between zones for the same load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from llog.cost.activity import SECONDS_PER_DAY, Activity, activity_of
from llog.cost.inputs import CostInputs, PriceList
from llog.cost.kafka import BYTES_PER_MB, KafkaLayout, cross_zone_bytes_per_s, cross_zone_dollars_per_hour
from llog.limits import GIB, LOG_COMPACT_ENTRIES_MAX, LOG_MERGE_BYTES_DEFAULT, MIB

HOURS_PER_MONTH: Final = 730.0
"""A year of 8,760 hours in twelve parts."""
DAYS_PER_MONTH: Final = HOURS_PER_MONTH / 24


class Figure(msgspec.Struct, frozen=True):
    name: str
    value: float
    unit: str
    formula: str


class Item(msgspec.Struct, frozen=True):
    """A line of the bill."""

    name: str
    dollars_per_month: float
    formula: str
    counted: bool = True
    """False: its price is 0, because nobody gave one."""


class KafkaComparison(msgspec.Struct, frozen=True):
    layout: KafkaLayout
    dollars_per_hour: float
    dollars_per_month: float
    formula: str


class Estimate(msgspec.Struct, frozen=True):
    source: str
    figures: tuple[Figure, ...]
    items: tuple[Item, ...]
    requests_dollars_per_hour: float
    dollars_per_month: float
    dollars_per_gb: float
    """Per GB (10**9 bytes) of produced values, all items together."""
    kafka: KafkaComparison
    prices: Mapping[str, float]
    inputs: CostInputs | None = None
    """None where the figures were measured."""

    def figure(self, name: str) -> float:
        return next(figure.value for figure in self.figures if figure.name == name)


class Requests(msgspec.Struct, frozen=True):
    """Per day, by kind; `puts` and `gets` by what makes them."""

    puts: Mapping[str, float]
    gets: Mapping[str, float]
    lists: float


def estimate_of(
    inputs: CostInputs, prices: PriceList | None = None, kafka: KafkaLayout | None = None, source: str = "options"
) -> Estimate:
    activity, prices = activity_of(inputs), prices or PriceList()
    segments, load = activity.segments, inputs.load
    puts = {"of WAL blobs": activity.blobs_per_day}
    gets = {"of consumers at the tail": activity.tail_gets_per_day, "of cold readers": activity.cold_gets_per_day}
    if segments is not None:
        puts |= {"of compaction": segments.per_day, "of merges": segments.merges_per_day}
        gets |= {"of compaction": activity.blobs_per_day, "of merges": segments.merge_gets_per_day}
    cores = (inputs.brokers.brokers + inputs.brokers.readers + inputs.compaction.compactors) * inputs.brokers.cores
    items = (
        *request_items(Requests(puts, gets, activity.lists_per_day), prices),
        *storage_items(activity.wal_bytes, activity.segment_bytes, prices),
        machine_item(cores, prices),
    )
    consumed = load.mb_per_s * (load.consumers_fanout + load.cold_reads)
    return assemble(source, _figures(inputs, activity), items, load.mb_per_s, consumed, prices, kafka, inputs)


def assemble(
    source: str,
    figures: Iterable[Figure],
    items: tuple[Item, ...],
    produce_mb_per_s: float,
    consume_mb_per_s: float,
    prices: PriceList,
    layout: KafkaLayout | None,
    inputs: CostInputs | None = None,
) -> Estimate:
    total = sum(item.dollars_per_month for item in items)
    requests = sum(item.dollars_per_month for item in items if item.name.startswith(("PUT", "GET", "LIST")))
    produced_gb = produce_mb_per_s * BYTES_PER_MB * SECONDS_PER_DAY * DAYS_PER_MONTH / 1e9
    return Estimate(
        source,
        tuple(figures),
        items,
        requests / HOURS_PER_MONTH,
        total,
        total / produced_gb if produced_gb else 0.0,
        compared_with_kafka(produce_mb_per_s, consume_mb_per_s, prices, layout or KafkaLayout()),
        prices.by_name(),
        inputs,
    )


# -- dollars -----------------------------------------------------------------------------------------------------------


def request_items(requests: Requests, prices: PriceList) -> tuple[Item, ...]:
    listed = prices.by_name()
    put, get = f"{listed['put']:g} / 1,000", f"{listed['get']:g} / 10,000"
    month = f"{DAYS_PER_MONTH:.2f} days"

    def cost(kind: str, per_day: float) -> float:
        # Half requests exist only in the mean, so count many days.
        return prices.objects.requests_usd({kind: round(per_day * 1_000)}) / 1_000 * DAYS_PER_MONTH

    return (
        *(
            Item(f"PUT {what}", cost("put", count), f"{_shown(count)} a day × {month} × {put}")
            for what, count in requests.puts.items()
        ),
        *(
            Item(f"GET {what}", cost("get", count), f"{_shown(count)} a day × {month} × {get}")
            for what, count in requests.gets.items()
        ),
        Item("LIST", cost("list", requests.lists), f"{_shown(requests.lists)} a day × {month} × {put}"),
    )


def storage_items(wal_bytes: float, segment_bytes: float, prices: PriceList) -> tuple[Item, ...]:
    wal, price = prices.wal_storage_per_gib_month, prices.objects.storage_per_gib_month
    return (
        Item("storage of WAL blobs", wal_bytes / GIB * wal, f"{wal_bytes / GIB:,.1f} GiB × {wal:g}"),
        Item("storage of segments", segment_bytes / GIB * price, f"{segment_bytes / GIB:,.1f} GiB × {price:g}"),
    )


def machine_item(cores: float, prices: PriceList) -> Item:
    formula = f"{cores:g} cores × {HOURS_PER_MONTH:g} hours × {prices.core_hour:g}"
    return Item("machines", cores * HOURS_PER_MONTH * prices.core_hour, formula, counted=prices.core_hour > 0)


def compared_with_kafka(
    produce_mb_per_s: float, consume_mb_per_s: float, prices: PriceList, layout: KafkaLayout
) -> KafkaComparison:
    per_hour = cross_zone_dollars_per_hour(produce_mb_per_s, consume_mb_per_s, layout=layout, prices=prices.network)
    crossing = cross_zone_bytes_per_s(produce_mb_per_s, consume_mb_per_s, layout) / BYTES_PER_MB
    formula = (
        f"({produce_mb_per_s:.4g} MB/s × ({layout.client_crossings:.3g} to leaders + {layout.replica_crossings} to"
        f" replicas) + {consume_mb_per_s:.4g} MB/s × {layout.consumer_crossings:.3g} to consumers) ="
        f" {crossing:.4g} MB/s across zones × 3,600 s / 2**30 × {prices.network.cross_zone_per_gib:g};"
        f" {layout.zones} zones, {layout.replication_factor} replicas; disks and machines not counted"
    )
    return KafkaComparison(layout, per_hour, per_hour * HOURS_PER_MONTH, formula)


# -- figures -----------------------------------------------------------------------------------------------------------


def _figures(inputs: CostInputs, activity: Activity) -> list[Figure]:
    load, brokers, rules, flushes = inputs.load, inputs.brokers, inputs.compaction, activity.flushes
    figures = [
        Figure(
            "produced", load.mb_per_s, "MB/s",
            f"{load.records_per_s:,.6g} records/s × {load.record_bytes:g} bytes / 10**6",
        ),
        Figure("flush interval", flushes.interval_ms, "ms per broker", _interval_formula(inputs)),
        Figure(
            "blob size", flushes.blob_bytes, "bytes",
            f"produced bytes × {load.stored_bytes_per_byte:g} / {brokers.brokers} brokers × flush interval",
        ),
        Figure(
            "partitions per blob", flushes.keys, "index keys",
            f"L × (1 - (1 - {load.partitions_per_request} / L)**n); L = {load.partitions} partitions × {load.owners}"
            f" owners / {brokers.brokers} brokers, n = {flushes.requests:.4g} requests per flush",
        ),
        Figure(
            "objects before compaction", activity.blobs_per_day, "per day",
            f"{brokers.brokers} brokers × 86,400,000 ms / flush interval",
        ),
        Figure(
            "index keys before compaction", activity.keys_per_day, "per day", "objects × partitions per blob"
        ),
    ]  # fmt: skip
    if activity.segments is not None:
        segments = activity.segments
        figures += [
            Figure("segment interval", segments.interval_s, "s per partition", _segment_formula(inputs)),
            Figure(
                "objects after compaction", segments.per_day, "per day",
                f"{load.partitions} partitions × 86,400 s / segment interval",
            ),
            Figure(
                "index keys after compaction", segments.keys_per_day, "per day",
                "one per segment" if rules.records_per_segment_key is None
                else f"records per day / {rules.records_per_segment_key:g}",
            ),
            Figure(
                "objects after merges", segments.left_per_day, "per day",
                f"objects after compaction / {segments.merge_factor}**{segments.merge_levels}: merges join"
                f" {segments.merge_factor} segments while the result is at most {LOG_MERGE_BYTES_DEFAULT // MIB} MiB",
            ),
            Figure("index keys after merges", segments.left_keys_per_day, "per day", "one per remaining segment"
                if rules.records_per_segment_key is None else "as after compaction"),
        ]  # fmt: skip
    return figures + _request_figures(inputs, activity)


def _request_figures(inputs: CostInputs, activity: Activity) -> list[Figure]:
    load, rules = inputs.load, inputs.compaction
    atomic = inputs.brokers.metadata_store == "atomic"
    return [
        Figure(
            "PUT requests", activity.puts_per_day, "per day",
            "blobs + segments + merges" if activity.segments else "one per blob",
        ),
        Figure(
            "GET requests", activity.gets_per_day, "per day",
            f"compaction: one per blob, merges: one per source; at the tail: blobs × {load.consumers_fanout:g} readings"
            f" × {1 - load.tail_cache_share:.4g} not cached; cold: produced bytes × {load.cold_reads:g} /"
            f" min({load.cold_get_bytes:,.0f}, bytes of an object)",
        ),
        Figure(
            "LIST requests", activity.lists_per_day, "per day",
            f"objects / 1,000 for each listing: billing of every process, every 5 minutes, at most 1/100 of the time at"
            f" {rules.list_page_ms:g} ms a page, and vacuum",
        ),
        Figure(
            "metadata writes", activity.metadata_writes_per_s, "per s",
            ("one transaction per flush; compaction: 8 writes and one group of deletes per segment" if atomic else
             "2 per partition and blob; compaction: 8 per segment and a delete per replaced key"),
        ),
        Figure(
            "metadata reads", activity.metadata_reads_per_s, "per s",
            "one look-up per GET of a reader; none from the cache",
        ),
        Figure(
            "WAL bytes stored", activity.wal_bytes, "bytes",
            f"bytes/s × min(retention {load.retention_hours:g} h, {rules.segment_age_s:g} s until compaction +"
            f" {rules.vacuum_grace_s:g} s until deletion)" if activity.segments else "bytes/s × retention",
        ),
        Figure(
            "segment bytes stored", activity.segment_bytes, "bytes",
            f"bytes/s × {load.retention_hours:g} h" if activity.segments else "no compactor",
        ),
        Figure("objects stored", activity.objects, "objects", "WAL blobs and segments that are not deleted yet"),
    ]  # fmt: skip


def _interval_formula(inputs: CostInputs) -> str:
    brokers = inputs.brokers
    full = f"or {brokers.batch_max_bytes:,.0f} bytes, if that is sooner"
    if brokers.pacing == "fixed":
        return f"{brokers.delay_ms:g} ms, {full}"
    pause = "a pause by the processor time of flushes" if brokers.store == "local" else "250 ms since the last flush"
    return (
        f"max({pause}, {brokers.upload_ms:g} ms of upload), at most {brokers.delay_ms:g} ms after the first request,"
        f" {full}; requests arrive at random"
    )


def _segment_formula(inputs: CostInputs) -> str:
    rules, load = inputs.compaction, inputs.load
    if rules.segment_records is not None:
        return f"{rules.segment_records:g} records / ({load.records_per_s:g} records/s / {load.partitions} partitions)"
    return (
        f"the shortest of: {rules.segment_bytes:,.0f} bytes of the partition; {rules.segment_age_s:g} -"
        f" {rules.min_age_s:g} s; {rules.window_bytes:,.0f} bytes of all partitions, where a task ends;"
        f" {LOG_COMPACT_ENTRIES_MAX:,} index keys; at least the time between two keys"
    )


def _shown(count: float) -> str:
    return f"{count:,.0f}"
