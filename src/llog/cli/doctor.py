"""`llog doctor`: check everything that commonly goes wrong, and give advice for each problem.

It changes nothing: probes are removed again. Every check has a time limit, and a check that fails becomes a finding of
its own instead of stopping the others.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import typer

from llog.cli.clocks import check_clocks, check_reachable_clocks
from llog.cli.exits import FAILED
from llog.cli.frame import with_stores
from llog.cli.output import AsJson, print_report
from llog.cli.stores import StoreStep, advice_on, check_stores

if TYPE_CHECKING:
    from llog.log.context import LogContext
    from llog.log.keys import Log
    from llog.log.topics.admin import Topic
    from llog.settings import Settings

# A check fails when it takes longer than this many LLOG_REQUEST_TIMEOUT_MS.
CHECK_REQUEST_TIMEOUTS: Final = 6
# Topics or logs named one by one in the output; the rest are counted.
NAMES_MAX: Final = 20

Result = Literal["ok", "note", "WRONG"]


class Diagnosis(NamedTuple):
    check: str
    result: Result
    detail: str
    advice: str = ""


Check = Callable[[], Awaitable[list[Diagnosis]]]
OnCheck = Callable[[str], None]


@with_stores("metadata", "objects", "wal")
def doctor(settings: Settings, as_json: AsJson = False) -> None:
    """Check settings, stores, clocks, logs and Java; exit code 1 when something is wrong."""
    import asyncio

    from llog.cli.output import progress_line

    with progress_line("checking") as advance:
        findings = asyncio.run(diagnose(settings, os.environ, lambda check: advance(1, check)))
    wrong = [finding for finding in findings if finding.result == "WRONG"]
    document = {"ok": not wrong, "findings": [finding._asdict() for finding in findings]}
    print_report(as_json, document, ("check", "result", "finding", "what to do"), findings, unbroken=2)
    if not as_json:
        typer.echo(f"\n{len(wrong)} WRONG" if wrong else "\nnothing is wrong")
    if wrong:
        raise typer.Exit(FAILED)


async def diagnose(settings: Settings, environ: Mapping[str, str], on_check: OnCheck) -> list[Diagnosis]:
    """All findings, in the order of the checks. `on_check` is called with the name of each check as it begins."""
    findings = check_exposure(settings) + check_kafka(settings) + check_permissions(settings)
    on_check("stores")
    steps = await check_stores(settings)
    findings += judge_steps(steps)
    if all(step.ok for step in steps):
        findings += await _check_cluster_state(settings, on_check)
    else:
        on_check("clocks")
        findings += await check_reachable_clocks(settings, steps)
        findings.append(Diagnosis("cluster", "note", "not checked, because a store failed", "fix the store first"))
    on_check("java")
    return findings + await check_java(environ)


async def _check_cluster_state(settings: Settings, on_check: OnCheck) -> list[Diagnosis]:
    from llog.wiring import Use, opened_log

    timeout_ms = settings.request_timeout_ms * CHECK_REQUEST_TIMEOUTS
    findings: list[Diagnosis] = []
    async with opened_log(settings, blobs=Use.LIST, segments=Use.LIST) as stores:
        context = stores.context
        checks: dict[str, Check] = {
            "listing": lambda: check_listing(context),
            "cluster": lambda: check_identity(context),
            "nodes": lambda: check_nodes(context),
            "clocks": lambda: check_clocks(context),
            "vacuum": lambda: check_vacuum_hold(context),
            "deletions": lambda: check_deletions(context),
        }
        for name, check in checks.items():
            on_check(name)
            findings += await _bounded(name, check, timeout_ms)
        on_check("logs")
        findings += await check_logs(context, timeout_ms, on_check)
    return findings


async def _bounded(name: str, check: Check, timeout_ms: int) -> list[Diagnosis]:
    import asyncio

    from llog.errors import LlogError
    from llog.settings.urls import mask_url

    try:
        async with asyncio.timeout(timeout_ms / 1_000):
            return await check()
    except TimeoutError:
        advice = "check the load of the server and the network to it"
        return [Diagnosis(name, "WRONG", f"no answer within {timeout_ms} ms", advice)]
    except LlogError as error:
        return [Diagnosis(name, "WRONG", mask_url(str(error)), advice_on(error))]


# -- settings and this machine ---------------------------------------------------------------------------------------


def check_exposure(settings: Settings) -> list[Diagnosis]:
    from llog.errors import SettingsError
    from llog.settings import listening

    host = settings.http_bind_host
    try:
        listening.check_exposure(settings)
    except SettingsError as error:
        advice = "do what the message says, or bind to 127.0.0.1: `llog broker` does not start with these settings"
        return [Diagnosis("exposure", "WRONG", str(error), advice)]
    if listening.is_loopback(host):
        return [Diagnosis("exposure", "ok", f"{host}: reachable from this machine only")]
    has_tokens = settings.http_read_token is not None and settings.http_write_token is not None
    if settings.tls_cert_file is None or not (has_tokens or settings.authorization):
        advice = "set tokens and a certificate (LLOG_HTTP_…_TOKEN, LLOG_TLS_…_FILE), then unset LLOG_INSECURE"
        return [Diagnosis("exposure", "note", f"{host}: other machines reach it unprotected (LLOG_INSECURE)", advice)]
    protection = "ACLs" if settings.authorization else "tokens"
    return [Diagnosis("exposure", "ok", f"{host}: protected by {protection} and TLS")]


def check_kafka(settings: Settings) -> list[Diagnosis]:
    """The address of the Kafka front end."""
    from llog.errors import SettingsError
    from llog.settings import listening
    from llog.settings.urls import format_host_port

    if settings.kafka_port is None:
        return [Diagnosis("kafka", "ok", "off (LLOG_KAFKA_PORT is empty)")]
    try:
        listening.check_kafka_address(settings)
    except SettingsError as error:
        advice = "do what the message says, or listen on 127.0.0.1: `llog broker` does not start with these settings"
        return [Diagnosis("kafka", "WRONG", str(error), advice)]
    given = format_host_port(*listening.advertised_address(settings, settings.kafka_port))
    address = given if settings.kafka_port else "a free port, because LLOG_KAFKA_PORT is 0"
    address = f"{address} ({listening.kafka_protocol(settings)})"
    if listening.is_loopback(settings.kafka_host):
        return [Diagnosis("kafka", "ok", f"{address}: reachable from this machine only")]
    if missing := listening.missing_for_kafka(settings):
        advice = f"set {' and '.join(missing)}, then unset LLOG_INSECURE"
        return [Diagnosis("kafka", "note", f"{address}: other machines reach it unprotected (LLOG_INSECURE)", advice)]
    if not settings.authorization:
        advice = "set LLOG_AUTHORIZATION=1 and give users ACLs: without it every user may do everything"
        return [Diagnosis("kafka", "note", f"{address}: clients authenticate, and may do everything", advice)]
    return [Diagnosis("kafka", "ok", f"{address}: clients authenticate, and ACLs decide what they may do")]


def check_permissions(settings: Settings) -> list[Diagnosis]:
    """Local directories must be readable and writable for this user, and not writable for everybody."""
    urls = dict.fromkeys((settings.metadata_url, settings.objects_url, settings.wal_url))
    directories = [path for url in urls if (path := local_path(url)) is not None]
    directories += [] if settings.tail_cache_dir is None else [settings.tail_cache_dir]
    findings = [finding for path in directories if (finding := judge_directory(path)) is not None]
    key = settings.tls_key_file
    if key is not None and key.is_file() and key.stat().st_mode & 0o077:
        detail = f"{key}: other users may read this private key"
        findings.append(Diagnosis("permissions", "WRONG", detail, f"chmod 600 {key}"))
    return findings or [Diagnosis("permissions", "ok", f"{len(directories)} local directories")]


def local_path(url: str) -> Path | None:
    from llog.settings.urls import PATH_SCHEMES

    scheme, _, rest = url.partition("://")
    return Path(rest.partition("?")[0]) if scheme in PATH_SCHEMES else None


def judge_directory(path: Path) -> Diagnosis | None:
    """None when it is fine. A missing directory is created later, so its nearest existing parent is judged."""
    import stat

    existing = next(place for place in (path, *path.parents) if place.exists())
    if not os.access(existing, os.R_OK | os.W_OK | os.X_OK):
        advice = f"run llog as the owner of {existing}, or give this user write permission"
        return Diagnosis("permissions", "WRONG", f"{existing}: this user may not read and write it", advice)
    if existing == path and path.stat().st_mode & stat.S_IWOTH:
        return Diagnosis("permissions", "WRONG", f"{path}: every user may write to it", f"chmod o-w {path}")
    return None


async def check_java(environ: Mapping[str, str]) -> list[Diagnosis]:
    """Only Spark jobs need Java."""
    import asyncio

    from llog.errors import JavaUnusable
    from llog.spark.sessions.java import ABSENT, find_java

    try:
        java = await asyncio.to_thread(find_java, environ)
    except JavaUnusable as error:
        result: Result = "note" if error.found == (ABSENT,) else "WRONG"
        advice = f"for Spark jobs {error.advice}; everything else works without Java"
        return [Diagnosis("java", result, "; ".join(error.found), advice)]
    return [Diagnosis("java", "ok", f"{java.program}, version {java.version}")]


# -- the stores ------------------------------------------------------------------------------------------------------


def judge_steps(steps: Iterable[StoreStep]) -> list[Diagnosis]:
    """One finding per store that works, one per step that failed."""
    findings = []
    by_store: dict[str, list[StoreStep]] = {}
    for step in steps:
        by_store.setdefault(step.store, []).append(step)
    for store, taken in by_store.items():
        failed = [step for step in taken if not step.ok]
        findings += [
            Diagnosis(f"{store} store", "WRONG", f"{step.url}, {step.step}: {step.error}", step.advice)
            for step in failed
        ]
        if not failed:
            slowest = max(taken, key=lambda step: step.ms)
            findings.append(Diagnosis(f"{store} store", "ok", f"{taken[0].url}: {slowest.step} took {slowest.ms} ms"))
    return findings


async def check_listing(context: LogContext) -> list[Diagnosis]:
    """Only vacuum and restore list objects, so a missing permission would otherwise be noticed late."""
    from contextlib import aclosing

    for store in context.stores():
        async with aclosing(store.list(context.keys.root + "/")) as names:  # type: ignore[type-var]
            async for _ in names:
                break
    return [Diagnosis("listing", "ok", "objects can be listed")]


async def check_identity(context: LogContext) -> list[Diagnosis]:
    from llog.errors import ClusterMismatch
    from llog.log.cluster import compare_cluster
    from llog.settings.urls import mask_url

    try:
        cluster = await compare_cluster(context)
    except ClusterMismatch as error:
        advice = "point LLOG_METADATA_URL, LLOG_OBJECTS_URL and LLOG_WAL_URL at stores of one cluster"
        return [Diagnosis("cluster", "WRONG", mask_url(str(error)), advice)]
    if cluster is None:
        return [Diagnosis("cluster", "note", "none yet: the first write creates it", "start a broker: `llog up`")]
    return [Diagnosis("cluster", "ok", f"{cluster.cluster_id}, on {len(cluster.stores)} object stores")]


async def check_nodes(context: LogContext) -> list[Diagnosis]:
    """The brokers that are alive, as Kafka clients see them."""
    from llog.broker.cluster import read_nodes
    from llog.settings.urls import format_host_port

    nodes = sorted(await read_nodes(context))
    if not nodes:
        return [Diagnosis("nodes", "ok", "no broker with a Kafka front end runs")]
    shown = [f"{node.node_id} at {format_host_port(node.host, node.port)}" for node in nodes[:NAMES_MAX]]
    more = [f"and {len(nodes) - NAMES_MAX} more"] if len(nodes) > NAMES_MAX else []
    return [Diagnosis("nodes", "ok", ", ".join(shown + more))]


# -- the cluster -----------------------------------------------------------------------------------------------------


async def check_vacuum_hold(context: LogContext) -> list[Diagnosis]:
    from llog.log.recovery.restore import read_hold

    held = await read_hold(context)
    if held is None:
        return [Diagnosis("vacuum", "ok", "not held")]
    advice = "check the logs (`llog log check`), then run `llog meta release-vacuum`"
    return [Diagnosis("vacuum", "WRONG", f"held: {held[0].reason}", advice)]


async def check_deletions(context: LogContext) -> list[Diagnosis]:
    from llog.log.topics.admin import list_topics

    deleting = await list_topics(context, states={"DELETING"}, strict=True)
    if not deleting:
        return [Diagnosis("deletions", "ok", "no deletion is unfinished")]
    findings = [
        Diagnosis(
            "deletions", "WRONG", f"{topic.name} is being deleted", f"`llog topic delete {topic.name}` finishes it"
        )
        for topic in deleting[:NAMES_MAX]
    ]
    return findings + _rest("deletions", len(deleting), "`llog topic list --all` shows all topics")


async def check_logs(context: LogContext, timeout_ms: int, on_check: OnCheck) -> list[Diagnosis]:
    """Look for fenced logs, topic by topic with a time limit each, since there may be many."""
    from llog.log.topics.admin import list_topics

    live: list[Topic] = []

    async def list_live() -> list[Diagnosis]:
        live.extend(await list_topics(context, strict=True))
        return []

    findings = await _bounded("logs", list_live, timeout_ms)
    fenced: list[tuple[Log, str]] = []
    for topic in live:
        on_check(f"logs of {topic.name}")

        async def check(topic: Topic = topic) -> list[Diagnosis]:
            fenced.extend(await _fenced(context, topic))
            return []

        findings += await _bounded(f"logs of {topic.name}", check, timeout_ms)
    for log, reason in fenced[:NAMES_MAX]:
        advice = f"when the reason is gone: `llog unfence {log.topic} {log.partition}`"
        findings.append(Diagnosis("logs", "WRONG", f"{log} is FENCED: {reason}", advice))
    findings += _rest("logs", len(fenced), "`llog topic describe TOPIC` shows the state of each log")
    count = sum(topic.record.partition_count for topic in live)
    return findings or [Diagnosis("logs", "ok", f"{count} logs of {len(live)} topics, none fenced")]


async def _fenced(context: LogContext, topic: Topic) -> list[tuple[Log, str]]:
    from llog.formats.values import ControlRecord, decode_value
    from llog.log.context import get_all
    from llog.log.keys import Log

    logs = [Log(topic.name, partition) for partition in range(topic.record.partition_count)]
    records = await get_all(context.metadata, [context.keys.control(log) for log in logs], strict=True)
    fenced = []
    for log, record in zip(logs, records, strict=True):
        control = None if record is None else decode_value(ControlRecord, record.value, record.key.path)
        if control is not None and control.log_state == "FENCED":
            fenced.append((log, control.fence_reason))
    return fenced


def _rest(check: str, count: int, advice: str) -> list[Diagnosis]:
    more = count - NAMES_MAX
    return [Diagnosis(check, "WRONG", f"and {more} more", advice)] if more > 0 else []
