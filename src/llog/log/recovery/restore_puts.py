"""Puts of a restore: many at a time, each only where nothing stands.

What must stay true: nothing is ever overwritten. A key that is taken is fine when it holds these very bytes (an answer
that was lost, or a restore that goes on after a crash); anything else means that somebody else writes there, and the
restore stops.
"""

from __future__ import annotations

from typing import Final

from llog.errors import MetadataStoreError, MetadataUnavailable, RestoreRefused, VersionConflict
from llog.limits import MIB, RESTORE_ROUNDS_MAX
from llog.log.context import LogContext
from llog.stores.metadata.port import ABSENT, Key, Put

RESTORE_BATCH_RECORDS: Final = 500
RESTORE_BATCH_BYTES: Final = 4 * MIB


class RestorePuts:
    """Collects; `flush` returns once everything collected is there."""

    def __init__(self, context: LogContext) -> None:
        self._context = context
        self._waiting: dict[Key, bytes] = {}
        self._bytes = 0
        self.written = 0

    async def put(self, key: Key, value: bytes) -> None:
        self._waiting[key] = value
        self._bytes += len(value)
        if len(self._waiting) >= RESTORE_BATCH_RECORDS or self._bytes >= RESTORE_BATCH_BYTES:
            await self.flush()

    async def flush(self) -> None:
        self.written += len(self._waiting)
        trouble: MetadataStoreError | None = None
        for round_number in range(RESTORE_ROUNDS_MAX):
            if not self._waiting:
                self._bytes = 0
                return
            if round_number:
                await self._context.back_off(round_number)
            trouble = await self._write_all()
        raise trouble or MetadataUnavailable("restore", next(iter(self._waiting)).path, "no answer")

    async def _write_all(self) -> MetadataStoreError | None:
        """One attempt at everything that waits; the last error that may go away by itself."""
        groups = [(Put(key, value, ABSENT),) for key, value in self._waiting.items()]
        trouble: MetadataStoreError | None = None
        doubted: list[Key] = []
        for (put,), outcome in zip(groups, await self._context.metadata.write(groups), strict=True):
            if isinstance(outcome, tuple):
                del self._waiting[put.key]
            elif outcome.retriable or isinstance(outcome, VersionConflict):
                trouble = outcome
                doubted.append(put.key)
            else:
                raise outcome
        if doubted:
            await self._compare(doubted)
        return trouble

    async def _compare(self, keys: list[Key]) -> None:
        """Of what was refused or got no answer: what is there already needs no writing."""
        try:
            found = await self._context.metadata.get_many(keys, strict=True)
        except MetadataStoreError as error:
            if error.retriable:
                return
            raise
        for key, record in zip(keys, found, strict=True):
            if record is None:
                continue
            if record.value != self._waiting[key]:
                raise RestoreRefused(
                    f"{key.path} is there already with another value: somebody else writes to this store; stop every "
                    "broker, compactor and job, empty the store below the root, and restore again"
                )
            del self._waiting[key]
