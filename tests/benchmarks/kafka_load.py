"""Load for a Kafka server that costs the machine little: `python -m tests.benchmarks.kafka_load`, a process of its own.

Each line on standard input is a command in JSON, each line on standard output its result. Why it exists: clients and
servers share the cores here, so a client that encodes or decodes records would measure itself. Frames are made
beforehand and sent unchanged; an answer is looked at only as far as its error codes. Threads spend their time in the
kernel, in `send` and `recv`.

    produce     full speed: every connection keeps `in_flight` requests under way, each with a batch for each partition
    trickle     records become due at a steady rate; what is due goes at once, in one request, unless `in_flight`
                requests are under way already: a producer without linger. Latency counts from when a record was due.
    fetch       every connection reads its share of the partitions from the first offset to the last, `passes` times
    pipeline    `in_flight` small requests at once, then all their answers; the latency of the whole
    librdkafka  one librdkafka producer with default settings: here the client costs most
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from tests.benchmarks.kafka_wire import (
    TIMEOUT_MS,
    KafkaSocket,
    check_produced,
    fetch_frame,
    fetched,
    produce_frame,
    record_batch,
)

RECORD_BYTES: Final = 1_024
NOISE_OFFSETS: Final = 1_000
"""Different values of a librdkafka producer."""
TRICKLE_BATCH_RECORDS_MAX: Final = 64
"""More due records of one partition wait for the next request."""


class Target(msgspec.Struct, frozen=True):
    port: int
    topic_id: bytes
    partitions: int


class Produce(msgspec.Struct, frozen=True, tag=True):
    target: Target
    requests: int
    batch_records: int = 64
    connections: int = 4
    in_flight: int = 5


class Trickle(msgspec.Struct, frozen=True, tag=True):
    target: Target
    seconds: float
    records_per_second: int
    connections: int = 1
    in_flight: int = 5


class Fetch(msgspec.Struct, frozen=True, tag=True):
    target: Target
    batches: int
    """Per partition; as `Produce` wrote them."""
    batch_records: int = 64
    connections: int = 4
    passes: int = 1


class Pipeline(msgspec.Struct, frozen=True, tag=True):
    target: Target
    rounds: int
    in_flight: int


class Librdkafka(msgspec.Struct, frozen=True, tag=True):
    port: int
    topic: str
    records: int


class Loaded(msgspec.Struct, frozen=True):
    megabytes: float
    """Of record values."""
    seconds: float
    requests: int
    p50_ms: float
    p99_ms: float

    @property
    def rate(self) -> float:
        return self.megabytes / self.seconds


def loaded(megabytes: float, seconds: float, requests: int, latencies: Sequence[float]) -> Loaded:
    ordered = sorted(latencies) or [0.0]
    p50, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1_000 for share in (0.5, 0.99))
    return Loaded(megabytes, seconds, requests, p50, p99)


def _in_threads(works: Sequence[Callable[[], None]]) -> float:
    """Run them side by side; the seconds that it took. Raises the first failure."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=[work], daemon=True) for work in works]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not failures:
            thread.join(0.5)
    if failures:
        raise failures[0]
    return time.perf_counter() - began


# -- producing -------------------------------------------------------------------------------------------------------


class _Pipe:
    """One connection with a bound on unanswered requests. One thread sends, another takes the answers."""

    def __init__(self, port: int, in_flight: int) -> None:
        self._socket, self._room = KafkaSocket(port), threading.Semaphore(in_flight)
        self._sent: deque[Callable[[float], None]] = deque()
        self._count = threading.Semaphore(0)
        self._ended = False

    def wait_room(self) -> None:
        self._room.acquire()

    def send(self, frame: bytes, on_answer: Callable[[float], None]) -> None:
        """After `wait_room`. `on_answer` is called with the time of the answer."""
        self._sent.append(on_answer)
        self._count.release()
        self._socket.send(frame)

    def end(self) -> None:
        self._ended = True
        self._count.release()

    def take_answers(self) -> None:
        while True:
            self._count.acquire()
            if not self._sent:
                assert self._ended
                return self._socket.close()
            answer, now = self._socket.receive(), time.perf_counter()
            check_produced(answer)
            self._sent.popleft()(now)
            self._room.release()


def produce(command: Produce) -> Loaded:
    target, latencies = command.target, list[float]()
    batches = [record_batch(command.batch_records, RECORD_BYTES, seed=number) for number in range(target.partitions)]
    frame = produce_frame(target.topic_id, dict(enumerate(batches)))
    pipes = [_Pipe(target.port, command.in_flight) for _ in range(command.connections)]

    def sender(pipe: _Pipe, count: int) -> Callable[[], None]:
        def work() -> None:
            for _ in range(count):
                pipe.wait_room()
                began = time.perf_counter()
                pipe.send(frame, lambda now, began=began: latencies.append(now - began))  # type: ignore[misc]
            pipe.end()

        return work

    each = command.requests // command.connections
    seconds = _in_threads([*(sender(pipe, each) for pipe in pipes), *(pipe.take_answers for pipe in pipes)])
    sent = each * command.connections
    records = sent * target.partitions * command.batch_records
    return loaded(records * RECORD_BYTES / 1e6, seconds, sent, latencies)


def trickle(command: Trickle) -> Loaded:
    target = command.target
    batches = [record_batch(n, RECORD_BYTES, seed=n) if n else b"" for n in range(TRICKLE_BATCH_RECORDS_MAX + 1)]
    rate = command.records_per_second / command.connections
    total = int(rate * command.seconds)
    at_once_max = TRICKLE_BATCH_RECORDS_MAX * target.partitions
    latencies, requests = list[float](), [0]

    def sender(pipe: _Pipe) -> Callable[[], None]:
        def work() -> None:
            began, given = time.perf_counter(), 0
            while given < total:
                pipe.wait_room()
                due = int((time.perf_counter() - began) * rate) + 1
                if due <= given:
                    time.sleep(max(0.0, began + given / rate - time.perf_counter()))
                    due = int((time.perf_counter() - began) * rate) + 1
                count = min(due - given, at_once_max, total - given)
                pipe.send(_spread(target, batches, given, count), _noting(began, given, count))
                given += count
                requests[0] += 1
            pipe.end()

        return work

    def _noting(began: float, first: int, count: int) -> Callable[[float], None]:
        return lambda now: latencies.extend(now - (began + (first + n) / rate) for n in range(count))

    pipes = [_Pipe(target.port, command.in_flight) for _ in range(command.connections)]
    seconds = _in_threads([*(sender(pipe) for pipe in pipes), *(pipe.take_answers for pipe in pipes)])
    return loaded(command.connections * total * RECORD_BYTES / 1e6, seconds, requests[0], latencies)


def _spread(target: Target, batches: Sequence[bytes], first: int, count: int) -> bytes:
    """A frame with `count` records, dealt out over the partitions from where the last one ended."""
    whole, rest = divmod(count, target.partitions)
    counts = {(first + n) % target.partitions: whole + (n < rest) for n in range(target.partitions)}
    return produce_frame(target.topic_id, {partition: batches[n] for partition, n in counts.items() if n})


def pipeline(command: Pipeline) -> Loaded:
    """All requests are for the same partition."""
    frame = produce_frame(command.target.topic_id, {0: record_batch(1, RECORD_BYTES, seed=0)})
    latencies = list[float]()
    with KafkaSocket(command.target.port) as connection:
        for _ in range(command.rounds):
            began = time.perf_counter()
            connection.send(frame * command.in_flight)
            for _ in range(command.in_flight):
                check_produced(connection.receive())
            latencies.append(time.perf_counter() - began)
    count = command.rounds * command.in_flight
    return loaded(count * RECORD_BYTES / 1e6, sum(latencies), count, latencies)


def librdkafka(command: Librdkafka) -> Loaded:
    from confluent_kafka import KafkaError, Message, Producer

    failures: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error)

    noise = random.Random(1).randbytes(RECORD_BYTES + NOISE_OFFSETS)
    values = [noise[start : start + RECORD_BYTES] for start in range(NOISE_OFFSETS)]
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{command.port}"})
    began = time.perf_counter()
    for number in range(command.records):
        while True:
            try:
                producer.produce(command.topic, values[number % NOISE_OFFSETS], on_delivery=on_delivery)
                break
            except BufferError:  # its queue is full
                producer.poll(0.01)
        if number % NOISE_OFFSETS == 0:
            producer.poll(0)
    left = producer.flush(TIMEOUT_MS / 1_000)
    seconds = time.perf_counter() - began
    assert not left + len(failures), f"{left} records were not delivered: {failures[:3]}"
    return loaded(command.records * RECORD_BYTES / 1e6, seconds, 0, [])


# -- fetching --------------------------------------------------------------------------------------------------------


def fetch(command: Fetch) -> Loaded:
    target, latencies, counts = command.target, list[float](), list[int]()
    batch_bytes = len(record_batch(command.batch_records, RECORD_BYTES, seed=0))
    end = command.batches * command.batch_records

    def reader(partitions: Sequence[int]) -> Callable[[], None]:
        def work() -> None:
            with KafkaSocket(target.port) as connection:
                for _ in range(command.passes):
                    _read_all(connection, partitions)

        return work

    def _read_all(connection: KafkaSocket, partitions: Sequence[int]) -> None:
        offsets = dict.fromkeys(partitions, 0)
        while offsets:
            began = time.perf_counter()
            connection.send(fetch_frame(target.topic_id, offsets))
            found = fetched(connection.receive())
            latencies.append(time.perf_counter() - began)
            # The last batch may be cut off.
            batches = {partition: byte_length // batch_bytes for partition, byte_length in found.items()}
            assert any(batches.values()), f"nothing from {offsets}"
            counts.append(sum(batches.values()))
            moved = {p: offset + batches.get(p, 0) * command.batch_records for p, offset in offsets.items()}
            offsets = {partition: offset for partition, offset in moved.items() if offset < end}

    shares = [range(first, target.partitions, command.connections) for first in range(command.connections)]
    seconds = _in_threads([reader(share) for share in shares])
    return loaded(sum(counts) * command.batch_records * RECORD_BYTES / 1e6, seconds, len(latencies), latencies)


# -- the process -----------------------------------------------------------------------------------------------------

Command = Produce | Trickle | Fetch | Pipeline | Librdkafka


class LoadProcess:
    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child

    def run(self, command: Command) -> Loaded:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(msgspec.json.encode(command) + b"\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        assert line, "the load process failed; its reason is on standard error"
        return msgspec.json.decode(line, type=Loaded)


@contextmanager
def load_process() -> Iterator[LoadProcess]:
    arguments = [sys.executable, "-m", "tests.benchmarks.kafka_load"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            yield LoadProcess(child)
        finally:
            child.kill()


def run_command(command: Command) -> Loaded:
    match command:
        case Produce():
            return produce(command)
        case Trickle():
            return trickle(command)
        case Fetch():
            return fetch(command)
        case Pipeline():
            return pipeline(command)
        case Librdkafka():
            return librdkafka(command)


def main() -> None:
    # A thread that sends would wait for one that computes; there is little to compute.
    sys.setswitchinterval(0.0005)
    decoder = msgspec.json.Decoder(Command)
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(run_command(decoder.decode(line))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
