"""A load test as its YAML file describes it: frozen structs that validate themselves.

msgspec checks types, ranges and unknown fields and names the field; `__post_init__` checks several fields together.
Units are in the names. A megabyte (mb) is 10**6 bytes of record values, as in all figures of the load test.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from llog.limits import MIB

BROKERS_MAX: Final = 64
PARTITIONS_MAX: Final = 100_000
CLIENTS_MAX: Final = 10_000
PROCESSES_MAX: Final = 64
RECORD_BYTES_MIN: Final = 96
"""Room for the stamp that every record carries (`llog.loadtest.client.stamp`)."""
DURATION_S_MAX: Final = 24 * 3_600

Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
TopicText = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0, le=DURATION_S_MAX)]
Megabytes = Annotated[float, Meta(gt=0, le=100_000)]
Share = Annotated[float, Meta(ge=0, le=1)]
Milliseconds = Annotated[float, Meta(gt=0)]

Role = Literal["both", "write", "read"]
Metadata = Literal["lmdb", "postgresql", "oxia", "oxia-cluster"]
Objects = Literal["directory", "minio", "versitygw"]
_METADATA_URL: Final = re.compile(r"(oxia|oxia\+tls|postgresql|postgres)://.+")
_OBJECTS_URL: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]+(/.*)?")


def _choices(literal: object) -> tuple[str, ...]:
    return tuple(getattr(literal, "__args__", ()))


def _one_of(literal: object) -> str:
    return ", ".join(_choices(literal))


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Compactor(_Part, frozen=True):
    count: Annotated[int, Meta(ge=0, le=16)] = 1
    """Compactor processes."""
    spark: bool = False
    """Large rounds run on Spark, in a JVM of the compactor's own."""


class Stack(_Part, frozen=True):
    """What the load runs against. `llog loadtest up` starts it; stores given as URLs are used as they are."""

    metadata: str = "lmdb"
    """`lmdb`, `postgresql`, `oxia` (standalone), `oxia-cluster` (coordinator and data servers), or a store's URL."""
    metadata_nodes: Annotated[int, Meta(ge=1, le=9)] = 3
    """Data servers of `oxia-cluster`."""
    metadata_shards: Annotated[int, Meta(ge=1, le=64)] = 4
    """Of `oxia` and `oxia-cluster`."""
    objects: str = "directory"
    """`directory`, `minio`, `versitygw`, or `s3://bucket[/prefix]`, its address and keys taken from the environment."""
    brokers: Annotated[int, Meta(ge=1, le=BROKERS_MAX)] = 1
    """Broker processes."""
    roles: Annotated[tuple[Role, ...], Meta(min_length=1, max_length=BROKERS_MAX)] = ("both",)
    """Of the brokers in turn: `[write, read]` with four brokers makes two of each."""
    zones: Annotated[tuple[str, ...], Meta(max_length=16)] = ()
    """Of the brokers in turn; none without."""
    compactor: Compactor = Compactor()
    share_tail_cache: bool = False
    """Brokers share `tail-cache/` of the run directory (LLOG_TAIL_CACHE_DIR)."""
    settings: Mapping[str, str | int | float | bool] = {}
    """`LLOG_…` variables of every broker and compactor."""

    def __post_init__(self) -> None:
        if self.metadata not in _choices(Metadata) and not _METADATA_URL.fullmatch(self.metadata):
            raise ValueError(f"metadata must be {_one_of(Metadata)}, or a URL of oxia:// or postgresql://")
        if self.objects not in _choices(Objects) and not _OBJECTS_URL.fullmatch(self.objects):
            raise ValueError(f"objects must be {_one_of(Objects)}, or s3://bucket[/prefix]")
        for name in self.settings:
            if not re.fullmatch(r"LLOG_[A-Z0-9_]+", name):
                raise ValueError(f"settings must be LLOG_… variables, not {name!r}")
        if self.metadata == "lmdb" and self.zones:
            raise ValueError("zones need a metadata store that several machines reach, not lmdb")

    def role_of(self, broker: int) -> Role:
        return self.roles[broker % len(self.roles)]


class Topic(_Part, frozen=True):
    name: TopicText = "load"
    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)] = 1
    """All of them are created before the load begins."""
    configs: Mapping[str, str] = {}
    """Topic configs, as `llog topic create --config` accepts them."""


class Records(_Part, frozen=True):
    bytes: Annotated[int, Meta(ge=RECORD_BYTES_MIN, le=16 * MIB)] = 1_024
    """Of a value."""
    compressibility: Share = 0.0
    """The share of a value that repeats one byte; the rest does not compress."""
    keys: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    """Number of different keys; 0: records have none."""
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none"
    """What a Kafka producer applies; HTTP bodies are not compressed."""


class Search(_Part, frozen=True):
    """Find the highest rate that keeps the conditions: double from the start, then halve the interval."""

    start_mb_per_s: Megabytes = 1.0
    """The first rate."""
    highest_mb_per_s: Megabytes = 10_000.0
    """No higher rate is tried."""
    precision: Annotated[float, Meta(ge=0.01, le=0.5)] = 0.05
    """Ends when the interval is this share of the rate."""
    step_s: Annotated[float, Meta(ge=2, le=3_600)] = 15.0
    """How long each rate is tried."""
    produce_p99_ms_max: Milliseconds = 1_000.0
    """A rate is sustained only with this produce latency."""

    def __post_init__(self) -> None:
        if self.start_mb_per_s > self.highest_mb_per_s:
            raise ValueError("start_mb_per_s must be at most highest_mb_per_s")


class Load(_Part, frozen=True):
    protocol: Literal["http", "kafka"] = "http"
    """What producers and consumers speak."""
    engine: Literal["raw", "librdkafka"] = "raw"
    """`raw` sends prepared requests and reads answers only as far as it must; `librdkafka` is a real client."""
    target_mb_per_s: Megabytes | None = None
    """Of all producers together. Without it and without `search`, nothing is produced."""
    search: Search | None = None
    warm_up_s: Seconds = 5.0
    """The load runs, and its latencies count separately."""
    duration_s: Annotated[float, Meta(gt=0, le=DURATION_S_MAX)] = 30.0
    """Of the measured phase."""

    def __post_init__(self) -> None:
        if self.target_mb_per_s is not None and self.search is not None:
            raise ValueError("target_mb_per_s and search exclude each other")
        if self.engine == "librdkafka" and self.protocol == "http":
            raise ValueError("engine librdkafka speaks only Kafka: set protocol to kafka")


class Producers(_Part, frozen=True):
    clients: Annotated[int, Meta(ge=1, le=CLIENTS_MAX)] = 16
    """Each has a connection of its own to the broker it sends to."""
    processes: Annotated[int, Meta(ge=1, le=PROCESSES_MAX)] = 1
    """Among which the clients are divided; one process uses one core."""
    in_flight: Annotated[int, Meta(ge=1, le=64)] = 1
    """Most unanswered requests of a client; HTTP allows one."""
    records_per_request: Annotated[int, Meta(ge=1, le=100_000)] = 32
    """Records that a client sends at once."""
    partitions_per_request: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Among which the records of a request are divided."""
    timeout_s: Annotated[float, Meta(gt=0, le=600)] = 30.0
    """How long a request may be repeated, before its outcome counts as uncertain."""


class Consumers(_Part, frozen=True):
    clients: Annotated[int, Meta(ge=0, le=CLIENTS_MAX)] = 0
    """They divide the partitions among them, so each record is read once."""
    processes: Annotated[int, Meta(ge=1, le=PROCESSES_MAX)] = 1
    """Among which the clients are divided; one process uses one core."""
    begin: Literal["with_producers", "after_producers"] = "with_producers"
    """`after_producers`: they read what has been written, from the first record on."""
    restart_brokers: bool = False
    """Before consumers begin after producers: caches are empty then, and all reads are cold."""
    max_wait_ms: Annotated[int, Meta(ge=0, le=30_000)] = 500
    """How long a broker may wait for `min_bytes`."""
    min_bytes: Annotated[int, Meta(ge=0)] = 1
    """Below which a broker waits for more."""
    max_bytes: Annotated[int, Meta(ge=1_024)] = 8 * MIB
    """Most bytes of an answer."""
    partition_max_bytes: Annotated[int, Meta(ge=1_024)] = MIB
    """Most bytes of a partition in an answer."""
    drain_s: Annotated[float, Meta(ge=0, le=3_600)] = 30.0
    """How long consumers may take, after the producers, for what was acknowledged."""


class Routing(_Part, frozen=True):
    owners: Annotated[int, Meta(ge=1, le=BROKERS_MAX)] = 1
    """Brokers in the owner set of a partition, for writers and for readers each."""
    select: Literal["round_robin", "least_inflight"] = "round_robin"
    """How a client chooses among the brokers of an owner set."""
    seed: int = 1
    """Another seed gives partitions other owners."""


class Fault(_Part, frozen=True):
    at_s: Seconds
    """After the warm-up."""
    kind: Literal["kill_broker", "pause_broker", "stall_objects", "refuse_objects"]
    """`refuse_objects`: the object store answers 503."""
    broker: Annotated[int, Meta(ge=0, lt=BROKERS_MAX)] = 0
    """Its number, from 0 on."""
    duration_s: Annotated[float, Meta(gt=0, le=3_600)] = 5.0
    """Of a pause, stall or refusal; a killed broker starts again after it."""


class Targets(_Part, frozen=True):
    """The report has a verdict for each that is set."""

    produce_mb_per_s_min: Megabytes | None = None
    """Of acknowledged record values, in the measured phase."""
    consume_mb_per_s_min: Megabytes | None = None
    """Of received record values."""
    produce_p99_ms_max: Milliseconds | None = None
    """From the time when a request is due to its answer."""
    end_to_end_p99_ms_max: Milliseconds | None = None
    """From the time when a record is due to its arrival at a consumer."""
    dollars_per_hour_max: Annotated[float, Meta(gt=0)] | None = None
    """For requests, if the stores were S3."""
    failed_requests_max: Annotated[int, Meta(ge=0)] | None = None
    """Requests without success."""


class Collect(_Part, frozen=True):
    interval_s: Annotated[float, Meta(ge=0.5, le=3_600)] = 30.0
    """Between two samples of brokers, processes and host, and of the clients."""


class Scenario(_Part, frozen=True):
    name: Name
    description: str = ""
    """Shown in the summary and the report."""
    stack: Stack = Stack()
    topics: Annotated[tuple[Topic, ...], Meta(min_length=1, max_length=1_000)] = (Topic(),)
    records: Records = Records()
    load: Load = Load()
    producers: Producers = Producers()
    consumers: Consumers = Consumers()
    routing: Routing = Routing()
    faults: Annotated[tuple[Fault, ...], Meta(max_length=1_000)] = ()
    targets: Targets = Targets()
    collect: Collect = Collect()

    def __post_init__(self) -> None:
        names = [topic.name for topic in self.topics]
        if len(set(names)) < len(names):
            raise ValueError("topics must have different names")
        if self.partitions > PARTITIONS_MAX:
            raise ValueError(f"topics must have at most {PARTITIONS_MAX} partitions together, not {self.partitions}")
        self._check_roles()
        self._check_producers()
        for number, fault in enumerate(self.faults):
            if fault.kind.endswith("_broker") and fault.broker >= self.stack.brokers:
                raise ValueError(
                    f"faults[{number}].broker is {fault.broker}, of {self.stack.brokers} brokers from 0 on"
                )
            if fault.at_s >= self.load.duration_s and self.load.search is None:
                raise ValueError(f"faults[{number}].at_s must be less than load.duration_s")
            if fault.kind.endswith("_objects") and self.stack.objects not in ("minio", "versitygw"):
                raise ValueError(f"faults[{number}] needs an S3 server that the load test starts (minio, versitygw)")

    @property
    def partitions(self) -> int:
        return sum(topic.partitions for topic in self.topics)

    @property
    def produces(self) -> bool:
        return self.load.target_mb_per_s is not None or self.load.search is not None

    def brokers_for(self, writing: bool) -> list[int]:
        """The brokers that serve writes, or reads."""
        other = "read" if writing else "write"
        return [number for number in range(self.stack.brokers) if self.stack.role_of(number) != other]

    def _check_roles(self) -> None:
        if self.produces and not self.brokers_for(writing=True):
            raise ValueError("stack.roles: no broker serves writes")
        if self.consumers.clients and not self.brokers_for(writing=False):
            raise ValueError("stack.roles: no broker serves reads")

    def _check_producers(self) -> None:
        producers, protocol = self.producers, self.load.protocol
        if protocol == "http" and producers.in_flight > 1:
            raise ValueError("producers.in_flight must be 1 with protocol http")
        if protocol == "http" and self.records.compression != "none":
            raise ValueError("records.compression needs protocol kafka")
        if producers.partitions_per_request > self.partitions:
            raise ValueError("producers.partitions_per_request exceeds the number of partitions")
        if producers.records_per_request < producers.partitions_per_request:
            raise ValueError("producers.records_per_request must be at least partitions_per_request")
        if producers.processes > producers.clients:
            raise ValueError("producers.processes must be at most producers.clients")
