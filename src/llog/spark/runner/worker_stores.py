"""The object stores of a Python worker: what travels with a job to name them, and how they are opened there.

Why it exists: executors move bytes, so they need the object stores, and nothing else of a cluster: no metadata store,
no setting of the machine they run on. What names the stores travels with the job; what opens them (keys, tokens) never
does, since plans are logged, shown and kept: it comes from the worker's own environment.

What must stay true: no row of the settings' table that is secret is sent; of a worker's environment nothing but those
rows is read; stores are opened in the process that uses them, after the fork.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from llog.errors import InvalidArgument
from llog.pipeline.runtime.tasks import TaskTools
from llog.settings import Settings, settings_table
from llog.settings.urls import mask_url, scheme_of
from llog.stores.objects.port import ObjectStore
from llog.stores.objects.retrying import RetryingObjectStore
from llog.wiring import ObjectStores

SENT: Final = (
    "objects_url",
    "wal_url",
    "root_prefix",
    "client_identifier",
    "request_timeout_ms",
    "s3_endpoint_url",
    "s3_region_name",
)


def sent_settings(settings: Settings) -> dict[str, str | int]:
    """What a job carries. Raises `InvalidArgument` for stores that no other process could open."""
    for name in ("objects_url", "wal_url"):
        url = getattr(settings, name)
        if scheme_of(url) == "memory":
            raise InvalidArgument(name, "memory:// is seen by this process only, not by Spark's: run in process")
        if mask_url(url) != url:
            raise InvalidArgument(name, "a secret in a URL would be shown in Spark's plans: give it by environment")
    values = {name: getattr(settings, name) for name in SENT}
    return {name: value for name, value in values.items() if value is not None}


def settings_in_worker(sent: Mapping[str, str | int], environ: Mapping[str, str]) -> Settings:
    """Exactly what was sent, with the secrets of this process. The metadata store is one that holds nothing."""
    secrets = {name: environ[name] for name in secret_variables() if name in environ}
    return Settings.from_env(secrets, metadata_url="memory://", **sent)


def secret_variables() -> list[str]:
    rows = [row for row in settings_table() if row.secret and row.name.startswith("s3_")]
    return [name for row in rows for name in (f"LLOG_{row.name.upper()}", *row.fallbacks)]


def tools_on(objects: ObjectStores) -> TaskTools:
    """What tasks work with: every store asks again when it is told to wait (wrappers keep nothing, so each call makes
    its own)."""

    async def find_object(uri: str) -> tuple[ObjectStore, str]:
        found = await objects.resolve(uri)
        return RetryingObjectStore(found.store), found.name

    async def open_store(url: str) -> ObjectStore:
        return RetryingObjectStore(await objects.at(url))

    return TaskTools(find_object, open_store)
