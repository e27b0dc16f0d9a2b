"""The engine librdkafka: a real client with its default settings, acks=all and idempotence, one producer per client.

One thread gives records to the producers when they are due and serves delivery reports. librdkafka makes batches,
chooses brokers and retries by itself, so `producers.in_flight` and the routing of the scenario have no effect, and
latencies, failures and late sending count per record or per request that the schedule has, not per request sent.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from llog.errors import LoadTestError
from llog.loadtest.client.accounts import Accounts
from llog.loadtest.client.client import LATE_S
from llog.loadtest.client.schedule import NEVER, Now, request_interval_s
from llog.loadtest.client.stamp import STAMP_BYTES, parse_stamps, stamp_places, write_stamps
from llog.loadtest.client.streams import StreamPlan
from llog.loadtest.client.usage import Usage, thread_usage
from llog.loadtest.client.wire import BINARY, Frame, FramePool, Stream, key_digits, prepared_values
from llog.loadtest.scenario.model import Records

POLL_S: Final = 0.001
"""Between two looks for delivery reports and due requests."""
FULL_QUEUE_POLL_S: Final = 0.005
REPORTS_MAX: Final = 50_000
"""Delivery reports that are gathered before they are counted."""


class LibrdkafkaLoad:
    def __init__(
        self,
        plans: Sequence[StreamPlan],
        bootstrap: str,
        run: str,
        records: Records,
        accounts: Accounts,
        now_s: Now,
        timeout_s: float,
    ) -> None:
        self._run, self._records, self._accounts, self._now_s = run, records, accounts, now_s
        self._settings = {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": records.compression,
            "message.timeout.ms": round(timeout_s * 1_000),
        }
        self._streams = [Stream(plan) for plan in plans]
        self._producers: dict[int, Any] = {}
        self._queue: list[tuple[float, int, Stream]] = []
        self._lock = threading.Lock()
        """Of the schedules and the queue, which the event loop changes and the thread reads."""
        self._pool = FramePool(self._new_frame)
        self._delivered: list[bytes] = []
        self._service_us: list[int] = []
        self._ending = threading.Event()
        self._until_s = NEVER
        self._room_since_s = 0.0
        """When a queue of librdkafka was full for the last time."""
        self._failure: BaseException | None = None
        self._usage = Usage(0.0, 0.0)
        self._thread = threading.Thread(target=self._work, name="librdkafka", daemon=True)
        accounts.measure_usage(lambda: self._usage)
        self._loop: asyncio.AbstractEventLoop

    async def open(self) -> None:
        try:
            from confluent_kafka import Producer
        except ImportError:
            raise LoadTestError("engine librdkafka needs the package confluent-kafka") from None
        self._loop = asyncio.get_running_loop()
        for stream in self._streams:
            if stream.plan.client not in self._producers:
                self._producers[stream.plan.client] = Producer(self._settings)
        for producer in self._producers.values():
            try:
                await asyncio.to_thread(producer.list_topics, timeout=10)
            except Exception as error:
                raise LoadTestError(f"librdkafka cannot reach a broker: {error}") from error
        self._thread.start()

    def start(self, at_s: float, mb_per_s: float) -> None:
        with self._lock:
            for stream in self._streams:
                plan = stream.plan
                request_bytes = plan.request_records * self._records.bytes
                stream.schedule.start(at_s, request_interval_s(mb_per_s, plan.byte_share, request_bytes), plan.phase)
            self._requeue()

    def stop(self) -> None:
        with self._lock:
            for stream in self._streams:
                stream.schedule.stop()
            self._requeue()

    def count_due(self, until_s: float) -> int:
        with self._lock:
            return sum(stream.schedule.count_due(until_s) for stream in self._streams)

    async def drain(self, until_s: float) -> None:
        self._until_s = until_s
        self._ending.set()
        await asyncio.to_thread(self._thread.join)
        self.check()

    def check(self) -> None:
        if self._failure is not None:
            raise LoadTestError(f"the thread of librdkafka failed: {self._failure}") from self._failure

    def close(self) -> None:
        self._until_s = 0.0
        self._ending.set()

    # -- in the thread --

    def _requeue(self) -> None:
        self._queue = [(stream.schedule.next_due_s, number, stream) for number, stream in enumerate(self._streams)]
        heapq.heapify(self._queue)

    def _work(self) -> None:
        try:
            while not self._ending.is_set():
                self._send_due()
                self._take_reports(0.0)
                self._usage = thread_usage()
                time.sleep(POLL_S)
            while any(map(len, self._producers.values())) and self._now_s() < self._until_s:
                self._take_reports(POLL_S)
            for producer in self._producers.values():
                producer.purge()
            self._take_reports(POLL_S)
        except BaseException as failure:
            self._failure = failure

    def _send_due(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    return
                due_s, number, stream = self._queue[0]
                now_s = self._now_s()
                if due_s > now_s:
                    return
                stream.schedule.take()
                heapq.heapreplace(self._queue, (stream.schedule.next_due_s, number, stream))
            self._tell(self._accounts.sent, stream.plan.request_records)
            self._tell(self._accounts.delayed, due_s, now_s)
            if now_s - due_s > LATE_S and self._room_since_s <= due_s:
                self._tell(self._accounts.sent_late)
            self._send(stream, due_s)

    def _send(self, stream: Stream, due_s: float) -> None:
        plan, size = stream.plan, self._records.bytes
        producer, group = self._producers[plan.client], plan.group
        frame = self._pool.take(plan.request_records)
        places = stamp_places(np.arange(plan.request_records, dtype=np.int64) * size)
        write_stamps(
            frame.body,
            places,
            self._run,
            plan.client,
            group.topic,
            stream.partitions,
            stream.next_sequence,
            round(due_s * 1e6),
        )
        stream.next_sequence += plan.batch_records
        keys = key_digits(self._records.keys, plan.request_records) if self._records.keys else None
        view = memoryview(frame.memory)
        for number in range(plan.request_records):
            value = bytes(view[number * size : (number + 1) * size])
            key = keys[number].tobytes() if keys is not None else None
            partition = group.partitions[number // plan.batch_records]
            while not self._ending.is_set():
                try:
                    producer.produce(group.topic_name, value, key, partition, on_delivery=self._on_delivery)
                    break
                except BufferError:  # its queue is full
                    self._take_reports(FULL_QUEUE_POLL_S)
                    self._room_since_s = self._now_s()
        self._pool.give_back(frame)

    def _on_delivery(self, error: Any, message: Any) -> None:
        head = message.value()[:STAMP_BYTES]
        if error is None:
            self._delivered.append(head)
            self._service_us.append(round((message.latency() or 0.0) * 1e6))
            if len(self._delivered) >= REPORTS_MAX:
                self._count_reports()
        else:
            self._tell(self._accounts.undelivered, parse_stamps(head, self._run), error.name())

    def _take_reports(self, wait_s: float) -> None:
        for producer in self._producers.values():
            producer.poll(wait_s)
        self._count_reports()

    def _count_reports(self) -> None:
        if self._delivered:
            stamps = parse_stamps(b"".join(self._delivered), self._run)
            request_records = self._streams[0].plan.request_records
            services = np.array(self._service_us, np.int64)
            self._tell(self._accounts.delivered, stamps, services, self._now_s(), request_records)
            self._delivered, self._service_us = [], []

    def _tell(self, report: Callable[..., None], *arguments: Any) -> None:
        """To the accounts, which belong to the event loop."""
        self._loop.call_soon_threadsafe(report, *arguments)

    def _new_frame(self, records: int) -> Frame:
        return Frame(records, b"".join(prepared_values(self._records, records, BINARY)))
