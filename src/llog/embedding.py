"""A broker inside another program: a notebook, a test, a Spark driver.

    with llog.embedded() as broker:
        broker.produce("orders", ["alpha", "beta"])
        broker.consume("orders")            # or HTTP at broker.url, or a reader with broker.settings
        KafkaProducer(bootstrap_servers=broker.bootstrap)       # or any other Kafka client

It is the real broker with its front ends, in a thread with its own event loop, so the program may run a loop or
none. By default its stores are in a temporary directory that is deleted on close; with `directory` they stay, and with
`memory` nothing touches a disk.

The broker listens before the compiled kernels are loaded. Loading continues in a thread; the first records wait for it.
`LLOG_…` variables are ignored, because a test must not write to the stores that a shell names. Unless configured
otherwise, the broker listens on this machine only. A start that fails raises, and leaves no thread behind.

(The function is `llog.embedded`; a module of that name would hide it.)
"""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
import tempfile
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from llog.api.aio import results_of
from llog.api.groups import AppendResult, SharedAppendGroup, encode_group, judged_groups
from llog.broker.broker import Broker
from llog.broker.consume.consume import ConsumeRequest, PartitionFetch
from llog.errors import InvalidArgument, LogError, StoreClosed, TopicNotFound
from llog.formats.records.record_columns import Header
from llog.http.json import warm_up
from llog.log.keys import Log, check_partition, check_topic
from llog.log.read.records import LogRecord
from llog.log.topics.admin import FIRST_OFFSET_DEFAULT, describe_topic
from llog.process.serve import serve
from llog.settings import Settings
from llog.settings.urls import format_host_port
from llog.stores.objects.memory import forget

# How long the caller waits until the broker listens, and until its thread has ended.
EMBEDDED_START_MS_MAX: Final = 60_000
EMBEDDED_STOP_MS_MAX: Final = 30_000
# How long a program that ends without `close` waits for the broker's thread.
EMBEDDED_EXIT_MS_MAX: Final = 5_000
# Time that HTTP clients get to finish when the broker stops (default of `http_stop_timeout_ms`).
EMBEDDED_HTTP_STOP_MS: Final = 1_000

T = TypeVar("T")


def embedded(
    directory: str | os.PathLike[str] | None = None, *, memory: bool = False, **settings: object
) -> EmbeddedBroker:
    """Start a broker in this process; it listens when the call returns. Keywords are settings without `LLOG_`:
    `embedded(encoding="bytes-batch-v1", http_port=8080)`. The default ports are free ones."""
    return EmbeddedBroker(directory, memory=memory, **settings)


class EmbeddedBroker:
    """A running broker, usable from any thread: HTTP at `url`, Kafka at `bootstrap` (`host:port`; empty with
    `kafka_port=""`). Closed by `close` or `with`."""

    def __init__(
        self, directory: str | os.PathLike[str] | None = None, *, memory: bool = False, **settings: object
    ) -> None:
        if memory and directory is not None:
            raise InvalidArgument("memory", "a broker in memory has no directory; pass either memory or directory")
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if directory is None and not memory:
            self._temporary = tempfile.TemporaryDirectory(prefix="llog-", ignore_cleanup_errors=True)
            directory = self._temporary.name
        self._memory_url = f"memory://embedded-{secrets.token_hex(8)}" if memory else ""
        self._started: Future[tuple[str, Broker]] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._warmed: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None
        self._closing = threading.Lock()
        try:
            self.settings = Settings.from_env({}, **{**_places(directory, self._memory_url), **settings})
            self._thread = threading.Thread(target=self._run, name="llog-embedded", daemon=True)
            self._thread.start()
            self.url, self._broker = self._started.result(EMBEDDED_START_MS_MAX / 1_000)
            self.bootstrap = "" if self._broker.kafka is None else format_host_port(*self._broker.kafka)
            atexit.register(self._end_with_program)
        except BaseException:
            self._signal_stop()
            self._remove_stores()
            raise

    # -- records ------------------------------------------------------------------------------------------------------
    def produce(
        self,
        topic: str,
        payloads: Sequence[bytes | str | None],
        *,
        partition: int = 0,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Sequence[Sequence[Header] | None] | None = None,
        timestamps_ms: Sequence[int] | None = None,
    ) -> AppendResult:
        """Append records to one log, batched with other requests. Returns their offsets once they are durable."""
        group = SharedAppendGroup(topic, partition, payloads, keys, headers, timestamps_ms)
        return self._call(self._produce(group))

    def consume(
        self,
        topic: str,
        offset: int | None = None,
        *,
        partition: int = 0,
        max_wait_ms: int = 0,
        max_bytes: int | None = None,
    ) -> list[LogRecord]:
        """Records from `offset` on (without one, from the log's first), as many as fit one response. At the end of the
        log the call waits up to `max_wait_ms` for a record."""
        log = Log(check_topic(topic), check_partition(partition))
        return self._call(self._consume(log, offset, max_wait_ms, max_bytes))

    async def _produce(self, group: SharedAppendGroup) -> AppendResult:
        await self._warm()
        context = self._broker.context
        now_ms = context.now_ms()
        measured = encode_group(group, encoding=context.options.encoding, now_ms=now_ms)
        [judged] = await judged_groups(self._broker.topics, [measured], now_ms)
        if isinstance(judged, LogError):
            raise judged
        return results_of((await self._broker.produce([judged])).outcomes)[0]

    async def _consume(self, log: Log, offset: int | None, max_wait_ms: int, max_bytes: int | None) -> list[LogRecord]:
        await self._warm()
        if offset is None:
            offset = await self._start_offset(log)
        fetch = PartitionFetch(log, offset, max_bytes)
        [fetched] = await self._broker.consume(ConsumeRequest([fetch], max_wait_ms=max_wait_ms))
        if fetched.error is not None:
            raise fetched.error
        return [record for run in fetched.runs for record in run.records()]

    async def _start_offset(self, log: Log) -> int:
        """Offset of the log's first record; consume reports a log that does not exist."""
        try:
            described = await describe_topic(self._broker.context, log.topic)
        except TopicNotFound:
            return FIRST_OFFSET_DEFAULT
        offsets = [one.log_start_offset for one in described.partitions if one.partition == log.partition]
        return offsets[0] if offsets else FIRST_OFFSET_DEFAULT

    async def _warm(self) -> None:
        assert self._warmed is not None
        await asyncio.shield(self._warmed)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None or not self._thread.is_alive():
            work.close()
            raise StoreClosed("use", "the embedded broker", "it is closed; start a new one") from self._failure
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # -- closing -------------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Answer open requests, flush, and close the stores; a temporary directory is deleted. Idempotent. Raises the
        error that ended the broker, if any."""
        atexit.unregister(self._end_with_program)
        with self._closing:
            self._signal_stop()
            self._thread.join(EMBEDDED_STOP_MS_MAX / 1_000)
            if self._thread.is_alive():
                raise StoreClosed(
                    "close", "the embedded broker", f"its thread still runs after {EMBEDDED_STOP_MS_MAX} ms"
                )
            self._remove_stores()
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end_with_program(self) -> None:
        """The program ends without `close`. A native thread that answers a request of the broker while the interpreter
        is finalized would crash the process, so the broker's thread ends first. Executors are shut down by now, so
        what is not committed fails; nothing acknowledged is lost."""
        self._signal_stop()
        self._thread.join(EMBEDDED_EXIT_MS_MAX / 1_000)

    def _signal_stop(self) -> None:
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(stop.set)
            except RuntimeError:  # the loop was closed just now
                return

    def _remove_stores(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()
        if self._memory_url:
            forget(self._memory_url)

    # -- the thread ---------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        import uvloop

        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._started.done():
                self._failure = error
            else:
                self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        listening = asyncio.Event()
        self._warmed = asyncio.ensure_future(_warm_after(listening))

        def started(url: str, broker: Broker) -> None:
            self._started.set_result((url, broker))
            listening.set()

        try:
            await serve(self.settings, self._stop, warmed=self._warmed, on_started=started)
        finally:
            self._warmed.cancel()


async def _warm_after(listening: asyncio.Event) -> None:
    """Load the kernels once the broker listens: loading during the start would slow both."""
    await listening.wait()
    await asyncio.to_thread(warm_up)


def _places(directory: str | os.PathLike[str] | None, memory_url: str) -> dict[str, object]:
    """Defaults of an embedded broker; the caller's settings override them."""
    places: dict[str, object] = {
        "client_identifier": f"embedded-{os.getpid()}-{secrets.token_hex(4)}",
        "http_port": 0,
        "kafka_port": 0,
        "http_stop_timeout_ms": EMBEDDED_HTTP_STOP_MS,
    }
    if memory_url:
        return places | {"metadata_url": memory_url, "objects_url": memory_url}
    assert directory is not None
    # Both store URLs default to this directory.
    return places | {"data_dir": str(Path(directory).resolve())}
