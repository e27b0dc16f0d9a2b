"""Append: upload one blob for many logs, then commit each log. The order that safety hangs on is here.

    0. know every log's control record (initialize what is missing), and only then draw the blob's id  (h04)
    1. put the blob; it is complete and durable before anything names it                               (R1)
    2. commit: one compare-and-set per log moves the counter; this is the commit point
    3. compare-and-set stores: write the index entries, off the path of the acknowledgement            (settle)

Why the order is safe: a crash before 2 leaves an orphan that vacuum removes; the id drawn after 0 makes its instant
newer than any horizon that was raised for a log that did not exist yet; a crash between 2 and 3 leaves `pending`,
which anyone settles. On an atomic store 2 and 3 are one transaction for all logs of the flush.

A refused log is a result of its own and never harms the others. Commits of one log keep the order of calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from llog.errors import AppendNotCommitted, InvalidArgument, LogError
from llog.formats.crc import Buffer
from llog.formats.shared_blob import BlobGroup, build_shared_blob
from llog.limits import LOG_UPLOADS_MAX
from llog.log.commit import Committed, Committer
from llog.log.context import LogContext
from llog.log.control import AppendSlice
from llog.log.ids import new_object_id
from llog.log.keys import Log
from llog.log.producers import ProducerClaim


class EncodedGroup(NamedTuple):
    """The records of one log, encoded and ready to upload."""

    log: Log
    msg_count: int
    encoding: str
    body: Sequence[Buffer]
    max_timestamp_ms: int = -1
    producers: tuple[ProducerClaim, ...] = ()


class Appended(NamedTuple):
    """Where a group landed."""

    log: Log
    start_offset: int
    end_offset: int
    index_key: str
    wal_uri: str


AppendOutcome = Appended | LogError


class Appender:
    """The append path of one process. One per metadata store; used on one event loop."""

    def __init__(self, context: LogContext, *, first_offset: int = 1) -> None:
        if context.wal is None:
            raise InvalidArgument("context", "has no store to put blobs into")
        self.context, self._wal = context, context.wal
        self.committer = Committer(context, first_offset=first_offset)

    async def append(self, groups: Sequence[EncodedGroup]) -> list[AppendOutcome]:
        """One outcome per group, in order. At most one group per log."""
        if len({group.log for group in groups}) != len(groups):
            raise InvalidArgument("groups", "one log occurs twice in one append")
        outcomes: dict[Log, AppendOutcome] = {}
        waiting = list(groups)
        for _ in range(LOG_UPLOADS_MAX):
            waiting = await self._append_once(waiting, outcomes)
            if not waiting:
                break
        for group in waiting:
            reason = f"{LOG_UPLOADS_MAX} blobs in turn were too old when they were to be committed"
            outcomes[group.log] = AppendNotCommitted(*group.log, reason)
        return [outcomes[group.log] for group in groups]

    async def _append_once(
        self, groups: Sequence[EncodedGroup], outcomes: dict[Log, AppendOutcome]
    ) -> list[EncodedGroup]:
        """One blob's worth; the groups that need another blob."""
        incarnations = await self._know(groups, outcomes)
        try:
            known = [group for group in groups if group.log in incarnations]
            if not known:
                return []
            parts = await self._upload(known, incarnations)
            committed = await self.committer.commit(parts)
        finally:
            self.committer.release(incarnations)
        again = []
        for group in known:
            outcome = committed[group.log]
            if isinstance(outcome, Committed):
                key = self.context.keys.index_entry(group.log, outcome.end_offset).path
                outcomes[group.log] = Appended(
                    group.log, outcome.start_offset, outcome.end_offset, key, parts[group.log].data_key
                )
            elif outcome is None:
                again.append(group)
            else:
                outcomes[group.log] = outcome
        return again

    async def _know(self, groups: Sequence[EncodedGroup], outcomes: dict[Log, AppendOutcome]) -> dict[Log, int]:
        """The incarnation of every log that can be appended to; the others get their error."""
        found = await asyncio.gather(*(self.committer.know(g.log) for g in groups), return_exceptions=True)
        incarnations: dict[Log, int] = {}
        trouble: BaseException | None = None
        for group, answer in zip(groups, found, strict=True):
            if isinstance(answer, LogError):
                outcomes[group.log] = answer
            elif isinstance(answer, BaseException):
                trouble = answer
            else:
                incarnations[group.log] = answer
        if trouble is not None:
            self.committer.release(incarnations)
            raise trouble
        return incarnations

    async def _upload(self, groups: Sequence[EncodedGroup], incarnations: dict[Log, int]) -> dict[Log, AppendSlice]:
        context = self.context
        now_ms = context.now_ms()
        name = context.keys.blob_object(new_object_id(now_ms, context.random_bits))
        blob = build_shared_blob(
            [BlobGroup(g.log.topic, g.log.partition, g.msg_count, g.encoding, g.body) for g in groups],
            created_at_ms=now_ms,
            writer_id=context.options.writer_id,
        )
        await self._wal.put(name, blob.buffers)
        uri = self._wal.uri(name)
        return {
            group.log: AppendSlice(
                append_id=f"{context.random_bits(128):032x}",
                incarnation=incarnations[group.log],
                data_key=uri,
                blob_created_at_ms=now_ms,
                encoding=group.encoding,
                byte_offset=part.byte_offset,
                byte_length=part.byte_length,
                msg_count=group.msg_count,
                max_timestamp_ms=group.max_timestamp_ms,
                producers=group.producers,
            )
            for group, part in zip(groups, blob.slices, strict=True)
        }

    async def close(self) -> None:
        """Finish what is being settled, and leave no `pending` behind that is known to be settled."""
        await self.committer.close()
