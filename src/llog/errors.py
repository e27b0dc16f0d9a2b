"""Every error of llog, in one tree.

An error carries fields, says what is wrong and what the caller can do. "May have happened" is a type of its
own (`UncertainOutcome`): whoever catches it must find out before trying again, never assume failure.

    LlogError
    ├── SettingsError              a variable has a value we cannot use
    │   └── SettingsErrors         several have; `errors` lists them
    ├── InvalidArgument            a caller passed a key, name or value that can never be accepted
    │   ├── ValueTooLarge          … because of its size
    │   └── UnknownStoreScheme     no installed store answers to the scheme of this URL
    ├── StoreNotInstalled          a store is known, but the packages it needs are missing or broken
    ├── StoreSchemeConflict        two installed packages claim one scheme
    ├── FormatError                bytes are not what their object claims to be
    │   ├── TruncatedInput         they end too early
    │   ├── BadMagic               they do not begin (or end) as the format says
    │   ├── ChecksumMismatch       they were changed
    │   ├── InvalidField           a length, count or field contradicts the rest
    │   ├── UnsupportedFormat      a version, codec or encoding we do not read
    │   └── DecodedTooLarge        inflating them would pass a named limit
    ├── UncertainOutcome           (mixin) the operation may have happened
    └── StoreError                 a store did not do what was asked; `retriable` says whether asking again may help
        ├── ObjectStoreError
        │   ├── ObjectNotFound
        │   ├── ObjectAlreadyExists
        │   ├── ObjectRangeInvalid     the range lies outside the object
        │   ├── ObjectStoreThrottled   slow down (503, 429): nothing happened
        │   ├── ObjectStoreTimeout     a read got no answer in time
        │   ├── ObjectStoreUnavailable no connection: nothing happened
        │   ├── ObjectStoreUncertain   a write got no answer (also UncertainOutcome)
        │   ├── ObjectStoreDenied      credentials or permissions
        │   ├── ObjectStoreMisconfigured  bucket or directory missing or unusable, found at start
        │   └── ObjectStoreFull        no space left
        ├── StoreClosed                used after close()
        └── MetadataStoreError
            ├── VersionConflict        the expected version (or absence) was not there: nothing happened
            ├── MetadataTimeout        a read got no answer in time
            ├── MetadataUnavailable    no leader, no connection: nothing happened
            ├── MetadataUncertain      a write got no answer (also UncertainOutcome)
            ├── MetadataDenied         credentials or permissions
            ├── MetadataMisconfigured  the store is there but cannot be used as set up
            ├── MetadataFull           no space left
            └── SessionLost            the session an ephemeral record was bound to is gone: nothing happened
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "BadMagic",
    "ChecksumMismatch",
    "DecodedTooLarge",
    "FormatError",
    "InvalidArgument",
    "InvalidField",
    "LlogError",
    "MetadataDenied",
    "MetadataFull",
    "MetadataMisconfigured",
    "MetadataStoreError",
    "MetadataTimeout",
    "MetadataUnavailable",
    "MetadataUncertain",
    "ObjectAlreadyExists",
    "ObjectNotFound",
    "ObjectRangeInvalid",
    "ObjectStoreDenied",
    "ObjectStoreError",
    "ObjectStoreFull",
    "ObjectStoreMisconfigured",
    "ObjectStoreThrottled",
    "ObjectStoreTimeout",
    "ObjectStoreUnavailable",
    "ObjectStoreUncertain",
    "SessionLost",
    "SettingsError",
    "SettingsErrors",
    "StoreClosed",
    "StoreError",
    "StoreNotInstalled",
    "StoreSchemeConflict",
    "TruncatedInput",
    "UncertainOutcome",
    "UnknownStoreScheme",
    "UnsupportedFormat",
    "ValueTooLarge",
    "VersionConflict",
]


class LlogError(Exception):
    """The root: catch this to catch everything llog raises on purpose."""


class SettingsError(LlogError):
    """A setting cannot be used; names the variable, the value and what is accepted."""

    def __init__(self, variable: str, value: str, accepted: str) -> None:
        self.variable, self.value, self.accepted = variable, value, accepted
        super().__init__(f"{variable}={value!r} is not usable: {accepted}")


class SettingsErrors(SettingsError):
    """Several settings cannot be used, all of them in `errors`; `variable` and the others describe the first."""

    def __init__(self, errors: Sequence[SettingsError]) -> None:
        self.errors = tuple(errors)
        first = self.errors[0]
        super().__init__(first.variable, first.value, first.accepted)
        self.args = ("\n".join([f"{len(self.errors)} settings are not usable:", *(f"  {e}" for e in self.errors)]),)


class InvalidArgument(LlogError, ValueError):
    """A caller's value can never be accepted; names the argument."""

    def __init__(self, argument: str, reason: str) -> None:
        self.argument, self.reason = argument, reason
        super().__init__(f"{argument}: {reason}")


class ValueTooLarge(InvalidArgument):
    def __init__(self, argument: str, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        super().__init__(argument, f"{size} bytes, more than the limit of {limit}")


class UnknownStoreScheme(InvalidArgument):
    """No installed store answers to this URL; `installed` lists the schemes that would do."""

    def __init__(self, url: str, kind: str, installed: Sequence[str], hint: str = "") -> None:
        self.url, self.installed = url, tuple(installed)
        super().__init__(f"{kind} URL {url!r}", f"no store for this scheme; installed: {', '.join(installed)}{hint}")


class StoreNotInstalled(LlogError):
    """The store is known here but cannot be loaded; `remedy` says what to do."""

    def __init__(self, url: str, reason: str, remedy: str) -> None:
        self.url, self.reason, self.remedy = url, reason, remedy
        super().__init__(f"the store of {url!r} cannot be loaded ({reason}): {remedy}")


class StoreSchemeConflict(LlogError):
    """Two packages claim one scheme; which one opens the store must not depend on chance."""

    def __init__(self, scheme: str, claims: Sequence[str]) -> None:
        self.scheme, self.claims = scheme, tuple(claims)
        super().__init__(f"the scheme {scheme!r} is claimed by {' and by '.join(claims)}: uninstall one of them")


class FormatError(LlogError):
    """Bytes are not what they claim to be. `source` names the object (a URI, a request, a file)."""

    def __init__(self, source: str, reason: str) -> None:
        self.source, self.reason = source, reason
        super().__init__(f"{source}: {reason}")


class TruncatedInput(FormatError):
    pass


class BadMagic(FormatError):
    pass


class ChecksumMismatch(FormatError):
    def __init__(self, source: str, what: str, stored: int, computed: int) -> None:
        self.stored, self.computed = stored, computed
        super().__init__(source, f"{what}: stored checksum {stored:#010x}, computed {computed:#010x}")


class InvalidField(FormatError):
    pass


class UnsupportedFormat(FormatError):
    pass


class DecodedTooLarge(FormatError):
    pass


class UncertainOutcome(LlogError):
    """The operation may or may not have happened. Read before trying again (PROTOCOL R4)."""


class StoreError(LlogError):
    """A store did not do what was asked. `operation` and `subject` name the call, `retriable` whether to ask again."""

    retriable = False

    def __init__(self, operation: str, subject: str, reason: str = "") -> None:
        self.operation, self.subject, self.reason = operation, subject, reason
        super().__init__(f"{operation} {subject}: {reason or type(self).__name__}")


class ObjectStoreError(StoreError):
    pass


class ObjectNotFound(ObjectStoreError):
    pass


class ObjectAlreadyExists(ObjectStoreError):
    pass


class ObjectRangeInvalid(ObjectStoreError):
    pass


class ObjectStoreThrottled(ObjectStoreError):
    retriable = True


class ObjectStoreTimeout(ObjectStoreError):
    retriable = True


class ObjectStoreUnavailable(ObjectStoreError):
    retriable = True


class ObjectStoreUncertain(ObjectStoreError, UncertainOutcome):
    retriable = True


class ObjectStoreDenied(ObjectStoreError):
    pass


class ObjectStoreMisconfigured(ObjectStoreError):
    pass


class ObjectStoreFull(ObjectStoreError):
    pass


class MetadataStoreError(StoreError):
    pass


class VersionConflict(MetadataStoreError):
    """The record was not at the expected version (or not absent). Some stores do not say what they found."""

    def __init__(self, operation: str, subject: str, expected: int) -> None:
        self.expected = expected
        super().__init__(operation, subject, "exists already" if expected < 0 else f"not at version {expected}")


class MetadataTimeout(MetadataStoreError):
    retriable = True


class MetadataUnavailable(MetadataStoreError):
    retriable = True


class MetadataUncertain(MetadataStoreError, UncertainOutcome):
    retriable = True


class MetadataDenied(MetadataStoreError):
    pass


class MetadataMisconfigured(MetadataStoreError):
    pass


class MetadataFull(MetadataStoreError):
    pass


class SessionLost(MetadataStoreError):
    pass


class StoreClosed(StoreError):
    pass
