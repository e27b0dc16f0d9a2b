"""What `llog doctor` looks at: each look gives findings, and a finding that is no good says what to do.

What must stay true: nothing of the cluster is changed (probes and the object that tells a store's time are removed
again); every look is bounded in time; one that fails is a finding of its own and does not keep the others from looking.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Final, Literal, NamedTuple

from llog.cli.store_check import Step, advice_on, check_stores
from llog.errors import ClusterMismatch, JavaUnusable, LlogError, SettingsError, VacuumRefused
from llog.formats.values import ControlRecord, decode_value
from llog.log.cleanup.vacuum_check import plan_now, read_clocks
from llog.log.cluster import compare_cluster
from llog.log.context import LogContext, get_all
from llog.log.keys import Log
from llog.log.recovery.restore import read_hold
from llog.log.topics.admin import Topic, list_topics
from llog.opening import Use, opened_log
from llog.settings import Settings
from llog.settings.exposure import check_exposure, is_loopback
from llog.settings.urls import PATH_SCHEMES, mask_url
from llog.spark.sessions.java import ABSENT, find_java

# How long `llog doctor` waits for each of its looks, in LLOG_REQUEST_TIMEOUT_MS.
CLI_DOCTOR_LOOK_TIMEOUTS: Final = 6
# What `llog doctor` names one by one; the rest is counted.
CLI_DOCTOR_NAMES_MAX: Final = 20


Result = Literal["ok", "note", "WRONG"]


class Finding(NamedTuple):
    look: str
    result: Result
    detail: str
    advice: str = ""


Look = Callable[[], Awaitable[list[Finding]]]


async def diagnose(settings: Settings, environ: Mapping[str, str], told: Callable[[str], None]) -> list[Finding]:
    """Every finding, in the order of the looks. `told` hears which look is under way."""
    found = look_at_exposure(settings) + look_at_permissions(settings)
    told("stores")
    steps = await check_stores(settings)
    found += judge_steps(steps)
    if all(step.ok for step in steps):
        found += await _look_inside(settings, told)
    else:
        found.append(Finding("cluster", "note", "not looked at: a store cannot be used", "mend the store first"))
    told("java")
    return found + await look_for_java(environ)


async def _look_inside(settings: Settings, told: Callable[[str], None]) -> list[Finding]:
    timeout_ms = settings.request_timeout_ms * CLI_DOCTOR_LOOK_TIMEOUTS
    found: list[Finding] = []
    async with opened_log(settings, blobs=Use.LIST, segments=Use.LIST) as stores:
        context = stores.context
        looks: dict[str, Look] = {
            "listing": lambda: look_at_listing(context),
            "cluster": lambda: look_at_cluster(context),
            "clocks": lambda: look_at_clocks(context),
            "vacuum": lambda: look_at_hold(context),
            "deletions": lambda: look_at_deletions(context),
        }
        for name, look in looks.items():
            told(name)
            found += await _bounded(name, look, timeout_ms)
        told("logs")
        found += await look_at_logs(context, timeout_ms, told)
    return found


async def _bounded(name: str, look: Look, timeout_ms: int) -> list[Finding]:
    try:
        async with asyncio.timeout(timeout_ms / 1_000):
            return await look()
    except TimeoutError:
        return [Finding(name, "WRONG", f"no answer within {timeout_ms} ms", "is the server overloaded, or far away?")]
    except LlogError as error:
        return [Finding(name, "WRONG", mask_url(str(error)), advice_on(error))]


# -- settings and this machine ---------------------------------------------------------------------------------------


def look_at_exposure(settings: Settings) -> list[Finding]:
    host = settings.http_bind_host
    try:
        check_exposure(settings)
    except SettingsError as error:
        advice = "do what it says, or bind to 127.0.0.1: `llog broker` refuses to start like this"
        return [Finding("exposure", "WRONG", str(error), advice)]
    if is_loopback(host):
        return [Finding("exposure", "ok", f"{host}: this machine alone")]
    if settings.http_read_token is None or settings.http_write_token is None or settings.tls_cert_file is None:
        advice = "set tokens and a certificate (LLOG_HTTP_…_TOKEN, LLOG_TLS_…_FILE), then unset LLOG_INSECURE"
        return [Finding("exposure", "note", f"{host}: others reach it unprotected, as LLOG_INSECURE allows", advice)]
    return [Finding("exposure", "ok", f"{host}: with tokens and TLS")]


def look_at_permissions(settings: Settings) -> list[Finding]:
    """Of what lies on this machine's disks: ours to use, and nobody else's to change."""
    urls = dict.fromkeys((settings.metadata_url, settings.objects_url, settings.wal_url))
    places = [path for url in urls if (path := local_path(url)) is not None]
    places += [] if settings.tail_cache_dir is None else [settings.tail_cache_dir]
    found = [finding for path in places if (finding := judge_directory(path)) is not None]
    key = settings.tls_key_file
    if key is not None and key.is_file() and key.stat().st_mode & 0o077:
        found.append(Finding("permissions", "WRONG", f"{key}: others may read this private key", f"chmod 600 {key}"))
    return found or [Finding("permissions", "ok", f"{len(places)} local directories")]


def local_path(url: str) -> Path | None:
    scheme, _, rest = url.partition("://")
    return Path(rest.partition("?")[0]) if scheme in PATH_SCHEMES else None


def judge_directory(path: Path) -> Finding | None:
    """None when it is fine. One that is not there yet is made when it is needed, below what is there."""
    there = next(place for place in (path, *path.parents) if place.exists())
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        advice = f"run llog as the owner of {there}, or let it write there"
        return Finding("permissions", "WRONG", f"{there}: this user may not read and write it", advice)
    if there == path and path.stat().st_mode & stat.S_IWOTH:
        return Finding("permissions", "WRONG", f"{path}: everybody may write to it", f"chmod o-w {path}")
    return None


async def look_for_java(environ: Mapping[str, str]) -> list[Finding]:
    """Only Spark jobs need it."""
    try:
        java = await asyncio.to_thread(find_java, environ)
    except JavaUnusable as error:
        result: Result = "note" if error.found == (ABSENT,) else "WRONG"
        advice = f"for Spark jobs {error.advice}; everything else works without"
        return [Finding("java", result, "; ".join(error.found), advice)]
    return [Finding("java", "ok", f"{java.program}, version {java.version}")]


# -- the stores ------------------------------------------------------------------------------------------------------


def judge_steps(steps: Iterable[Step]) -> list[Finding]:
    """One finding per store that works, one per step that failed."""
    found = []
    by_store: dict[str, list[Step]] = {}
    for step in steps:
        by_store.setdefault(step.store, []).append(step)
    for store, taken in by_store.items():
        failed = [step for step in taken if not step.ok]
        found += [
            Finding(f"{store} store", "WRONG", f"{step.url}, {step.step}: {step.error}", step.advice) for step in failed
        ]
        if not failed:
            slowest = max(taken, key=lambda step: step.ms)
            found.append(Finding(f"{store} store", "ok", f"{taken[0].url}: {slowest.step} took {slowest.ms} ms"))
    return found


async def look_at_listing(context: LogContext) -> list[Finding]:
    """Vacuum and restore list; nothing else does, so a key without that right is noticed late."""
    for store in context.stores():
        async with aclosing(store.list(context.keys.root + "/")) as names:  # type: ignore[type-var]
            async for _ in names:
                break
    return [Finding("listing", "ok", "objects can be listed")]


async def look_at_cluster(context: LogContext) -> list[Finding]:
    try:
        cluster = await compare_cluster(context)
    except ClusterMismatch as error:
        advice = "point LLOG_METADATA_URL, LLOG_OBJECTS_URL and LLOG_WAL_URL at stores of one cluster"
        return [Finding("cluster", "WRONG", mask_url(str(error)), advice)]
    if cluster is None:
        return [Finding("cluster", "note", "none yet: whoever writes first founds it", "start a broker: `llog up`")]
    return [Finding("cluster", "ok", f"{cluster.cluster_id}, on {len(cluster.stores)} object stores")]


async def look_at_clocks(context: LogContext) -> list[Finding]:
    options = context.options
    wal_grace_ms = options.vacuum_grace_ms if options.wal_grace_ms is None else options.wal_grace_ms
    return [judge_clocks(await read_clocks(context), grace_ms=min(wal_grace_ms, options.vacuum_grace_ms))]


def judge_clocks(clocks_ms: Mapping[str, int], *, grace_ms: int) -> Finding:
    try:
        plan_now(clocks_ms, grace_ms=grace_ms)
    except VacuumRefused as error:
        return Finding("clocks", "WRONG", mask_url(error.reason), "let every machine follow a time server (NTP)")
    apart_ms = max(clocks_ms.values()) - min(clocks_ms.values())
    return Finding("clocks", "ok", f"{len(clocks_ms)} clocks, {apart_ms} ms apart at most")


# -- the cluster -----------------------------------------------------------------------------------------------------


async def look_at_hold(context: LogContext) -> list[Finding]:
    found = await read_hold(context)
    if found is None:
        return [Finding("vacuum", "ok", "not held")]
    return [
        Finding(
            "vacuum",
            "WRONG",
            f"held: {found[0].reason}",
            "check the logs (`llog log check`), then `llog meta release-vacuum`",
        )
    ]


async def look_at_deletions(context: LogContext) -> list[Finding]:
    dying = await list_topics(context, states={"DELETING"}, strict=True)
    if not dying:
        return [Finding("deletions", "ok", "none under way")]
    found = [
        Finding(
            "deletions", "WRONG", f"{topic.name} is being deleted", f"`llog topic delete {topic.name}` goes on with it"
        )
        for topic in dying[:CLI_DOCTOR_NAMES_MAX]
    ]
    return found + _rest("deletions", len(dying), "`llog topic list --all` shows all")


async def look_at_logs(context: LogContext, timeout_ms: int, told: Callable[[str], None]) -> list[Finding]:
    """Topic after topic, each bounded in time: there may be many."""
    live: list[Topic] = []

    async def list_live() -> list[Finding]:
        live.extend(await list_topics(context, strict=True))
        return []

    found = await _bounded("logs", list_live, timeout_ms)
    fenced: list[tuple[Log, str]] = []
    for topic in live:
        told(f"logs of {topic.name}")

        async def look(topic: Topic = topic) -> list[Finding]:
            fenced.extend(await _fenced(context, topic))
            return []

        found += await _bounded(f"logs of {topic.name}", look, timeout_ms)
    for log, reason in fenced[:CLI_DOCTOR_NAMES_MAX]:
        advice = f"when that is over: `llog unfence {log.topic} {log.partition}`"
        found.append(Finding("logs", "WRONG", f"{log} is FENCED: {reason}", advice))
    found += _rest("logs", len(fenced), "`llog topic describe TOPIC` shows the state of each log")
    count = sum(topic.record.partition_count for topic in live)
    return found or [Finding("logs", "ok", f"{count} logs of {len(live)} topics, none fenced")]


async def _fenced(context: LogContext, topic: Topic) -> list[tuple[Log, str]]:
    logs = [Log(topic.name, partition) for partition in range(topic.record.partition_count)]
    records = await get_all(context.metadata, [context.keys.control(log) for log in logs], strict=True)
    fenced = []
    for log, record in zip(logs, records, strict=True):
        control = None if record is None else decode_value(ControlRecord, record.value, record.key.path)
        if control is not None and control.log_state == "FENCED":
            fenced.append((log, control.fence_reason))
    return fenced


def _rest(look: str, count: int, advice: str) -> list[Finding]:
    more = count - CLI_DOCTOR_NAMES_MAX
    return [Finding(look, "WRONG", f"and {more} more", advice)] if more > 0 else []
