"""What a vacuum tells: how much there was, what went, what stayed and why."""

from __future__ import annotations

import msgspec


class Swept(msgspec.Struct):
    """What became of the objects of one place: all blobs, or the segments of one topic."""

    surveyed: int = 0
    """Old enough to be looked at."""
    surveyed_bytes: int = 0
    deleted: int = 0
    deleted_bytes: int = 0


class VacuumReport(msgspec.Struct, kw_only=True):
    """What one vacuum did, or with `dry_run` would do, as far as it can be told without asking the logs."""

    dry_run: bool
    blobs_before_ms: int
    segments_before_ms: int
    blobs_deleted: int = 0
    bytes_deleted: int = 0
    segments_marked: int = 0
    segments_deleted: int = 0
    phantoms_removed: int = 0
    kept_unreadable: int = 0
    kept_unknown_log: int = 0
    kept_unchecked: int = 0
    kept_planned: int = 0
    """Blobs that a commit plan of the sink names, which is not finished."""
    kept_unread: int = 0
    """They may be named by a record that cannot be read."""
    plans_expired: list[str] = []
    """Keys of plans that nobody finished for so long that they keep no blob any more."""
    unreadable_count: int = 0
    unreadable: list[str] = []
    """Metadata records that could not be read (at most VACUUM_UNREADABLE_NAMED_MAX)."""
    places: dict[str, Swept] = {}
    """By the beginning of their URIs."""
    names: list[str] = []
    """URIs of what went (at most VACUUM_REPORT_NAMES_MAX)."""
