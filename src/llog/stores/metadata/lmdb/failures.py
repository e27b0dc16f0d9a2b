"""The table from errors of LMDB to ours."""

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

# Errors that leave the data unchanged, also during a commit.
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
# py-lmdb has no classes for these: texts of the C library.
_FULL_TEXTS: Final = ("No space left", "Disk quota exceeded", "File too large", "Cannot allocate memory")
# The text of LMDB for a short write.
_SHORT_WRITE_TEXT: Final = "Input/output error"


def translate(error: Exception, operation: str, subject: str, *, committing: bool = False) -> MetadataStoreError:
    """`committing`: the error comes from a commit, which may have happened. A full disk or map still means that it did
    not, because LMDB stops before it writes the new root."""
    for theirs, ours in _HARMLESS.items():
        if isinstance(error, theirs):
            return ours(operation, subject, str(error))
    if any(text in str(error) for text in _FULL_TEXTS):
        return MetadataFull(operation, subject, str(error))
    if _SHORT_WRITE_TEXT in str(error) and not committing:
        return MetadataFull(operation, subject, f"{error}: the disk is full or failing")
    return (MetadataUncertain if committing else MetadataUnavailable)(operation, subject, str(error))
