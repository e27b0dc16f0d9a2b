"""Exit codes, and the code each error class ends with.

A script can tell wrong arguments from an unreachable store, a lasting refusal and an uncertain outcome without reading
messages. A test checks that the table covers every error class.
"""

from __future__ import annotations

from typing import Final

from llog import errors

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNAVAILABLE: Final = 3
REFUSED: Final = 4
NOT_FOUND: Final = 5
UNCERTAIN: Final = 6
INTERRUPTED: Final = 130

MEANINGS: Final = {
    OK: "success",
    FAILED: "the command failed, or a check found a fault",
    USAGE: "wrong arguments or settings",
    UNAVAILABLE: "a store, a log or Spark is unreachable, too slow or busy; nothing was changed, a retry may succeed",
    REFUSED: "a store denies access, belongs to another cluster or is misconfigured; a retry does not help",
    NOT_FOUND: "the topic, log, key or run does not exist",
    UNCERTAIN: "no answer arrived, and the change may have happened; check before you retry",
    INTERRUPTED: "interrupted by Ctrl-C",
}

# The first matching class decides.
_TABLE: Final[tuple[tuple[type[errors.LlogError], int], ...]] = (
    (errors.SettingsError, USAGE),
    (errors.InvalidArgument, USAGE),
    (errors.StoreNotInstalled, REFUSED),
    (errors.StoreSchemeConflict, REFUSED),
    (errors.LoadTestNotInstalled, REFUSED),
    (errors.ObjectStoreDenied, REFUSED),
    (errors.ObjectStoreMisconfigured, REFUSED),
    (errors.ObjectStoreFull, REFUSED),
    (errors.MetadataDenied, REFUSED),
    (errors.MetadataMisconfigured, REFUSED),
    (errors.MetadataFull, REFUSED),
    (errors.ClusterMismatch, REFUSED),
    (errors.TopicNotFound, NOT_FOUND),
    (errors.PartitionNotInitialized, NOT_FOUND),
    (errors.PartitionOutOfRange, NOT_FOUND),
    (errors.RunNotFound, NOT_FOUND),
    (errors.UncertainOutcome, UNCERTAIN),
    (errors.SparkSessionFailed, UNAVAILABLE),
)


def exit_code_of(error: errors.LlogError) -> int:
    for kind, code in _TABLE:
        if isinstance(error, kind):
            return code
    if isinstance(error, errors.StoreError | errors.LogError | errors.TopicError) and error.retriable:
        return UNAVAILABLE
    return FAILED
