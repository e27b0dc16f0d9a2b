"""The broker: opens, connects and closes everything that runs in one broker process.

    stores (metered) ─► appender ─► batching ─► produce
                    └─► tail cache ◄─┘ (committed appends)
                    └─► reader ─► consume

Front ends know it as `BrokerServices` and bring their own sockets. A broker keeps no state that is not in the stores.
Closing it answers every accepted request, then closes the stores.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from llog.broker.cluster import ClusterView, Node, keep_current, read_cluster_id, read_nodes
from llog.broker.consume.consume import ConsumeService
from llog.broker.groups.coordinator import GroupCoordinator, steady_clock
from llog.broker.groups.positions import GroupPositions
from llog.broker.groups.rights import rights_to_topics
from llog.broker.health import AppendTroubles, FencedLogs, StoreTroubles
from llog.broker.membership import Membership
from llog.broker.produce.pool import MemoryPool
from llog.broker.produce.producer import BatchingProducer, TimedOutcomes
from llog.broker.tail.cache import TailCache, feed, monotonic_ms
from llog.broker.tail.shared import SharedTailCache
from llog.broker.wal_usage import WalUsage
from llog.errors import InvalidArgument, SettingsError
from llog.formats.values import BrokerRegistration
from llog.formats.warm_up import warm_up
from llog.log.append.append import Appender, EncodedGroup
from llog.log.append.known import Growth
from llog.log.keys import Log
from llog.log.producer_ids import ProducerIds
from llog.log.topics.known_topics import KnownTopics
from llog.security.security import Security
from llog.settings import Settings
from llog.settings.listening import advertised_address
from llog.settings.urls import format_host_port
from llog.telemetry.billing import Billing
from llog.telemetry.metering import STORE_NAMES, Meters, tier_of
from llog.telemetry.metrics import BrokerMetrics
from llog.telemetry.scenario import scenario_from_env
from llog.wiring import OpenedLog, Use, open_log

Role = Literal["both", "write", "read"]
ROLES: Final[tuple[Role, ...]] = ("both", "write", "read")


class Broker:
    """Created by `open`; used on one event loop."""

    def __init__(
        self,
        settings: Settings,
        opened: OpenedLog,
        metrics: BrokerMetrics,
        *,
        role: Role,
        broker_id: str,
        meters: Meters,
    ) -> None:
        self.settings, self.metrics, self.role, self.broker_id = settings, metrics, role, broker_id
        self._opened, self.context = opened, opened.context
        self.started_at_ms = self.context.now_ms()
        self.host, self.port = settings.http_bind_host, settings.http_port
        self.kafka: tuple[str, int] | None = None
        """Address that Kafka clients use; None if the Kafka front end is off."""
        self.pool = MemoryPool(settings.batch_max_buffer_bytes)
        self.positions = GroupPositions(self.context)
        self.topics = KnownTopics(self.context, monotonic_ms)
        self.producer_ids = ProducerIds(self.context)
        self.security = Security(settings, self.context, monotonic_ms, metrics.count)
        self._cache = self._tail_cache()
        self._consume = ConsumeService(
            self.context, self._cache, metrics, refresh_ms=settings.tail_refresh_ms, configs=self.topics
        )
        self.consume = self._consume.consume
        assert meters.metered_metadata is not None
        self._troubles = StoreTroubles(
            meters.metered_metadata,
            meters.named,
            wal=STORE_NAMES[tier_of(settings.wal_url, settings)] if self.writes else None,
            probe_key=self.context.keys.cluster_id(),
            on_refusing=self._shed,
        )
        self._wal_usage = self._measured_wal(meters) if self.writes else None
        self._append_troubles = AppendTroubles(monotonic_ms)
        self._fenced = FencedLogs(self.context)
        self._producer = self._batching() if self.writes else None
        self.cluster = ClusterView("", self._own_node())
        self._membership = self._new_membership()
        self.groups = GroupCoordinator(
            self.context,
            self.cluster,
            self.topics,
            broker_id=broker_id,
            now_ms=steady_clock(),
            rights=rights_to_topics(self.security),
        )
        self._billing = Billing(meters.stores, root_prefix=settings.root_prefix, now_ms=self.context.now_ms)
        self._tasks: list[asyncio.Task[None]] = []
        self._state: Literal["starting", "ok", "stopping"] = "starting"
        self.beside: Mapping[str, object] = {}
        """Other services of its stack (`llog up`), shown on the health page; they do not affect the broker's status."""

    # -- start and stop ------------------------------------------------------------------------------------------------
    @classmethod
    async def open(
        cls, settings: Settings, *, role: Role = "both", broker_id: str | None = None, warm: bool = True
    ) -> Broker:
        """Open the stores and start. Without `warm`, the caller runs `warm_up` before the first request."""
        if role not in ROLES:
            raise InvalidArgument("role", f"{role!r} is not one of {', '.join(ROLES)}")
        metrics = BrokerMetrics()
        meters = Meters(settings, metrics)
        # The segment store is opened for writing too, although a broker puts no segments: if a disk was replaced, WAL
        # and metadata are both empty, and only the segment store shows that a cluster must be restored, not created.
        use = Use.NOTHING if role == "read" else Use.PUT
        opened = await open_log(settings, blobs=use, segments=use, wrapping=meters.wrapping)
        try:
            broker_id = settings.client_identifier if broker_id is None else broker_id
            broker = cls(settings, opened, metrics, role=role, broker_id=broker_id, meters=meters)
            if warm:
                await asyncio.to_thread(warm_up)
            broker._start()
            broker._tasks += await broker.security.start()
        except BaseException:
            await opened.close()
            raise
        return broker

    def _start(self) -> None:
        settings = self.settings
        self._cache.start()
        self.metrics.set_batch_settings(
            max_bytes=settings.batch_max_bytes,
            max_delay_ms=settings.batch_max_delay_ms,
            max_buffer_bytes=settings.batch_max_buffer_bytes,
            tail_cache_max_bytes=settings.tail_cache_max_bytes,
        )
        self.metrics.set_loadtest(scenario_from_env(os.environ))
        self._tasks.append(asyncio.create_task(self._billing.run(asyncio.sleep), name="llog-billing"))
        self._tasks.append(asyncio.create_task(self._troubles.run(), name="llog-store-troubles"))
        self._tasks.append(asyncio.create_task(self._fenced.run(), name="llog-fenced-logs"))
        if self._wal_usage is not None:
            self._tasks.append(asyncio.create_task(self._wal_usage.run(), name="llog-wal-usage"))
        self._state = "ok"

    def _tail_cache(self) -> TailCache:
        """In memory, or shared between the brokers of one machine through a directory."""
        settings = self.settings
        if settings.tail_cache_dir is None:
            return TailCache(settings.tail_cache_max_bytes, metrics=self.metrics)
        try:
            return SharedTailCache(
                settings.tail_cache_dir,
                settings.tail_cache_max_bytes,
                writes=self.writes,
                reads=self.reads,
                metrics=self.metrics,
            )
        except OSError as error:
            reason = f"the directory cannot be used: {error}"
            raise SettingsError("LLOG_TAIL_CACHE_DIR", str(settings.tail_cache_dir), reason) from error

    def _measured_wal(self, meters: Meters) -> WalUsage | None:
        """None when blobs lie in the object store, which has no limit."""
        if tier_of(self.settings.wal_url, self.settings) != "wal":
            return None
        usage = WalUsage(
            meters.named[STORE_NAMES["wal"]],
            self.context.keys.blobs(),
            self.settings.wal_max_bytes,
            accepted_bytes=lambda: self._producer.accepted_bytes if self._producer is not None else 0,
        )
        self.metrics.attach_wal_usage(lambda: usage.used_bytes, usage.max_bytes)
        return usage

    def _batching(self) -> BatchingProducer:
        appender = Appender(self.context, growth=Growth.HTTP)
        self._appender = appender
        self.metrics.attach_appender(appender.counters)
        return BatchingProducer(
            appender,
            max_bytes=self.settings.batch_max_bytes,
            max_delay_ms=self.settings.batch_max_delay_ms,
            pool=self.pool,
            metrics=self.metrics,
            now_ms=monotonic_ms,
            sleep=asyncio.sleep,
            on_committed=feed(self._cache, appender.committer.known),
            trouble=self.refusal,
        )

    def _own_node(self) -> Node:
        """Without a node id; the address is that of the settings until the front end listens."""
        settings = self.settings
        host, port = ("", 0) if settings.kafka_port is None else advertised_address(settings, settings.kafka_port)
        return Node(-1, host, port, settings.zone or "", writes=self.writes, reads=self.reads)

    def _new_membership(self) -> Membership:
        roles = tuple(name for name, has in (("write", self.writes), ("read", self.reads)) if has)
        registration = BrokerRegistration(
            broker_id=self.broker_id,
            addresses={},
            zone=self.settings.zone or "",
            roles=roles,
            started_at_ms=self.started_at_ms,
        )
        return Membership(
            self.context,
            registration,
            session_timeout_ms=self.settings.session_timeout_ms,
            node_id=self.settings.node_id,
            on_node_id=lambda node_id: self.cluster.set_own(self.cluster.own._replace(node_id=node_id)),
        )

    def _shed(self, reason: str) -> None:
        if self._producer is not None:
            self._producer.shed(reason)

    async def join(self) -> None:
        """Get a node id and see which other nodes there are. Front ends listen after this, and `listens` ends it."""
        await self._membership.join()
        self.cluster.cluster_id = await read_cluster_id(self.context)
        self.cluster.set_others(await read_nodes(self.context))

    async def listens(self, host: str, port: int, *, kafka: tuple[str, int] | None = None) -> None:
        """The HTTP front end listens at this address, and Kafka clients use the address `kafka`: register both, and
        show them on the health page and in the metrics."""
        self.host, self.port, self.kafka = host, port, kafka
        self.metrics.set_broker(
            broker_id=self.broker_id,
            host=host,
            port=port,
            role=self.role,
            started_at_ms=self.started_at_ms,
            metadata_url=self.settings.metadata_url,
            wal_url=self.settings.wal_url,
            objects_url=self.settings.objects_url,
        )
        addresses = {"http": format_host_port(host, port)}
        if kafka is not None:
            self.cluster.set_own(self.cluster.own._replace(host=kafka[0], port=kafka[1]))
            addresses["kafka"] = format_host_port(*kafka)
        await self._membership.register(addresses)
        self._tasks.append(asyncio.create_task(keep_current(self.cluster, self.context), name="llog-cluster"))
        if kafka is not None and self.writes:
            self.groups.start()

    async def drain(self) -> None:
        """The broker is about to stop: other nodes take its Kafka clients over."""
        self.cluster.set_own(self.cluster.own._replace(draining=True))
        await self._membership.drain()
        await self.groups.resign()

    async def close(self, *, at_once: asyncio.Event | None = None) -> None:
        """Answer all accepted requests, then close; once `at_once` is set, do not wait for them. Idempotent."""
        if self._state == "stopping":
            return
        self._state = "stopping"
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            await self.groups.close()
            await self._membership.close()
            if self._producer is not None:
                await self._producer.close(at_once=at_once)
                await self._appender.close()
            await self._consume.close()
            await self._cache.close()
        finally:
            await self._opened.close()

    # -- for front ends ------------------------------------------------------------------------------------------------
    @property
    def writes(self) -> bool:
        return self.role != "read"

    @property
    def reads(self) -> bool:
        return self.role != "write"

    def refusal(self) -> str:
        """Why no record can be accepted now; empty if records are accepted."""
        return self._troubles.refusal() or (self._wal_usage.refusal() if self._wal_usage is not None else "")

    async def produce(self, groups: Sequence[EncodedGroup]) -> TimedOutcomes:
        return await self.submit(groups)

    def submit(self, groups: Sequence[EncodedGroup]) -> asyncio.Future[TimedOutcomes]:
        """Accept the groups now, behind all earlier calls (`BatchingProducer.submit`). Cancelling the future does not
        undo the append."""
        if self._producer is None:
            raise InvalidArgument(
                "role",
                "this broker only reads; send records to a broker with role write or both",
            )
        answer = self._producer.submit(groups)
        answer.add_done_callback(self._note)
        return answer

    def _note(self, answer: asyncio.Future[TimedOutcomes]) -> None:
        if not answer.cancelled():
            outcomes = answer.result().outcomes
            self._append_troubles.note(outcomes)
            self._fenced.refused(outcomes)

    def log_start_offset(self, log: Log) -> int:
        """As of the last append of this broker to the log; -1: not known."""
        known = None if self._producer is None else self._appender.committer.known.get(log)
        return -1 if known is None else known.control.log_start_offset

    def log_changed(self, log: Log) -> None:
        self._cache.forget(log)
        self._fenced.check(log)

    def ready(self) -> bool:
        return self.health()["status"] == "ok"

    def health(self) -> Mapping[str, object]:
        reasons = self._troubles.reasons()
        if failing := self._append_troubles.reason():
            reasons.append(failing)
        if self._wal_usage is not None and (full := self._wal_usage.refusal()):
            reasons.append(full)
        if self.pool.under_pressure:
            reasons.append("buffers are three quarters full: producers send faster than the object store accepts")
        if outdated := self.security.trouble():
            reasons.append(outdated)
        if self._membership.lost:
            reasons.append("this broker's registration was lost; it is trying to register again")
        status = "ok" if self._state == "ok" else self._state
        page: dict[str, object] = {
            "status": "degraded" if reasons and status == "ok" else status,
            "broker_id": self.broker_id,
            "host": self.host,
            "port": self.port,
            "node_id": self.cluster.node_id,
            "zone": self.cluster.own.zone,
            "kafka": None if self.kafka is None else format_host_port(*self.kafka),
            "nodes": [node.node_id for node in self.cluster.nodes()],
            "draining": self.cluster.own.draining,
            "started_at_ms": self.started_at_ms,
            "role": self.role,
            "groups": self.groups.describe_page(),
            "acknowledged_means": acknowledged_means(self.settings),
            # Does not affect the status: an operator may have fenced the log on purpose.
            "fenced": self._fenced.shown(),
        }
        return {**page, **self.beside} | ({"reasons": reasons} if reasons else {})


def acknowledged_means(settings: Settings) -> str:
    """What an acknowledgement guarantees, as text for the health page and the banner."""
    kind = settings.wal_url.partition(":")[0]
    place = {"file": "on this disk (or its file system)", "memory": "in memory only", "s3": "in S3"}.get(kind, kind)
    return f"records are durable {place} and ordered in the metadata store"
