"""`python -m llog.kafka.page`: prints docs/reference/kafka.md from the handlers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from llog.kafka.apis.handler import Handler
from llog.kafka.apis.handlers import handlers
from llog.kafka.codec import Versions, apis
from llog.kafka.conformance import read_results, table
from llog.kafka.leaders import LEADER_EPOCH
from llog.kafka.net.connection import IDLE_MS_MAX, IN_FLIGHT_MAX
from llog.kafka.net.memory import FRAME_BYTES_MAX, SMALL_FRAME_BYTES_MAX, UNAUTHENTICATED_FRAME_BYTES_MAX
from llog.kafka.sasl import AUTHENTICATION_MS_MAX, FAILURE_MS
from llog.limits import KIB, MIB
from llog.listener.server import CONNECTIONS_MAX
from llog.security.requirements import KAFKA
from llog.security.throttle import FAILURE_REFILL_MS, FAILURES_BURST

_HEAD: Final = """\
# Kafka

Written by `make docs` from the handlers in `llog/kafka/apis`.

Unmodified Kafka clients connect to every broker. Facts about Kafka are those of version 4.3.

## Connecting

`llog up` and `llog broker` listen on `LLOG_KAFKA_HOST` and `LLOG_KAFKA_PORT` (127.0.0.1:9092 by default; an empty port
turns Kafka off). Give clients any broker as bootstrap server:

```
kafka-console-producer.sh --bootstrap-server 127.0.0.1:9092 --topic orders
kafka-console-consumer.sh --bootstrap-server 127.0.0.1:9092 --topic orders --partition 0 --offset earliest
```

| `security.protocol` | when |
|---|---|
| `PLAINTEXT` | by default, on a loopback address |
| `SSL` | with `LLOG_TLS_CERT_FILE` and `LLOG_TLS_KEY_FILE`; with `LLOG_TLS_CLIENT_AUTH` clients show certificates |
| `SASL_SSL`, `SASL_PLAINTEXT` | with `LLOG_KAFKA_SASL_MECHANISMS`, with or without a certificate |

An address that other machines reach is refused unless clients authenticate and a certificate encrypts, or
`LLOG_INSECURE=1` is set. `LLOG_KAFKA_ADVERTISED` names the address that clients are given where it differs from the one
that the broker listens on.

Any broker serves any partition. The leader that Metadata names is advice: it keeps the newest records of a partition in
one cache and its commits without rivals. A client that names its zone (`zone=…` in `client.id`) gets leaders of that
zone (`LLOG_ZONE`), and consumers with `client.rack` read from brokers of their zone.

## What differs from Kafka

- **Acknowledged** means that the records are durable in the object store (`LLOG_WAL_URL`) and ordered in the metadata
  store, for `acks=1` as for `acks=all`. With `acks=0` no answer is sent, and a refused batch is lost silently.
  REQUEST_TIMED_OUT means that the outcome is not known; an idempotent producer repeats the batch safely.
- **Latency**: a broker gathers records for `LLOG_BATCH_MAX_DELAY_MS` before it writes them, so producers should have
  several requests in flight.
- **First offset**: topics that Kafka clients create begin at 0. Topics made by HTTP or `llog topic create` begin at 1,
  which is a legal earliest offset; `seek(0)` there is out of range. Offsets have no gaps but those of key compaction.
- **Leader epochs** are {leader_epoch} everywhere, also in stored batches: logs are never truncated, so no client needs
  another.
- **Replicas**: any replication factor is accepted and 1 is answered, because the object store keeps the copies. Every
  partition has one replica, its leader.
- **Creating topics**: by CreateTopics, or with the first Metadata request for an unknown topic if the client and
  `LLOG_AUTO_CREATE_TOPICS` allow it. `LLOG_DEFAULT_PARTITIONS` is Kafka's `num.partitions`. Produce and Fetch never
  create a topic or a partition.
- **Deleting topics** is answered when the records are deleted, so that the name is free at once.
- **Topic configs** are Kafka's; [topic-configs.md](topic-configs.md) says which have an effect. A broker's configs can
  be described but not altered: they follow from its [settings](settings.md).
- **Changes** of topics through one broker may take other brokers up to 5 seconds to notice. Administration always reads
  the present state.
- **Consumer groups**: both protocols, with any assignor and protocol type of the classic one. A group is coordinated
  by one node at a time. When that node dies, another one continues the same generation within ten seconds, without a
  rebalance. A group with members does not change its protocol; stop its consumers first.
- **Positions** are those of HTTP, the command line and Spark. A group with members refuses commits from outside. A
  position expires 7 days after its group emptied, or after the commit if it never had members.
- Every change writes the [audit line](../operate.md) that the same change over HTTP writes.

## Limits

| what | limit |
|---|---|
| a Produce request | {frame_mib} MiB, and a quarter of `LLOG_BATCH_MAX_BUFFER_BYTES` |
| any other request | {small_frame_mib} MiB |
| requests of one connection that are not answered | {in_flight}; then its socket is not read |
| connections of a broker | {connections} |
| a connection without requests | closed after {idle_minutes} minutes |
| partitions of a topic | `LLOG_TOPIC_PARTITIONS_MAX` |
| a record batch | `max.message.bytes` of its topic |

A request in a version that is not served is answered with UNSUPPORTED_VERSION where the answer has a place for it.
Otherwise, and after a request that cannot be decoded or is of an API that is not served, the connection closes.

## Authentication

PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER (RS256, ES256). Users are in the metadata store: `llog user`, or
`kafka-configs.sh --entity-type users`. Before it has authenticated, a client may send frames of
{unauthenticated_kib} KiB and has {authentication_seconds} s. A failure is answered after {failure_ms} ms with
SASL_AUTHENTICATION_FAILED, alike for an unknown user and a wrong password, and ends the connection. After
{failures_burst} failures an address gets one attempt every {failure_refill_seconds} s. `LLOG_KAFKA_REAUTH_MS` and the
end of a token limit sessions (KIP-368). Not offered: GSSAPI, delegation tokens, channel binding, SaslHandshake
version 0.

With `LLOG_TLS_CLIENT_AUTH` and no SASL the principal is the subject of the client's certificate, as in Kafka
(`User:CN=ada,O=example`); `LLOG_TLS_PRINCIPAL_RULES` is `ssl.principal.mapping.rules`.

## Authorization

With `LLOG_AUTHORIZATION=1` nothing is allowed that no ACL allows, except to `LLOG_SUPER_USERS`. ACLs are Kafka's
(`llog acl`, `kafka-acls.sh`): LITERAL and PREFIXED patterns, hosts, denials that outweigh permissions, operations that
READ, WRITE, DELETE, ALTER and ALTER_CONFIGS include. A change reaches every broker within 5 seconds. Differences:
a topic id that a client may not describe is UNKNOWN_TOPIC_ID; without authorization the ACL APIs answer
SECURITY_DISABLED.

{requirements}

## APIs

A range in parentheses is what ApiVersions announces where it differs from what is served.

"""
_NOT_SERVED: Final = """
## APIs that are not served

ApiVersions does not announce them, so clients do without.

"""
_CONFORMANCE: Final = """
## Conformance

What other people's tests and programs find, run by `make conformance` (see [contributing](../contributing.md)) against
one `llog up` on the embedded stores and against Apache Kafka. A test that its suite skips is not counted.

"""


class Absent(NamedTuple):
    keys: str
    names: str
    why: str


REASONS: Final[Mapping[tuple[int, ...], str]] = {
    (24, 25, 26, 27, 28, 65, 66): "Transactions do not exist yet.",
}
"""Why an API whose messages are known is not served."""

OTHERS: Final = (
    Absent("34, 45", "AlterReplicaLogDirs, AlterPartitionReassignments", "Partitions have no replicas to move."),
    Absent("38–41", "delegation tokens", "Users have passwords, certificates or tokens of an identity provider."),
    Absent("49", "AlterClientQuotas", "There are no quotas."),
    Absent(
        "55, 57, 64, 80, 81",
        "DescribeQuorum, UpdateFeatures, UnregisterBroker, AddRaftVoter, RemoveRaftVoter",
        "There is no quorum: the metadata store is one, and brokers that stop are forgotten.",
    ),
    Absent("71, 72", "client telemetry", "Clients have metrics of their own; the broker's are on `/metrics`."),
    Absent("76–79, 83–87, 90–92", "share groups", "They do not exist here."),
    Absent("88, 89", "streams groups", "They do not exist here; Kafka Streams uses classic groups."),
    Absent("4–7, 52–54, 56, 58, 59, 62, 63, 67, 70, 73, 82", "requests between brokers", "Only brokers send them."),
)
"""APIs whose messages the codec does not know."""


def _requirements() -> str:
    """What each served API requires; those that require nothing are left out."""
    rows = ["| key | API | requires |", "|---|---|---|"]
    for key in handlers():
        needs = [
            f"{need.operation.name} {need.kind.name}" + (f" ({need.when})" if need.when else "") for need in KAFKA[key]
        ]
        if needs:
            rows.append(f"| {key} | {apis()[key].name} | {'; '.join(needs)} |")
    return "\n".join(rows)


def markdown() -> str:
    head = _HEAD.format(
        leader_epoch=LEADER_EPOCH,
        frame_mib=FRAME_BYTES_MAX // MIB,
        small_frame_mib=SMALL_FRAME_BYTES_MAX // MIB,
        in_flight=IN_FLIGHT_MAX,
        connections=f"{CONNECTIONS_MAX:,}",
        idle_minutes=IDLE_MS_MAX // 60_000,
        unauthenticated_kib=UNAUTHENTICATED_FRAME_BYTES_MAX // KIB,
        authentication_seconds=AUTHENTICATION_MS_MAX // 1_000,
        failure_ms=FAILURE_MS,
        failures_burst=FAILURES_BURST,
        failure_refill_seconds=FAILURE_REFILL_MS // 1_000,
        requirements=_requirements(),
    )
    served = "| key | API | versions | what versions added | left out |\n|---|---|---|---|---|\n"
    absent = "| keys | APIs | why |\n|---|---|---|\n"
    conformance = [_CONFORMANCE, *table(read_results())]
    return "".join([head, served, *map(_row, handlers().values()), _NOT_SERVED, absent, *_absent(), *conformance])


def _row(handler: Handler) -> str:
    served, advertised = handler.served, handler.advertised
    versions = _range(served)
    if advertised is not None and advertised != served:
        versions += f" ({_range(advertised)})"
    added = "; ".join(f"**{version}** {text.rstrip('.')}" for version, text in sorted(handler.added.items()))
    left_out = handler.left_out[:1].upper() + handler.left_out[1:]
    return f"| {handler.key} | {apis()[handler.key].name} | {versions} | {added} | {left_out} |\n"


def _range(versions: Versions) -> str:
    return str(versions.first) if versions.first == versions.last else f"{versions.first}–{versions.last}"


def _absent() -> Iterator[str]:
    for keys, why in REASONS.items():
        names = ", ".join(apis()[key].name for key in keys)
        yield f"| {', '.join(map(str, keys))} | {names} | {why} |\n"
    for one in OTHERS:
        yield f"| {one.keys} | {one.names} | {one.why} |\n"


if __name__ == "__main__":
    print(markdown(), end="")
