"""Cost read from running processes: `/metrics` of brokers and compactors at the begin and at the end of a window, and
the difference extrapolated to days and months.

Counters add up over processes; stored bytes and objects describe the shared bucket, so the largest counts. A process
that restarts within the window counts from its restart.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from llog.cost.activity import SECONDS_PER_DAY
from llog.cost.estimate import (
    Estimate,
    Figure,
    Requests,
    assemble,
    machine_item,
    request_items,
    storage_items,
)
from llog.cost.inputs import PriceList
from llog.cost.kafka import BYTES_PER_MB, KafkaLayout
from llog.errors import InvalidArgument
from llog.limits import MIB

LIVE_PAGE_BYTES_MAX: Final = 64 * MIB
LIVE_PAGE_TIMEOUT_S: Final = 10.0
LIVE_PROCESSES_MAX: Final = 1_000

Page = Mapping[str, Any]
ReadPage = Callable[[str], Page]


class Reading(msgspec.Struct, frozen=True):
    """What one page counts; the parts that a process does not have are 0."""

    started_s: float
    records: float
    payload_bytes: float
    consumed_bytes: float
    flushes: float
    keys: float
    compacted_runs: float
    requests: Mapping[str, float]
    """By operation."""
    metadata_calls: float
    wal_bytes: float
    stored_bytes: float
    objects: float
    is_broker: bool


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The token must not follow a redirect to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


def http_page(token: str | None) -> ReadPage:
    """Reads `/metrics` below a base URL. Raises `InvalidArgument` with the URL and the reason."""

    opener = urllib.request.build_opener(_NoRedirects)

    def read(url: str) -> Page:
        check_url(url)
        request = urllib.request.Request(f"{url.rstrip('/')}/metrics", headers={"accept": "application/json"})
        if token:
            request.add_header("authorization", f"Bearer {token}")
        try:
            with opener.open(request, timeout=LIVE_PAGE_TIMEOUT_S) as answer:
                body = answer.read(LIVE_PAGE_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            hint = "; set LLOG_HTTP_READ_TOKEN" if error.code in (401, 403) else ""
            raise InvalidArgument("--live", f"{url}/metrics answered {error.code}{hint}") from None
        except OSError as error:
            raise InvalidArgument("--live", f"{url}/metrics cannot be read: {error}") from None
        if len(body) > LIVE_PAGE_BYTES_MAX:
            raise InvalidArgument("--live", f"{url}/metrics exceeds {LIVE_PAGE_BYTES_MAX} bytes")
        try:
            page = msgspec.json.decode(body)
        except msgspec.DecodeError:
            page = None
        if not isinstance(page, dict):
            raise InvalidArgument("--live", f"{url}/metrics is not a metrics page of llog")
        return page

    return read


def check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArgument("--live", f"{url!r} is not a URL like http://127.0.0.1:8080")


def observe(
    urls: Sequence[str],
    window_s: float,
    read: ReadPage,
    *,
    sleep: Callable[[float], None] = time.sleep,
    now_s: Callable[[], float] = time.monotonic,
) -> tuple[list[Reading], list[Reading], float]:
    """Readings at the begin and the end, and the seconds between them."""
    if not window_s > 0:
        raise InvalidArgument("--window", f"must be above 0 seconds, not {window_s:g}")
    if not 0 < len(urls) <= LIVE_PROCESSES_MAX:
        raise InvalidArgument("--live", f"give 1 to {LIVE_PROCESSES_MAX} URLs, not {len(urls)}")
    began_s = now_s()
    begin = [reading_of(read(url)) for url in urls]
    sleep(window_s)
    ended_s = now_s()
    return begin, [reading_of(read(url)) for url in urls], ended_s - began_s


def reading_of(page: Page) -> Reading:
    operations = _part(page, "s3", "operations")
    metadata = _part(page, "metadata", "operations")
    billing = _part(page, "s3", "billing")
    return Reading(
        started_s=_number(page, "process", "start_time_seconds"),
        records=_number(page, "log", "append_records"),
        payload_bytes=_number(page, "log", "append_payload_bytes"),
        consumed_bytes=_total(_part(page, "consume", "payload_bytes")),
        flushes=_total(_part(page, "batching", "flushes")),
        keys=_number(page, "append", "runs"),
        compacted_runs=_number(page, "log", "compact_runs"),
        requests={name: _number(one, "requests") for name, one in operations.items() if isinstance(one, dict)},
        metadata_calls=sum(_number(one, "calls") for one in metadata.values() if isinstance(one, dict)),
        wal_bytes=_number(billing, "tiers", "wal", "stored_bytes"),
        stored_bytes=_number(billing, "stored_bytes"),
        objects=_number(billing, "object_count"),
        is_broker="broker" in page,
    )


def live_estimate(
    begin: Sequence[Reading],
    end: Sequence[Reading],
    window_s: float,
    prices: PriceList | None = None,
    kafka: KafkaLayout | None = None,
    *,
    cores: float = 0.0,
    source: str = "live",
) -> Estimate:
    """The difference of two readings, extrapolated. `cores` are those of all machines together."""
    prices = prices or PriceList()
    both = zip(begin, end, strict=True)
    pairs = [(_zero(last) if last.started_s > first.started_s else first, last) for first, last in both]

    def rate(name: str) -> float:
        return float(sum(getattr(last, name) - getattr(first, name) for first, last in pairs)) / window_s

    def requests_per_day(*operations: str) -> dict[str, float]:
        found = {"of brokers": 0.0, "of compactors": 0.0}
        for first, last in pairs:
            who = "of brokers" if last.is_broker else "of compactors"
            for name in operations:
                more = last.requests.get(name, 0.0) - first.requests.get(name, 0.0)
                found[who] += more / window_s * SECONDS_PER_DAY
        return found

    requests = Requests(
        requests_per_day("put"),
        requests_per_day("get", "range_get", "head"),
        sum(requests_per_day("list").values()),
    )
    stored = max((last.stored_bytes for _, last in pairs), default=0.0)
    wal = max((last.wal_bytes for _, last in pairs), default=0.0)
    items = (
        *request_items(requests, prices),
        *storage_items(wal, max(0.0, stored - wal), prices),
        machine_item(cores, prices),
    )
    measured = f"counted for {window_s:.3g} s in {len(end)} processes"
    per_day = f"{measured} × 86,400 / {window_s:.3g}"
    figures = (
        Figure("produced", rate("payload_bytes") / BYTES_PER_MB, "MB/s", measured),
        Figure("records", rate("records"), "per s", measured),
        Figure("consumed", rate("consumed_bytes") / BYTES_PER_MB, "MB/s", measured),
        Figure("objects before compaction", rate("flushes") * SECONDS_PER_DAY, "per day", f"flushes, {per_day}"),
        Figure("index keys before compaction", rate("keys") * SECONDS_PER_DAY, "per day", f"appends, {per_day}"),
        Figure(
            "objects after compaction",
            rate("compacted_runs") * SECONDS_PER_DAY,
            "per day",
            f"runs of compaction, merges included, {per_day}",
        ),
        Figure("PUT requests", sum(requests.puts.values()), "per day", per_day),
        Figure("GET requests", sum(requests.gets.values()), "per day", per_day),
        Figure("LIST requests", requests.lists, "per day", per_day),
        Figure("metadata calls", rate("metadata_calls"), "per s", measured),
        Figure("bytes stored", stored, "bytes", "last listing; the largest of all processes"),
        Figure("objects stored", max((last.objects for _, last in pairs), default=0.0), "objects", "last listing"),
    )
    produced, consumed = rate("payload_bytes") / BYTES_PER_MB, rate("consumed_bytes") / BYTES_PER_MB
    return assemble(source, figures, items, produced, consumed, prices, kafka)


def _zero(reading: Reading) -> Reading:
    """The first reading of a process that restarted: it counts from nothing."""
    nothing = {name: 0.0 for name in Reading.__struct_fields__ if name not in ("requests", "is_broker", "started_s")}
    return Reading(started_s=reading.started_s, requests={}, is_broker=reading.is_broker, **nothing)


def _part(page: Page, *path: str) -> Page:
    for step in path:
        page = page.get(step) or {}
        if not isinstance(page, dict):
            return {}
    return page


def _number(page: Page, *path: str) -> float:
    value = _part(page, *path[:-1]).get(path[-1], 0)
    return float(value) if isinstance(value, int | float) else 0.0


def _total(part: Page) -> float:
    return sum(float(value) for value in part.values() if isinstance(value, int | float))
