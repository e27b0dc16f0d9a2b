"""Exit codes, and which error ends with which.

Why it exists: a script must be able to tell "you asked wrongly" from "the store is down, try later" from "it will
never work like this" without reading messages. One table says it; a test walks every error class.
"""

from __future__ import annotations

from typing import Final

from llog import errors

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNAVAILABLE: Final = 3
REFUSED: Final = 4

MEANINGS: Final = {
    OK: "done",
    FAILED: "failed, or a check found something wrong",
    USAGE: "wrong arguments or settings",
    UNAVAILABLE: "a store is not reachable or too slow: trying again may help",
    REFUSED: "a store refuses us or is set up wrongly: trying again does not help",
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
)


def exit_code_of(error: errors.LlogError) -> int:
    for kind, code in _TABLE:
        if isinstance(error, kind):
            return code
    if isinstance(error, errors.StoreError) and error.retriable:
        return UNAVAILABLE
    return FAILED
