"""Every setting of llog in one typed table.

`LLOG_…` variables configure a process; arguments take precedence over them. `.env.example`,
docs/reference/settings.md and `llog settings` are derived from the table, and tests compare them with it.

An attribute is its variable's name without `LLOG_`, in lower case. Every number has bounds. Secrets and passwords
never appear in `repr`, in messages or in output. llog does not load `.env` files itself; load one in the shell with
`set -a; source .env; set +a`.

    settings = Settings.from_env()
    settings.batch_max_bytes, settings.source_of("batch_max_bytes")
"""

# The calls in the class body are the rows of the table, one dataclass field each.
# ruff: noqa: RUF009
from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from llog.limits import (
    GIB,
    KEY_COMPACT_READ_BYTES_PER_SECOND,
    KIB,
    METADATA_SESSION_TIMEOUT_MS_MAX,
    METADATA_SESSION_TIMEOUT_MS_MIN,
    MIB,
    NODE_ID_MAX,
    OBJECT_BYTES_MAX,
)
from llog.settings import derive as derive
from llog.settings import kinds as kinds
from llog.settings.kinds import CompactorTarget, ValueKind
from llog.settings.resolve import Derive, Origin, Setting, Source, resolve, unknown_variables
from llog.settings.urls import mask_url

__all__ = ["CompactorTarget", "Origin", "Setting", "Settings", "Source", "settings_table"]

_log = logging.getLogger("llog.settings")

_SECOND_MS: Final = 1_000
_HOUR_MS: Final = 3_600 * _SECOND_MS
_DAY_MS: Final = 24 * _HOUR_MS
# `LLOG_WORKERS` and `llog up --brokers`: more processes than any machine has use for.
WORKERS_MAX: Final = 64

STORES: Final = "Stores"
OXIA: Final = "Oxia"
S3: Final = "S3"
LOG: Final = "Log and batching"
TAIL: Final = "Tail cache"
TIERS: Final = "WAL store and vacuum"
COMPACTOR: Final = "Compaction service"
HTTP: Final = "HTTP"
KAFKA: Final = "Kafka"
SECURITY: Final = "Security"
NODES: Final = "Nodes"
EXPORT: Final = "Export"
LOGS: Final = "Logs"


def setting(
    section: str,
    kind: ValueKind,
    doc: str,
    default: Any = None,
    *,
    derive: Derive | None = None,
    default_doc: str = "",
    secret: bool = False,
    fallbacks: tuple[str, ...] = (),
    fallback_beside: str = "",
    other_name: str = "",
    alias: str = "",
    empty_turns_off: bool = False,
) -> Any:
    """One row of the table. A row without a default is optional: its attribute may be None."""
    row = Setting(
        "",
        section,
        kind,
        doc,
        default,
        derive,
        default_doc,
        secret,
        fallbacks,
        fallback_beside,
        other_name,
        alias,
        empty_turns_off,
    )
    return dataclasses.field(metadata={"row": row})


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Settings:
    """All resolved settings of one process. `from_env` makes it; it is immutable."""

    # fmt: off
    # -- stores ---------------------------------------------------------------------------------------------------
    data_dir: Path = setting(
        STORES, kinds.DATA_DIR, "Directory of the embedded stores, used when no URL names another store.",
        derive=derive.data_dir, default_doc="`$XDG_DATA_HOME/leaderless-log`, else `~/.local/share/leaderless-log`",
    )
    metadata_url: str = setting(
        STORES, kinds.STORE_URL,
        "The metadata store: `lmdb:///dir`, `postgresql://user@host/db`, `oxia://host:6648/namespace` (`oxia+tls://…`)"
        " or `memory://`.",
        derive=derive.metadata_url,
        default_doc="from `LLOG_OXIA_SERVICE_ADDRESS` where set, else `lmdb://` + `LLOG_DATA_DIR` + `/metadata`",
        other_name="oxia_service_address",
    )
    objects_url: str = setting(
        STORES, kinds.STORE_URL, "The object store: `file:///dir`, `s3://bucket[/prefix]` or `memory://`.",
        derive=derive.objects_url,
        default_doc="from `LLOG_S3_BUCKET` where set, else `file://` + `LLOG_DATA_DIR` + `/objects`",
        other_name="s3_bucket",
    )
    wal_url: str = setting(
        STORES, kinds.STORE_URL,
        "The object store for new records, if it is another (faster) one than `LLOG_OBJECTS_URL`.",
        derive=derive.wal_url, default_doc="`LLOG_OBJECTS_URL`",
    )
    root_prefix: str = setting(
        STORES, kinds.ROOT_PREFIX, "Prefix of every metadata key and object name; each cluster has its own.", "llog"
    )
    client_identifier: str = setting(
        STORES, kinds.IDENTIFIER, "Name of this process in the stores, in logs and in metrics.",
        derive=derive.client_identifier, default_doc="host name and process id",
    )
    request_timeout_ms: int = setting(
        STORES, kinds.duration(100, 600 * _SECOND_MS),
        "Timeout of a request to a store; the outcome of a write that times out is unknown.", 10 * _SECOND_MS,
    )
    session_timeout_ms: int = setting(
        STORES, kinds.duration(METADATA_SESSION_TIMEOUT_MS_MIN, METADATA_SESSION_TIMEOUT_MS_MAX),
        "How long the metadata store keeps the claims and registrations of a process that stopped responding. Longer"
        " than any pause of a healthy process; other processes take over its work only after this time.",
        15 * _SECOND_MS, alias="LLOG_OXIA_SESSION_TIMEOUT_MS",
    )

    # -- oxia -----------------------------------------------------------------------------------------------------
    oxia_service_address: str | None = setting(
        OXIA, kinds.HOST_PORT, "Shorthand for `LLOG_METADATA_URL=oxia://…`."
    )
    oxia_namespace: str = setting(
        OXIA, kinds.NAMESPACE, "The namespace in Oxia; `LLOG_METADATA_URL` may name it instead.", "default",
        derive=derive.oxia_namespace, default_doc="the one in `LLOG_METADATA_URL`, else `default`",
    )
    oxia_tls_ca_file: Path | None = setting(
        OXIA, kinds.PATH, "Certificate authorities (PEM) for `oxia+tls://`; those of the system if not set."
    )
    oxia_token: str | None = setting(OXIA, kinds.SECRET, "Bearer token sent to Oxia.", secret=True)

    # -- s3 -------------------------------------------------------------------------------------------------------
    s3_bucket: str | None = setting(
        S3, kinds.BUCKET, "Shorthand for `LLOG_OBJECTS_URL=s3://bucket`. The bucket must exist."
    )
    s3_endpoint_url: str | None = setting(
        S3, kinds.HTTP_URL, "The S3 server, if it is not AWS; `http://` is allowed.",
        fallbacks=("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    )
    s3_region_name: str = setting(
        S3, kinds.REGION,
        "The region that requests are signed for; most servers other than AWS ignore it.", "us-east-1",
        fallbacks=("AWS_REGION", "AWS_DEFAULT_REGION"),
    )
    s3_access_key_id: str | None = setting(
        S3, kinds.SECRET, "Access key id; without one, the role of the machine or container is used.",
        secret=True, fallbacks=("AWS_ACCESS_KEY_ID",),
    )
    s3_secret_access_key: str | None = setting(
        S3, kinds.SECRET, "The secret of the access key.", secret=True, fallbacks=("AWS_SECRET_ACCESS_KEY",)
    )
    s3_session_token: str | None = setting(
        S3, kinds.SECRET, "Session token of temporary credentials; the fallback counts only if the key id came from"
        " `AWS_ACCESS_KEY_ID`.",
        secret=True, fallbacks=("AWS_SESSION_TOKEN",), fallback_beside="s3_access_key_id",
    )

    # -- log and batching -----------------------------------------------------------------------------------------
    batch_max_bytes: int = setting(
        LOG, kinds.size(KIB, 512 * MIB), "A broker flushes when it has buffered this many bytes.", 8 * MIB
    )
    batch_max_delay_ms: int = setting(
        LOG, kinds.duration(0, 60 * _SECOND_MS),
        "A broker flushes when the oldest buffered record has waited this long.",
        derive=derive.by_place("wal_url", local=13, remote=500),
        default_doc="`500ms`, or `13ms` if `LLOG_WAL_URL` is local (a put costs no money there)",
    )
    batch_max_buffer_bytes: int = setting(
        LOG, kinds.size(MIB, 1024 * GIB),
        "Most bytes a broker holds between socket and commit. At three quarters it flushes at once; at the limit it"
        " delays producers, then refuses them.",
        512 * MIB,
    )
    encoding: str = setting(
        LOG, kinds.choice("kafka-v2", "bytes-batch-v1"),
        "Format of new records: `kafka-v2` keeps keys, headers and timestamps, `bytes-batch-v1` only values.",
        "kafka-v2",
    )
    auto_create_topics: bool = setting(
        LOG, kinds.BOOLEAN, "Whether the first produce to an unknown or deleted topic creates it.", True
    )
    topic_partitions_max: int = setting(
        LOG, kinds.integer(1, 100_000), "Most partitions of a topic.", 1_024
    )
    auto_partitions_max: int = setting(
        LOG, kinds.integer(1, 100_000),
        "Most partitions of a topic that a first write creates. HTTP produce adds partitions to such a topic up to this"
        " number; a topic that was created explicitly gets partitions by administration only.", 128,
    )

    default_partitions: int = setting(
        LOG, kinds.integer(1, 100_000),
        "Partitions of a topic that a Kafka client creates without naming a number (Kafka's `num.partitions`).", 1,
    )

    # -- tail cache -----------------------------------------------------------------------------------------------
    tail_cache_dir: Path | None = setting(
        TAIL, kinds.PATH, "Directory in which the brokers of one machine share the tail cache; in memory if not set."
    )
    tail_cache_max_bytes: int = setting(
        TAIL, kinds.size(0, 1024 * GIB), "Size of the tail cache; 0 turns it off.", 512 * MIB
    )
    tail_refresh_ms: int = setting(
        TAIL, kinds.duration(10, 60 * _SECOND_MS),
        "How often a broker checks a log that readers wait on for records that other brokers appended.",
        derive=derive.by_place("metadata_url", local=100, remote=500),
        default_doc="`500ms`, or `100ms` if `LLOG_METADATA_URL` is local",
    )

    # -- WAL store, vacuum ------------------------------------------------------------------------------------------
    wal_max_bytes: int = setting(
        TIERS, kinds.size(MIB, 1024 * 1024 * GIB),
        "Most bytes in a separate WAL store. At three quarters compaction and vacuum run at once; at the limit"
        " produce is refused with status 503. The default fits a small disk.", 10 * GIB,
    )
    wal_grace_ms: int = setting(
        TIERS, kinds.duration(10 * _SECOND_MS, 30 * _DAY_MS),
        "How old an unreferenced object must be before vacuum removes it from a separate WAL store.",
        300 * _SECOND_MS,
    )
    vacuum_grace_ms: int = setting(
        TIERS, kinds.duration(10 * _SECOND_MS, 30 * _DAY_MS),
        "The same for the object store. Must be longer than any pause of a writer or compactor.", _HOUR_MS,
    )

    # -- compaction service -----------------------------------------------------------------------------------------
    compactor_bind_host: str = setting(
        COMPACTOR, kinds.HOST, "Address on which the health and metrics pages of the compactor listen.", "127.0.0.1"
    )
    compactor_port: int = setting(COMPACTOR, kinds.PORT, "Port of these pages; 0 picks a free one.", 8090)
    compactor_id: str = setting(
        COMPACTOR, kinds.IDENTIFIER, "Name of the compactor in its claims.",
        derive=derive.compactor_id, default_doc="`LLOG_CLIENT_IDENTIFIER`",
    )
    compactor_targets: tuple[CompactorTarget, ...] = setting(
        COMPACTOR, kinds.TARGETS, "Partitions to compact in addition to the discovered ones.", ()
    )
    compactor_workers: int = setting(
        COMPACTOR, kinds.integer(1, 256),
        "Number of workers. Each handles up to 64 logs at a time; one job compacts all logs that are due together and"
        " reads each blob once.", 4,
    )
    compactor_discovery_interval_ms: int = setting(
        COMPACTOR, kinds.duration(100, _DAY_MS),
        "How often the compactor looks for new topics and partitions if the metadata store does not report them, and"
        " for topics whose deletion was left unfinished.", 30 * _SECOND_MS
    )
    compactor_idle_sleep_ms: int = setting(
        COMPACTOR, kinds.duration(0, _HOUR_MS), "Pause before logs that changed are inspected again.", _SECOND_MS
    )
    compactor_idle_jitter_ms: int = setting(
        COMPACTOR, kinds.duration(0, _HOUR_MS),
        "Longest random addition to that pause, so that services do not work in lockstep.", 250
    )
    compactor_error_sleep_ms: int = setting(
        COMPACTOR, kinds.duration(0, _HOUR_MS), "Pause before a log is compacted again after a failure.", 5 * _SECOND_MS
    )
    compactor_error_jitter_ms: int = setting(
        COMPACTOR, kinds.duration(0, _HOUR_MS), "Longest random addition to that pause.", _SECOND_MS
    )
    compactor_max_offsets_per_run: int = setting(
        COMPACTOR, kinds.integer(1, 1_000_000_000),
        "Most offsets that one run rewrites. Only logs of tiny records reach it before"
        " `LLOG_COMPACTOR_TRIGGER_BYTES`.",
        1_000_000,
    )
    compactor_trigger_bytes: int = setting(
        COMPACTOR, kinds.size(64 * KIB, OBJECT_BYTES_MAX),
        "The compactor rewrites a log's new records into a segment when there are this many bytes of them.", 64 * MIB,
        alias="LLOG_FLUSH_MAX_BYTES",
    )
    compactor_trigger_age_ms: int = setting(
        COMPACTOR, kinds.duration(0, 7 * _DAY_MS), "The same when the oldest of these records is this old.",
        60 * _SECOND_MS, alias="LLOG_FLUSH_MAX_AGE_MS",
    )
    compactor_min_age_ms: int = setting(
        COMPACTOR, kinds.duration(0, _DAY_MS),
        "The compactor leaves younger entries alone, so that a writer that got no answer can still find its append.",
        derive=derive.compactor_min_age_ms, default_doc="twice `LLOG_REQUEST_TIMEOUT_MS`",
    )
    retention_interval_ms: int = setting(
        COMPACTOR, kinds.duration(_SECOND_MS, _DAY_MS),
        "How often the compactor applies `retention.ms` and `retention.bytes` to a log.", 300 * _SECOND_MS,
    )
    compactor_backup_interval_ms: int = setting(
        COMPACTOR, kinds.duration(0, 30 * _DAY_MS),
        "How often the compactor backs up the metadata to the object store. It keeps the last 8 of these backups. 0 for"
        " never, where the metadata store has backups of its own.",
        derive=derive.compactor_backup_interval_ms,
        default_doc="a quarter of `LLOG_VACUUM_GRACE_MS`, from `1m` to `15m`",
    )
    key_compact_bytes_per_second: int = setting(
        COMPACTOR, kinds.size(0, 1024 * GIB),
        "Read rate limit of key compaction (`cleanup.policy=compact`), so that it does not slow consumers; 0 for no"
        " limit.", KEY_COMPACT_READ_BYTES_PER_SECOND,
    )
    spark_master: str = setting(
        COMPACTOR, kinds.text("a Spark master's URL", r"\S+"),
        "Spark master that runs the jobs; the default uses all cores of this machine, with 4 attempts per task.",
        "local[*,4]",
    )
    compactor_spark: bool = setting(
        COMPACTOR, kinds.BOOLEAN,
        "Whether the compactor uses Spark, if installed, for large rounds. Small rounds run in its own process.",
        True,
    )

    # -- export -----------------------------------------------------------------------------------------------------
    schema_registry_url: str | None = setting(
        EXPORT, kinds.REGISTRY_URL,
        "The schema registry (with Confluent's interface) that `llog pipeline export --decode avro-confluent` asks for"
        " the schemas of values. Certificates of `https://` are checked against those of the system.",
    )
    schema_registry_user: str | None = setting(
        EXPORT, kinds.text("text without colons", r"[^:]+"),
        "User for the registry, sent with `LLOG_SCHEMA_REGISTRY_PASSWORD`; the URL may hold both instead.",
    )
    schema_registry_password: str | None = setting(
        EXPORT, kinds.SECRET, "Password of that user.", secret=True
    )
    schema_registry_token: str | None = setting(
        EXPORT, kinds.SECRET, "Bearer token for the registry, instead of a user and a password.", secret=True
    )

    # -- http -------------------------------------------------------------------------------------------------------
    http_bind_host: str = setting(
        HTTP, kinds.HOST, "Address on which a broker's HTTP front end listens.", "127.0.0.1"
    )
    http_port: int = setting(HTTP, kinds.PORT, "Its port; 0 picks a free one.", 8080)
    http_read_token: str | None = setting(
        HTTP, kinds.TOKEN,
        "Bearer token that HTTP reads must carry (consume, tail, offsets, topics, metrics); reads need"
        " no token if not set.", secret=True,
    )
    http_write_token: str | None = setting(
        HTTP, kinds.TOKEN,
        "Bearer token that HTTP writes must carry (produce, changes of topics); writes need no token if"
        " not set.", secret=True,
    )
    http_body_max_bytes: int = setting(
        HTTP, kinds.size(KIB, 512 * MIB), "Largest request body; a larger one is refused with status 413.", 32 * MIB
    )
    http_read_timeout_ms: int = setting(
        HTTP, kinds.duration(100, 600 * _SECOND_MS),
        "How long a client may take to send the head of a request, or pause while sending the body.", 30 * _SECOND_MS,
    )
    http_drain_ms: int = setting(
        HTTP, kinds.duration(0, 600 * _SECOND_MS),
        "How long a stopping broker goes on serving while `/ready` answers 503 and Kafka clients are sent to other"
        " nodes, so that clients go elsewhere before the ports close.", 0,
    )
    http_stop_timeout_ms: int = setting(
        HTTP, kinds.duration(0, 600 * _SECOND_MS), "How long a stopping broker waits for requests in progress.",
        30 * _SECOND_MS,
    )
    tls_cert_file: Path | None = setting(
        HTTP, kinds.PATH,
        "Certificate chain (PEM); turns HTTP into HTTPS, and Kafka's PLAINTEXT into SSL. Needs `LLOG_TLS_KEY_FILE`.",
    )
    tls_key_file: Path | None = setting(HTTP, kinds.PATH, "Private key of the certificate (PEM), without a password.")
    insecure: bool = setting(
        HTTP, kinds.BOOLEAN,
        "Allow listening on an address that other machines reach although a token or the certificate is missing.",
        False,
    )

    # -- kafka ------------------------------------------------------------------------------------------------------
    kafka_host: str = setting(
        KAFKA, kinds.HOST,
        "Address on which a broker's Kafka front end listens. One that other machines reach needs a certificate and"
        " clients that authenticate: `LLOG_KAFKA_SASL_MECHANISMS`, or `LLOG_TLS_CLIENT_AUTH=required`.", "127.0.0.1",
    )
    kafka_port: int | None = setting(
        KAFKA, kinds.PORT, "Its port; 0 picks a free one, and an empty value turns the Kafka front end off.", 9092,
        empty_turns_off=True,
    )
    kafka_advertised: str | None = setting(
        KAFKA, kinds.ADVERTISED,
        "Address that Kafka clients are given for this broker, where it differs from the one it listens on (containers,"
        " address translation). Needed if `LLOG_KAFKA_HOST` is `0.0.0.0` or `::`. Of several processes with one"
        " configuration each adds to the port what it adds to `LLOG_KAFKA_PORT`.",
    )

    # -- security ---------------------------------------------------------------------------------------------------
    authorization: bool = setting(
        SECURITY, kinds.BOOLEAN,
        "Whether access control lists decide what Kafka and HTTP clients may do. If so, nothing is allowed that no ACL"
        " allows (`llog acl add`), except to super users.", False,
    )
    super_users: tuple[str, ...] = setting(
        SECURITY, kinds.USERS,
        "Principals that may do everything, whatever the ACLs say. `User:write-token` and `User:read-token` are the"
        " holders of the two HTTP tokens.", (),
    )
    kafka_sasl_mechanisms: tuple[str, ...] = setting(
        SECURITY, kinds.MECHANISMS,
        "How Kafka clients authenticate; without any they do not, unless by certificate. The listener's protocol is"
        " SASL_SSL with a certificate, else SASL_PLAINTEXT. PLAIN and OAUTHBEARER send what others could use again, so"
        " without a certificate they work on a loopback address only.", (),
    )
    kafka_reauth_ms: int = setting(
        SECURITY, kinds.duration(0, 30 * _DAY_MS),
        "How long a connection may last before its client authenticates again (KIP-368); 0: as long as it likes, with"
        " OAUTHBEARER until its token ends.", 0,
    )
    tls_client_auth: str = setting(
        SECURITY, kinds.choice("none", "requested", "required"),
        "Whether clients of Kafka and HTTP show a certificate. It makes its subject the principal, as in"
        " `User:CN=ada,O=example`, unless the client authenticates by SASL or token.", "none",
    )
    tls_client_ca_file: Path | None = setting(
        SECURITY, kinds.PATH, "Certificates (PEM) of the authorities that sign clients' certificates."
    )
    tls_principal_rules: str = setting(
        SECURITY, kinds.text("rules as of Kafka's `ssl.principal.mapping.rules`"),
        "What makes a name of a certificate's subject: `RULE:pattern/replacement/`, with `L` or `U` behind it for lower"
        " or upper case, or `DEFAULT`, separated by commas.", "DEFAULT",
    )
    oauth_jwks: str | None = setting(
        SECURITY, kinds.KEY_SOURCE,
        "Public keys (JWKS) of the identity provider whose tokens OAUTHBEARER accepts, signed with RS256 or ES256. They"
        " are read again every five minutes, and when a token names an unknown key.",
    )
    oauth_issuer: str | None = setting(SECURITY, kinds.text("a URL or name"), "The `iss` that tokens must have.")
    oauth_audience: str | None = setting(SECURITY, kinds.text("a URL or name"), "The `aud` that tokens must have.")
    oauth_clock_skew_ms: int = setting(
        SECURITY, kinds.duration(0, 600 * _SECOND_MS), "By how much the clocks of identity provider and broker may"
        " differ.", 30 * _SECOND_MS,
    )
    oauth_principal_claim: str = setting(
        SECURITY, kinds.text("a claim's name", r"[A-Za-z0-9_.:/-]{1,100}"), "The claim of a token that names the user.",
        "sub",
    )

    # -- nodes ------------------------------------------------------------------------------------------------------
    node_id: int | None = setting(
        NODES, kinds.integer(0, NODE_ID_MAX),
        "Number of this broker in the cluster, as Kafka clients see it; no two live brokers have the same. The"
        " lowest free one if not set. Of several processes with one configuration it is that of the first.",
    )
    zone: str | None = setting(
        NODES, kinds.ZONE,
        "Where this broker runs, such as an availability zone. Kafka clients that name their zone (`zone=…` in"
        " `client.id`, or `client.rack`) are sent to brokers of it.",
    )
    workers: int = setting(
        NODES, kinds.integer(1, WORKERS_MAX),
        "Broker processes of `llog broker` and `llog up`, to use several cores; each is a node of its own. All accept"
        " connections at `LLOG_KAFKA_PORT` and `LLOG_HTTP_PORT`, and each at ports of its own, which follow these."
        " Sizes of buffers and caches are per process.", 1,
    )

    # -- logs -------------------------------------------------------------------------------------------------------
    log_level: str = setting(
        LOGS, kinds.choice("debug", "info", "warning", "error"), "Lines below this level are not written.", "info"
    )
    log_requests: str = setting(
        LOGS, kinds.choice("all", "errors", "slow", "none"),
        "Requests (HTTP and Kafka) that get a line: all, failed ones (`errors`), failed and slow ones (`slow`), or"
        " none.",
        "slow",
    )
    log_slow_ms: int = setting(
        LOGS, kinds.duration(1, 600 * _SECOND_MS),
        "From this duration on a request is slow; the time that a consumer asked to wait does not count.", _SECOND_MS,
    )

    # fmt: on
    def __init__(self, values: Mapping[str, Any], sources: Mapping[str, Source]) -> None:
        """Only `from_env` calls this; it has validated the values."""
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_sources", dict(sources))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: object) -> Self:
        """Settings from arguments, then variables, then fallback variables, then defaults.

        An argument is text, parsed like the variable, or a value of the attribute's type; None counts as not given.
        Raises `SettingsError` for a wrong value, `SettingsErrors` for several.
        """
        environ = os.environ if environ is None else environ
        table = settings_table()
        for line in unknown_variables(table, environ):
            _log.warning("%s", line)
        resolved = resolve(table, derive.CHECKS, environ, overrides)
        return cls(resolved.values, resolved.sources)

    def replaced(self, **overrides: object) -> Self:
        """A copy with some values changed; derived values are derived again."""
        given = {
            name: "" if getattr(self, name) is None else getattr(self, name)  # an empty value turned it off
            for name in self.sources
            if not self.source_of(name).startswith(("default", "derived"))
        }
        return type(self).from_env({}, **{**given, **overrides})

    def source_of(self, name: str) -> str:
        """`default`, `environment LLOG_X`, `fallback AWS_X`, `derived from LLOG_Y` or `argument`."""
        return str(self.sources[name])

    @property
    def sources(self) -> Mapping[str, Source]:
        sources: Mapping[str, Source] = self.__dict__["_sources"]
        return sources

    def store_urls(self) -> dict[str, str]:
        """For logs, without secrets."""
        return {name: mask_url(getattr(self, name)) for name in ("metadata_url", "wal_url", "objects_url")}

    def __repr__(self) -> str:
        shown = (f"{row.name}={row.display(getattr(self, row.name))!r}" for row in settings_table())
        return f"Settings({', '.join(shown)})"


@cache
def settings_table() -> tuple[Setting, ...]:
    """Every setting, in the order of the documentation."""
    rows = ((field.name, field.metadata["row"]) for field in dataclasses.fields(Settings))
    return tuple(dataclasses.replace(row, name=name) for name, row in rows)
