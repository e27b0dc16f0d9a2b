"""An asyncio client for Oxia over its gRPC protocol: batched, pipelined, with a deadline on every call.

It uses nothing of llog but `llog.limits` and `llog.concurrency`. Start at `client`.
"""

from __future__ import annotations

from llog.stores.metadata.oxia.client.client import OxiaClient
from llog.stores.metadata.oxia.client.errors import (
    ClientClosed,
    Denied,
    InvalidRequest,
    Misconfigured,
    OxiaError,
    OxiaRequestTooLarge,
    ReadTimeout,
    SessionExpired,
    Unavailable,
    Uncertain,
    VersionMismatch,
)
from llog.stores.metadata.oxia.client.notifications import Changed, Deleted, Event, Gap, ShardNotifications
from llog.stores.metadata.oxia.client.ops import Op, Outcome, OxiaDelete, OxiaPut
from llog.stores.metadata.oxia.client.queue import Submission
from llog.stores.metadata.oxia.client.reads import CEILING, Get, OxiaRecord
from llog.stores.metadata.oxia.client.rpc import OxiaLink, OxiaOptions
from llog.stores.metadata.oxia.client.sessions import ShardSession

__all__ = [
    "CEILING",
    "Changed",
    "ClientClosed",
    "Deleted",
    "Denied",
    "Event",
    "Gap",
    "Get",
    "InvalidRequest",
    "Misconfigured",
    "Op",
    "Outcome",
    "OxiaClient",
    "OxiaDelete",
    "OxiaError",
    "OxiaLink",
    "OxiaOptions",
    "OxiaPut",
    "OxiaRecord",
    "OxiaRequestTooLarge",
    "ReadTimeout",
    "SessionExpired",
    "ShardNotifications",
    "ShardSession",
    "Submission",
    "Unavailable",
    "Uncertain",
    "VersionMismatch",
]
