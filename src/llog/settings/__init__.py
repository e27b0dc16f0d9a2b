"""Every setting of llog: one table, typed.

Why it exists: a process is set up by `LLOG_…` variables (and arguments that beat them), and there is one place that
says which there are, what they take, what they default to and what they mean. `.env.example`,
docs/reference/settings.md and `llog settings` are derived from this table; tests keep them in step.

What must stay true: an attribute is its variable's name without `LLOG_`, in lower case; every number has bounds;
secrets and passwords never appear in `repr`, in messages or in anything printed; `.env` files are never loaded
by us (load one in the shell: `set -a; source .env; set +a`).

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
    OBJECT_BYTES_MAX,
)
from llog.settings import derive as derive
from llog.settings import kinds as kinds
from llog.settings.kinds import CompactorTarget, Kind
from llog.settings.resolve import Derive, Origin, Setting, Source, resolve, unknown_variables

__all__ = ["CompactorTarget", "Origin", "Setting", "Settings", "Source", "settings_table"]

_log = logging.getLogger("llog.settings")

_SECOND_MS: Final = 1_000
_HOUR_MS: Final = 3_600 * _SECOND_MS
_DAY_MS: Final = 24 * _HOUR_MS

STORES: Final = "Stores"
OXIA: Final = "Oxia"
S3: Final = "S3"
LOG: Final = "Log and batching"
TAIL: Final = "Tail cache"
TIERS: Final = "Tiers, flushing and vacuum"
COMPACTOR: Final = "Compaction service"
HTTP: Final = "HTTP"


def setting(
    section: str,
    kind: Kind,
    doc: str,
    default: Any = None,
    *,
    derive: Derive | None = None,
    default_doc: str = "",
    secret: bool = False,
    fallbacks: tuple[str, ...] = (),
    fallback_beside: str = "",
    other_name: str = "",
) -> Any:
    """One row. A row without a default is optional: its attribute may be None."""
    row = Setting("", section, kind, doc, default, derive, default_doc, secret, fallbacks, fallback_beside, other_name)
    return dataclasses.field(metadata={"row": row})


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Settings:
    """All settings of one process, resolved. Made by `from_env`; immutable."""

    # fmt: off
    # -- stores ---------------------------------------------------------------------------------------------------
    data_dir: Path = setting(
        STORES, kinds.DATA_DIR, "Where the embedded stores live when no URL names others.",
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
        STORES, kinds.STORE_URL, "Where fresh bytes land, when that is another (faster) place than where they stay.",
        derive=derive.wal_url, default_doc="`LLOG_OBJECTS_URL`",
    )
    root_prefix: str = setting(
        STORES, kinds.ROOT_PREFIX, "First part of every metadata key and object name; one per cluster.", "llog"
    )
    client_identifier: str = setting(
        STORES, kinds.IDENTIFIER, "The name this process goes by in the stores, in logs and in metrics.",
        derive=derive.client_identifier, default_doc="host name and process id",
    )
    request_timeout_ms: int = setting(
        STORES, kinds.duration(100, 600 * _SECOND_MS),
        "How long a request to a store may take before its outcome counts as unknown.", 10 * _SECOND_MS,
    )

    # -- oxia -----------------------------------------------------------------------------------------------------
    oxia_service_address: str | None = setting(
        OXIA, kinds.HOST_PORT, "Another way to say `LLOG_METADATA_URL=oxia://…`."
    )
    oxia_namespace: str = setting(
        OXIA, kinds.NAMESPACE, "The namespace inside Oxia; it can also stand in the URL.", "default",
        derive=derive.oxia_namespace, default_doc="the one in `LLOG_METADATA_URL`, else `default`",
    )
    oxia_session_timeout_ms: int = setting(
        OXIA, kinds.duration(METADATA_SESSION_TIMEOUT_MS_MIN, METADATA_SESSION_TIMEOUT_MS_MAX),
        "How long claims and registrations outlive a process that went silent: long enough for a pause, short enough"
        " that work is taken over soon.", 15 * _SECOND_MS,
    )
    oxia_tls_ca_file: Path | None = setting(
        OXIA, kinds.PATH, "Certificate authorities (PEM) for `oxia+tls://`; the system's when not set."
    )
    oxia_token: str | None = setting(OXIA, kinds.SECRET, "Bearer token sent to Oxia.", secret=True)

    # -- s3 -------------------------------------------------------------------------------------------------------
    s3_bucket: str | None = setting(
        S3, kinds.BUCKET, "Another way to say `LLOG_OBJECTS_URL=s3://bucket`. The bucket must exist."
    )
    s3_endpoint_url: str | None = setting(
        S3, kinds.HTTP_URL, "The S3 server, where it is not AWS; `http://` is allowed.",
        fallbacks=("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    )
    s3_region_name: str = setting(
        S3, kinds.REGION, "The region requests are signed for; servers other than AWS mostly do not mind.", "us-east-1",
        fallbacks=("AWS_REGION", "AWS_DEFAULT_REGION"),
    )
    s3_access_key_id: str | None = setting(
        S3, kinds.SECRET, "Key id; without one, the machine's or container's own role is used.",
        secret=True, fallbacks=("AWS_ACCESS_KEY_ID",),
    )
    s3_secret_access_key: str | None = setting(
        S3, kinds.SECRET, "The key id's secret.", secret=True, fallbacks=("AWS_SECRET_ACCESS_KEY",)
    )
    s3_session_token: str | None = setting(
        S3, kinds.SECRET, "Session token of temporary credentials; the fallback only counts beside a key id that came"
        " from `AWS_ACCESS_KEY_ID`.",
        secret=True, fallbacks=("AWS_SESSION_TOKEN",), fallback_beside="s3_access_key_id",
    )

    # -- log and batching -----------------------------------------------------------------------------------------
    batch_max_bytes: int = setting(
        LOG, kinds.size(KIB, 512 * MIB), "A flush starts when this much is buffered.", 8 * MIB
    )
    batch_max_delay_ms: int = setting(
        LOG, kinds.duration(0, 60 * _SECOND_MS), "A flush starts when the oldest buffered record has waited this long.",
        derive=derive.by_place("wal_url", local=10, remote=500),
        default_doc="`500ms`, or `10ms` where `LLOG_WAL_URL` is local (a put costs no money there)",
    )
    batch_max_buffer_bytes: int = setting(
        LOG, kinds.size(MIB, 1024 * GIB),
        "Bytes between socket and commit; at three quarters a flush starts at once, at the limit producers wait.",
        512 * MIB,
    )
    encoding: str = setting(
        LOG, kinds.choice("kafka-v2", "bytes-batch-v1"),
        "How fresh records are stored: with keys, headers and timestamps, or bare payloads.", "kafka-v2",
    )
    auto_create_topics: bool = setting(
        LOG, kinds.BOOLEAN, "Whether the first produce to an unknown (or deleted) topic creates it.", True
    )
    topic_partitions_max: int = setting(
        LOG, kinds.integer(1, 100_000), "Most partitions a topic may have.", 1_024
    )

    # -- tail cache -----------------------------------------------------------------------------------------------
    tail_cache_dir: Path | None = setting(
        TAIL, kinds.PATH, "A directory through which brokers on one machine share the tail cache; else it is in memory."
    )
    tail_cache_max_bytes: int = setting(
        TAIL, kinds.size(0, 1024 * GIB), "Size of the tail cache; 0 turns it off.", 512 * MIB
    )
    tail_refresh_ms: int = setting(
        TAIL, kinds.duration(10, 60 * _SECOND_MS),
        "How often a log that readers wait on is checked for what other brokers appended.",
        derive=derive.by_place("metadata_url", local=100, remote=500),
        default_doc="`500ms`, or `100ms` where `LLOG_METADATA_URL` is local",
    )

    # -- tiers, flushing, vacuum ------------------------------------------------------------------------------------
    flush_max_bytes: int = setting(
        TIERS, kinds.size(64 * KIB, OBJECT_BYTES_MAX),
        "The compaction service moves a log's fresh bytes into a segment when there is this much.", 64 * MIB,
    )
    flush_max_age_ms: int = setting(
        TIERS, kinds.duration(0, 7 * _DAY_MS), "… or when the oldest of them is this old.", 60 * _SECOND_MS
    )
    wal_max_bytes: int = setting(
        TIERS, kinds.size(MIB, 1024 * 1024 * GIB),
        "Space fresh bytes may take in a WAL store of its own: at three quarters compaction and vacuum run at once, at"
        " the limit producers wait. The default fits a small disk.", 10 * GIB,
    )
    wal_grace_ms: int = setting(
        TIERS, kinds.duration(10 * _SECOND_MS, 30 * _DAY_MS),
        "How old an object that nothing names must be before vacuum removes it from a WAL store of its own.",
        300 * _SECOND_MS,
    )
    vacuum_grace_ms: int = setting(
        TIERS, kinds.duration(10 * _SECOND_MS, 30 * _DAY_MS),
        "The same for the object store. Longer than any writer or compactor may sleep and still go on.", _HOUR_MS,
    )

    # -- compaction service -----------------------------------------------------------------------------------------
    compactor_bind_host: str = setting(
        COMPACTOR, kinds.HOST, "Where its health and metrics pages listen; this machine only, unless told.", "127.0.0.1"
    )
    compactor_port: int = setting(COMPACTOR, kinds.PORT, "Port of those pages; 0 takes a free one.", 8090)
    compactor_id: str = setting(
        COMPACTOR, kinds.IDENTIFIER, "The name in its claims.",
        derive=derive.compactor_id, default_doc="`LLOG_CLIENT_IDENTIFIER`",
    )
    compactor_targets: tuple[CompactorTarget, ...] = setting(
        COMPACTOR, kinds.TARGETS, "Partitions to work on beside the discovered ones.", ()
    )
    compactor_workers: int = setting(
        COMPACTOR, kinds.integer(1, 256),
        "How much is in hand at once: each worker has up to 64 logs. Those that are due together are compacted by one"
        " job, which reads every blob once for all of them.", 4,
    )
    compactor_discovery_interval_ms: int = setting(
        COMPACTOR, kinds.duration(100, _DAY_MS), "How often new topics and partitions are looked for.", 30 * _SECOND_MS
    )
    compactor_idle_sleep_ms: int = setting(
        COMPACTOR, kinds.duration(0, _HOUR_MS), "Pause after a pass that found nothing to do.", _SECOND_MS
    )
    compactor_idle_jitter_ms: int = setting(
        COMPACTOR, kinds.duration(0, _HOUR_MS), "Random addition to it, so that services do not march in step.", 250
    )
    compactor_error_sleep_ms: int = setting(
        COMPACTOR, kinds.duration(0, _HOUR_MS), "Pause of a log whose compaction failed.", 5 * _SECOND_MS
    )
    compactor_error_jitter_ms: int = setting(
        COMPACTOR, kinds.duration(0, _HOUR_MS), "Random addition to it.", _SECOND_MS
    )
    compactor_max_offsets_per_run: int = setting(
        COMPACTOR, kinds.integer(1, 1_000_000_000),
        "Most offsets one run rewrites; a bound for logs of tiny records, others meet `LLOG_FLUSH_MAX_BYTES` first.",
        1_000_000,
    )
    compactor_min_age_ms: int = setting(
        COMPACTOR, kinds.duration(0, _DAY_MS),
        "Younger entries are left alone, so that a writer without an answer can still find its append.",
        derive=derive.compactor_min_age_ms, default_doc="twice `LLOG_REQUEST_TIMEOUT_MS`",
    )
    key_compact_bytes_per_second: int = setting(
        COMPACTOR, kinds.size(0, 1024 * GIB),
        "How fast key compaction (`cleanup.policy=compact`) reads at most, so that it does not take from consumers; 0"
        " for no limit.", KEY_COMPACT_READ_BYTES_PER_SECOND,
    )
    spark_master: str = setting(
        COMPACTOR, kinds.text("a Spark master's URL", r"\S+"),
        "Where the jobs run: all cores of this machine with 4 attempts per task, or any cluster.", "local[*,4]",
    )
    compactor_spark: bool = setting(
        COMPACTOR, kinds.BOOLEAN,
        "Whether the compactor service rewrites large rounds on Spark as soon as it can be had; small ones, and all"
        " where there is no Spark, are rewritten in the service's own process.", True,
    )

    # -- http -------------------------------------------------------------------------------------------------------
    http_bind_host: str = setting(
        HTTP, kinds.HOST, "Where a broker's HTTP front end listens; this machine only, unless told.", "127.0.0.1"
    )
    http_port: int = setting(HTTP, kinds.PORT, "Its port; 0 takes a free one.", 8080)
    http_read_token: str | None = setting(
        HTTP, kinds.SECRET, "Bearer token that reading over HTTP asks for (consume, tail, offsets, topics, metrics);"
        " reading is open when not set.", secret=True,
    )
    http_write_token: str | None = setting(
        HTTP, kinds.SECRET, "Bearer token that writing over HTTP asks for (produce, every change of a topic);"
        " writing is open when not set.", secret=True,
    )
    http_body_max_bytes: int = setting(
        HTTP, kinds.size(KIB, 512 * MIB), "Largest body of a request; a larger one is answered with 413.", 32 * MIB
    )
    http_read_timeout_ms: int = setting(
        HTTP, kinds.duration(100, 600 * _SECOND_MS),
        "How long a client may take to send the head of a request, or to go on with its body.", 30 * _SECOND_MS,
    )
    http_stop_timeout_ms: int = setting(
        HTTP, kinds.duration(0, 600 * _SECOND_MS), "How long requests under way are waited for at a stop.",
        30 * _SECOND_MS,
    )
    tls_cert_file: Path | None = setting(
        HTTP, kinds.PATH, "Certificate chain (PEM); with it HTTP becomes HTTPS. Needs `LLOG_TLS_KEY_FILE`."
    )
    tls_key_file: Path | None = setting(HTTP, kinds.PATH, "The certificate's private key (PEM), without a password.")
    insecure: bool = setting(
        HTTP, kinds.BOOLEAN,
        "Listen on an address that other machines reach without both tokens and a certificate.", False,
    )

    # fmt: on
    def __init__(self, values: Mapping[str, Any], sources: Mapping[str, Source]) -> None:
        """For `from_env`, which checks what it passes."""
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_sources", dict(sources))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: object) -> Self:
        """The settings in force: arguments beat variables, variables beat fallbacks, then come defaults.

        An argument is text, parsed as the variable would be, or a value of the attribute's type; None means not
        given. Raises `SettingsError` for a wrong value, `SettingsErrors` for several.
        """
        environ = os.environ if environ is None else environ
        table = settings_table()
        for line in unknown_variables(table, environ):
            _log.warning("%s", line)
        resolved = resolve(table, derive.CHECKS, environ, overrides)
        return cls(resolved.values, resolved.sources)

    def replaced(self, **overrides: object) -> Self:
        """These settings with other values for some; what was derived is derived again."""
        given = {
            name: getattr(self, name)
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

    def __repr__(self) -> str:
        shown = (f"{row.name}={row.display(getattr(self, row.name))!r}" for row in settings_table())
        return f"Settings({', '.join(shown)})"


@cache
def settings_table() -> tuple[Setting, ...]:
    """Every setting, in the order in which they are documented."""
    rows = ((field.name, field.metadata["row"]) for field in dataclasses.fields(Settings))
    return tuple(dataclasses.replace(row, name=name) for name, row in rows)
