"""LMDB's errors and ours: the one table at this border."""

from __future__ import annotations

from typing import Final

import lmdb

from llog.errors import (
    MetadataDenied,
    MetadataFull,
    MetadataMisconfigured,
    MetadataStoreError,
    MetadataUnavailable,
    MetadataUncertain,
)

# Errors that leave the data untouched, whenever they come.
_HARMLESS: Final[dict[type[Exception], type[MetadataStoreError]]] = {
    lmdb.MapFullError: MetadataFull,
    lmdb.DiskError: MetadataFull,
    lmdb.TxnFullError: MetadataFull,
    MemoryError: MetadataFull,
    lmdb.MapResizedError: MetadataUnavailable,
    lmdb.ReadersFullError: MetadataUnavailable,
    lmdb.BadRslotError: MetadataUnavailable,
    lmdb.LockError: MetadataUnavailable,
    lmdb.ReadonlyError: MetadataDenied,
    PermissionError: MetadataDenied,
    lmdb.InvalidError: MetadataMisconfigured,
    lmdb.VersionMismatchError: MetadataMisconfigured,
    lmdb.CorruptedError: MetadataMisconfigured,
    lmdb.PageNotFoundError: MetadataMisconfigured,
    lmdb.PanicError: MetadataMisconfigured,
}
# Not classes of their own in py-lmdb: the text of the C library's error.
_FULL_TEXTS: Final = ("No space left", "Disk quota exceeded", "File too large", "Cannot allocate memory")
# What LMDB calls a disk that took only a part of what it was given.
_SHORT_WRITE_TEXT: Final = "Input/output error"


def translate(error: Exception, operation: str, subject: str, *, committing: bool = False) -> MetadataStoreError:
    """Our error for one of theirs. `committing`: it came from a commit that may have happened; even then a full disk
    or map says that it did not, since it stops LMDB before the root is moved."""
    for theirs, ours in _HARMLESS.items():
        if isinstance(error, theirs):
            return ours(operation, subject, str(error))
    if any(text in str(error) for text in _FULL_TEXTS):
        return MetadataFull(operation, subject, str(error))
    if _SHORT_WRITE_TEXT in str(error) and not committing:
        return MetadataFull(operation, subject, f"{error}: the disk is full or failing")
    return (MetadataUncertain if committing else MetadataUnavailable)(operation, subject, str(error))
