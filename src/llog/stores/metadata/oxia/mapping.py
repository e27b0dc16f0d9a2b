"""The table from errors of the client to ours, and the URL of the store."""

from __future__ import annotations

from typing import Final

from llog.errors import (
    InvalidArgument,
    LlogError,
    MetadataDenied,
    MetadataMisconfigured,
    MetadataStoreError,
    MetadataTimeout,
    MetadataUnavailable,
    MetadataUncertain,
    SessionLost,
    SettingsError,
    StoreClosed,
    VersionConflict,
)
from llog.settings.urls import OxiaTarget, mask_url, parse_oxia_url
from llog.stores.metadata.oxia import client as oxia

_TABLE: Final[dict[type[oxia.OxiaError], type[MetadataStoreError]]] = {
    oxia.SessionExpired: SessionLost,
    oxia.Unavailable: MetadataUnavailable,
    oxia.ReadTimeout: MetadataTimeout,
    oxia.Uncertain: MetadataUncertain,
    oxia.Denied: MetadataDenied,
    oxia.Misconfigured: MetadataMisconfigured,
}


def to_llog(error: oxia.OxiaError, operation: str, subject: str) -> LlogError:
    """The error to raise for `error`."""
    if isinstance(error, oxia.ClientClosed):
        return StoreClosed(operation, subject)
    if isinstance(error, oxia.InvalidRequest):
        return InvalidArgument(operation, str(error))
    if isinstance(error, oxia.VersionMismatch):
        return VersionConflict(operation, subject, error.expected)
    return _TABLE[type(error)](operation, subject, str(error))


def to_outcome(error: oxia.OxiaError, operation: str, subject: str) -> MetadataStoreError:
    """The outcome of one write of a call."""
    if isinstance(error, oxia.ClientClosed):
        return MetadataUnavailable(operation, subject, "the store was closed before it was sent")
    translated = to_llog(error, operation, subject)
    return (
        translated if isinstance(translated, MetadataStoreError) else MetadataStoreError(operation, subject, str(error))
    )


# -- URL ---------------------------------------------------------------------------------------------------------------


def parse_url(url: str) -> OxiaTarget:
    """Raises `SettingsError`."""
    try:
        return parse_oxia_url(url)
    except ValueError as reason:
        accepted = "oxia://host[:port][,host[:port]…][/namespace], or oxia+tls://… for TLS"
        raise SettingsError("LLOG_METADATA_URL", mask_url(url), f"{reason}; accepted: {accepted}") from None
