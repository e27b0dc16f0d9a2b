"""Something in every family, for tests that look at the pages."""

from __future__ import annotations

from uuid import uuid4

from llog.errors import ObjectNotFound, VersionConflict
from llog.log import metrics as log_names
from llog.log.metrics import AppendCounters
from llog.stores.metadata.memory import MemoryBacking, MemoryStore
from llog.stores.metadata.port import ABSENT, Key
from llog.stores.metadata.wrappers import MeteredMetadataStore
from llog.stores.objects.memory import MemoryObjectStore
from llog.stores.objects.wrappers import MeteredObjectStore
from llog.telemetry.billing import BilledStore, Billing
from llog.telemetry.metrics import BrokerMetrics
from llog.telemetry.scenario import LoadTestScenario

NOW_MS = 1_760_000_000_000
STORES = {"metadata_url": "oxia://127.0.0.1:6648", "wal_url": "memory://wal", "objects_url": "memory://objects"}
LOG_NAMES = sorted(value for name, value in vars(log_names).items() if name.isupper())


class Activity:
    """One process's metrics with stores attached; `round` makes everything happen once more."""

    def __init__(self, metrics: BrokerMetrics | None = None) -> None:
        self.metrics = BrokerMetrics() if metrics is None else metrics
        self.metadata = MeteredMetadataStore(MemoryStore(MemoryBacking()))
        self.objects = MeteredObjectStore(MemoryObjectStore(f"memory://{uuid4().hex}"))
        self.appends = AppendCounters()
        self.billing = Billing(
            [BilledStore("objects", self.objects.kind, self.objects.stats, self.objects)],
            root_prefix="llog",
            now_ms=lambda: NOW_MS,
        )
        self.metrics.attach_metadata("oxia://127.0.0.1:6648", self.metadata.stats)
        self.metrics.attach_objects(self.billing.stores)
        self.metrics.attach_appender(self.appends)
        self.metrics.set_loadtest(LoadTestScenario("steady", "run-1", {"brokers": 3, "record_bytes": 1_024}))
        self.metrics.set_broker(
            broker_id="broker-1", host="127.0.0.1", port=8080, role="both", started_at_ms=NOW_MS, **STORES
        )
        self.metrics.set_compactor(compactor_id="c-1", host="127.0.0.1", port=8090, started_at_ms=NOW_MS, **STORES)
        self.metrics.set_batch_settings(
            max_bytes=8 << 20, max_delay_ms=500, max_buffer_bytes=512 << 20, tail_cache_max_bytes=1 << 30
        )

    async def round(self) -> None:
        await self._stores()
        self._broker()
        self._compactor()

    async def _stores(self) -> None:
        await self.metadata.put(Key("a/1"), b"x")
        try:
            await self.metadata.put(Key("a/1"), b"x", expected=ABSENT)
        except VersionConflict:
            pass
        await self.metadata.get(Key("a/1"))
        self.metadata.stats.sessions_lost += 1
        await self.objects.put(f"llog/{uuid4().hex}", [b"x" * 1_000])
        try:
            await self.objects.get("llog/nothing")
        except ObjectNotFound:
            pass
        await self.billing.refresh()
        for name in self.appends.__slots__:
            setattr(self.appends, name, getattr(self.appends, name) + 1)

    def _broker(self) -> None:
        metrics = self.metrics
        metrics.observe_http("/produce", "POST", 200, 0.004, 1_024, 96)
        metrics.observe_http("/consume", "POST", 200, 0.1, 96, 4_096)
        metrics.observe_http("/produce", "POST", 503, 0.001, 1_024, 60)
        metrics.http_validation_failure("/produce", "topic_partitions[].partition")
        metrics.observe_kafka("Produce", "NONE", 0.004, 1_024, 96)
        metrics.observe_kafka("Fetch", "NOT_LEADER_OR_FOLLOWER", 0.1, 96, 4_096)
        metrics.kafka_refused("malformed")
        metrics.kafka_connected(1)
        metrics.observe_flush("size", 4, 1_000, 1 << 20, 3, 12, 4)
        metrics.set_buffered(4_096, 3)
        metrics.observe_consume(2, 100, 10_000, 5, "cache", 9_000)
        metrics.observe_consume(1, 100, 10_000, 5, "store", 9_000)
        metrics.observe_append_to_consume(20)
        for kind in ("hit", "miss", "empty"):
            metrics.tail_cache_event(kind)
        metrics.tail_cache_event("evicted", 2)
        metrics.set_tail_cache(1 << 20, 3)
        metrics.observe_appends(4, 1_000, 1 << 20, {"AppendNotCommitted": 1, "LogFenced": 2}, 1_000_000)
        for name in (*LOG_NAMES, "batching_rejections", "batching_flush_failures", "batching_listener_failures"):
            metrics.count(name)
        metrics.count("something_new", 2)
        for number in range(1_000):
            metrics.http_validation_failure("/made-up", f"field-{number}")

    def _compactor(self) -> None:
        metrics = self.metrics
        metrics.observe_compaction("compacted", "compact", 40, 1 << 22, {"claim": 1, "look": 2, "run": 300})
        metrics.observe_compaction("failed", "compact", 0, 0, {"claim": 1})
        metrics.set_compaction_lag("orders", 0, 1_000, 1 << 20, NOW_MS)
        metrics.set_compaction_pending({"DELETING_OLD": 1}, 2)
        metrics.set_workers(1, 4)
        metrics.set_discovery(16, NOW_MS)
        metrics.claim_event("acquired")
        metrics.recovery_event("run_resumed")
        metrics.vacuum_event("run", 1)
        metrics.vacuum_event("refused", 1)
        metrics.vacuum_event("blobs_deleted", 3)
        metrics.vacuum_event("bytes_deleted", 3_000)
        metrics.fenced_logs(1)
        metrics.clock_skew(40)
