"""Filling logs and reading them back: what tests of jobs share, whatever stores they run on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from llog.formats.records.encode import encode_records
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.append.known import Growth
from llog.log.context import LogContext
from llog.log.keys import Log
from llog.log.read.read import iter_runs
from llog.log.read.records import LogRecord

STAMP_MS: Final = 1_760_000_000_000
Records = dict[Log, list[LogRecord]]


def group_of(
    log: Log,
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    stamps_ms: int | Sequence[int] = STAMP_MS,
) -> EncodedGroup:
    """One batch of records."""
    body = encode_records(values, keys=keys, timestamps_ms=stamps_ms)
    newest_ms = stamps_ms if isinstance(stamps_ms, int) else max(stamps_ms)
    return EncodedGroup(log, len(values), "kafka-v2", [body], newest_ms)


async def append(context: LogContext, *blobs: Sequence[EncodedGroup]) -> list[Appended]:
    """One blob after the other; every group lands, or this is no test."""
    appender, landed = Appender(context, growth=Growth.HTTP), []
    for groups in blobs:
        for outcome in await appender.append(groups):
            assert isinstance(outcome, Appended), outcome
            landed.append(outcome)
    await appender.close()
    return landed


async def read_all(context: LogContext, logs: Sequence[Log]) -> Records:
    """Every record of these logs, which still begin at 1."""
    return {log: [record async for run in iter_runs(context, log, 1) for record in run.records()] for log in logs}
