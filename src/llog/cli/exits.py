"""Exit codes, and which error ends with which.

Why it exists: a script must be able to tell "you asked wrongly" from "the store is down, try later" from "it will
never work like this" from "it may have happened" without reading messages. One table says it; a test walks every class.
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
    OK: "done",
    FAILED: "failed, or a check found something wrong",
    USAGE: "wrong arguments or settings",
    UNAVAILABLE: "a store, a log or Spark is not reachable, too slow or busy; nothing was done: trying again may help",
    REFUSED: "a store refuses us, belongs to another cluster or is set up wrongly: trying again does not help",
    NOT_FOUND: "there is no such topic, log or key",
    UNCERTAIN: "no answer came, and it may have happened: look before trying again",
    INTERRUPTED: "interrupted by Ctrl-C",
}

# The first class that fits decides.
_TABLE: Final[tuple[tuple[type[errors.LlogError], int], ...]] = (
    (errors.SettingsError, USAGE),
    (errors.InvalidArgument, USAGE),
    (errors.StoreNotInstalled, REFUSED),
    (errors.StoreSchemeConflict, REFUSED),
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
