"""Where a backup is stored: one file, or parts in an object store followed by a manifest.

An incomplete backup is never taken for a complete one. A file gets its name when all of it is on disk. In an object
store the manifest is written last and names every part with length and checksum; only backups with a manifest are
listed.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO, Final

from msgspec.structs import replace

from llog.errors import ChecksumMismatch, InvalidArgument, InvalidField, ObjectNotFound, TruncatedInput
from llog.formats.backup import BackupManifest, BackupPart, decode_manifest
from llog.formats.buffers import crc32c
from llog.formats.values import encode_value
from llog.limits import MIB
from llog.log.keys import Keys
from llog.stores.objects.port import Buffer, ObjectStore

# How much of a backup file is read at a time.
BACKUP_READ_BYTES: Final = 4 * MIB


class BackupPlace(abc.ABC):
    """One backup, being written (`begin`, `put_part` …, `finish` or `give_up`) or read (`parts`)."""

    where: str

    @abc.abstractmethod
    async def begin(self) -> None:
        """Raise now what would prevent `finish`."""

    @abc.abstractmethod
    async def put_part(self, data: bytes) -> None: ...

    @abc.abstractmethod
    async def finish(self, manifest: BackupManifest) -> BackupManifest:
        """Complete the backup; return the manifest with its parts."""

    @abc.abstractmethod
    async def give_up(self) -> None:
        """Remove what was written so far, if possible."""

    @abc.abstractmethod
    def parts(self) -> AsyncIterator[Buffer]:
        """All bytes of the backup, in chunks."""


class BackupFile(BackupPlace):
    """One file. Writing never replaces an existing file."""

    def __init__(self, path: Path) -> None:
        self.path, self.where = path, str(path)
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.torn")
        self._file: BinaryIO | None = None
        self._parts: list[BackupPart] = []

    async def begin(self) -> None:
        await asyncio.to_thread(self._begin)

    def _begin(self) -> None:
        if self.path.exists():
            raise InvalidArgument("backup file", f"{self.where} already exists; choose another name")
        self._file = self._opened("xb", self._temporary)

    async def put_part(self, data: bytes) -> None:
        assert self._file is not None
        await asyncio.to_thread(self._file.write, data)
        self._parts.append(BackupPart(byte_length=len(data), crc32c=crc32c(data)))

    def _opened(self, mode: str, path: Path) -> BinaryIO:
        try:
            return open(path, mode)  # type: ignore[return-value]
        except OSError as error:
            raise InvalidArgument("backup file", f"{path} cannot be opened: {error.strerror}") from error

    async def finish(self, manifest: BackupManifest) -> BackupManifest:
        await asyncio.to_thread(self._publish)
        return replace(manifest, parts=tuple(self._parts))

    def _publish(self) -> None:
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        try:
            os.link(self._temporary, self.path)  # unlike a rename, a link replaces nothing
        except FileExistsError:
            raise InvalidArgument("backup file", f"{self.where} already exists; choose another name") from None
        self._temporary.unlink()
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    async def give_up(self) -> None:
        if self._file is not None:
            self._file.close()
            with contextlib.suppress(FileNotFoundError):
                self._temporary.unlink()

    async def parts(self) -> AsyncIterator[Buffer]:
        file = await asyncio.to_thread(self._opened, "rb", self.path)
        try:
            while chunk := await asyncio.to_thread(file.read, BACKUP_READ_BYTES):
                yield chunk
        finally:
            file.close()


class BackupObjects(BackupPlace):
    """Parts below `{root}/@backup/{backup id}/`, then the manifest."""

    def __init__(self, store: ObjectStore, keys: Keys, backup_id: str) -> None:
        self._store, self._keys, self.backup_id = store, keys, backup_id
        self._manifest_name = keys.backup_manifest_object(backup_id)
        self.where = store.uri(self._manifest_name).rpartition("/")[0]
        self._parts: list[BackupPart] = []

    async def begin(self) -> None:
        """The backup id is unique, so nothing can be in the way."""

    async def put_part(self, data: bytes) -> None:
        await self._store.put(self._keys.backup_part_object(self.backup_id, len(self._parts)), [data])
        self._parts.append(BackupPart(byte_length=len(data), crc32c=crc32c(data)))

    async def finish(self, manifest: BackupManifest) -> BackupManifest:
        complete = replace(manifest, parts=tuple(self._parts))
        await self._store.put(self._manifest_name, [encode_value(complete)])
        return complete

    async def give_up(self) -> None:
        names = [self._keys.backup_part_object(self.backup_id, part) for part in range(len(self._parts) + 1)]
        await self._store.delete_many(names)

    async def manifest(self) -> BackupManifest:
        try:
            data = await self._store.get(self._manifest_name)
        except ObjectNotFound:
            reason = "no manifest: the backup is incomplete or does not exist, and cannot be restored"
            raise TruncatedInput(self.where, reason) from None
        return decode_manifest(data, self._store.uri(self._manifest_name))

    async def parts(self) -> AsyncIterator[Buffer]:
        for number, part in enumerate((await self.manifest()).parts):
            name = self._keys.backup_part_object(self.backup_id, number)
            try:
                data = await self._store.get(name)
            except ObjectNotFound:
                raise TruncatedInput(self.where, f"part {number} is missing: the backup cannot be restored") from None
            if len(data) != part.byte_length:
                raise InvalidField(
                    self._store.uri(name), f"has {len(data)} bytes, the manifest says {part.byte_length}"
                )
            computed = crc32c(data)
            if computed != part.crc32c:
                raise ChecksumMismatch(self._store.uri(name), "backup part", part.crc32c, computed)
            yield data


async def list_backups(store: ObjectStore, keys: Keys) -> AsyncIterator[BackupManifest]:
    """Every complete backup in the store, oldest first."""
    async for found in store.list(keys.backups()):
        parsed = keys.parse_object(found.name)
        if parsed is not None and parsed.kind == "backup_manifest":
            yield await BackupObjects(store, keys, parsed.object_id).manifest()
