"""The clocks that `llog doctor` compares: of this machine, of the metadata store and of the object stores.

Vacuum refuses to run when they differ by more than a tenth of its grace, and S3 refuses requests whose time is more
than 15 minutes off (`RequestTimeTooSkewed`). Where an object store cannot be used, the `Date` header of its server
still tells its time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from llog.cli.doctor import Diagnosis
    from llog.cli.stores import StoreStep
    from llog.log.context import LogContext
    from llog.settings import Settings

# Clocks that differ by more are wrong, even if the vacuum grace is long …
CLOCKS_APART_MS_MAX: Final = 300_000
# … and those that differ by more than this are worth a note: object stores report whole seconds.
CLOCKS_APART_MS_NOTE: Final = 5_000

THIS_MACHINE: Final = "this machine"
ADVICE: Final = "synchronise every machine with a time server (NTP)"


async def check_clocks(context: LogContext) -> list[Diagnosis]:
    """All clocks, when all stores work."""
    from llog.log.cleanup.vacuum_check import read_clocks
    from llog.settings.urls import mask_url

    options = context.options
    wal_grace_ms = options.vacuum_grace_ms if options.wal_grace_ms is None else options.wal_grace_ms
    clocks_ms = {mask_url(name): clock_ms for name, clock_ms in (await read_clocks(context)).items()}
    return [judge_clocks(clocks_ms, grace_ms=min(wal_grace_ms, options.vacuum_grace_ms))]


async def check_reachable_clocks(settings: Settings, steps: Sequence[StoreStep]) -> list[Diagnosis]:
    """The clocks that can be read although a store failed. No finding when there is nothing to compare."""
    started, clocks_ms = time.monotonic(), {THIS_MACHINE: time.time_ns() // 1_000_000}

    def add(name: str, server_ms: int | None) -> None:
        """As of the reading of this machine's clock."""
        if server_ms is not None:
            clocks_ms[name] = server_ms - int((time.monotonic() - started) * 1_000)

    if all(step.ok for step in steps if step.store == "metadata"):
        add("the metadata store", await _metadata_clock(settings))
    if (endpoint := s3_endpoint(settings)) is not None:
        add(endpoint, await _http_clock(endpoint, settings.request_timeout_ms))
    wal_grace_ms = settings.vacuum_grace_ms if settings.wal_url == settings.objects_url else settings.wal_grace_ms
    grace_ms = min(settings.vacuum_grace_ms, wal_grace_ms)
    return [judge_clocks(clocks_ms, grace_ms=grace_ms)] if len(clocks_ms) > 1 else []


def judge_clocks(clocks_ms: Mapping[str, int], *, grace_ms: int) -> Diagnosis:
    from llog.cli.doctor import Diagnosis

    earliest, latest = min(clocks_ms, key=clocks_ms.__getitem__), max(clocks_ms, key=clocks_ms.__getitem__)
    apart_ms = clocks_ms[latest] - clocks_ms[earliest]
    if apart_ms > min(grace_ms // 10, CLOCKS_APART_MS_MAX):
        return Diagnosis("clocks", "WRONG", which_is_off(clocks_ms), ADVICE)
    if apart_ms > CLOCKS_APART_MS_NOTE:
        return Diagnosis("clocks", "note", which_is_off(clocks_ms), ADVICE)
    return Diagnosis("clocks", "ok", f"{len(clocks_ms)} clocks, at most {apart_ms} ms apart")


def which_is_off(clocks_ms: Mapping[str, int]) -> str:
    """The clock that differs most from the others, if these are closer to each other; else the two that differ most."""
    in_order = sorted(clocks_ms, key=clocks_ms.__getitem__)
    earliest, latest = in_order[0], in_order[-1]
    apart_ms = clocks_ms[latest] - clocks_ms[earliest]
    for off, others in ((latest, in_order[:-1]), (earliest, in_order[1:])):
        nearest_ms = min(abs(clocks_ms[off] - clocks_ms[other]) for other in others)
        spread_ms = clocks_ms[others[-1]] - clocks_ms[others[0]]
        if len(others) > 1 and spread_ms < nearest_ms:
            where = "ahead of" if off == latest else "behind"
            return f"the clock of {off} is wrong: {nearest_ms / 1_000:,.1f} s {where} {' and '.join(others)}"
    return f"the clock of {latest} is {apart_ms / 1_000:,.1f} s ahead of {earliest}: one of them is wrong"


async def _metadata_clock(settings: Settings) -> int | None:
    import asyncio

    from llog.errors import LlogError
    from llog.wiring import open_metadata_store

    try:
        async with asyncio.timeout(settings.request_timeout_ms / 1_000):
            async with await open_metadata_store(settings.metadata_url, settings) as store:
                return await store.server_time_ms()
    except (TimeoutError, LlogError):
        return None


def s3_endpoint(settings: Settings) -> str | None:
    """The S3 server of the settings; None when no store is in S3."""
    if not any(url.startswith("s3:") for url in (settings.objects_url, settings.wal_url)):
        return None
    return settings.s3_endpoint_url or f"https://s3.{settings.s3_region_name}.amazonaws.com"


async def _http_clock(url: str, timeout_ms: int) -> int | None:
    """The `Date` header of any answer to an unsigned request; None without one. It counts whole seconds."""
    import asyncio
    import http.client
    import urllib.error
    import urllib.request
    from email.utils import parsedate_to_datetime

    def ask() -> str | None:
        try:
            with urllib.request.urlopen(url, timeout=timeout_ms / 1_000) as answer:
                return str(answer.headers["Date"] or "")
        except urllib.error.HTTPError as refusal:  # usual: the request is not signed
            with refusal:
                return str(refusal.headers["Date"] or "")

    try:
        date = await asyncio.to_thread(ask)
        return int(parsedate_to_datetime(date).timestamp() * 1_000) if date else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
