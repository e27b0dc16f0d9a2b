"""The PostgreSQL metadata store: `postgresql://user@host/database?llog_table=[schema.]table`."""

from __future__ import annotations

from llog.stores.metadata.postgres.store import PostgresStore, StoreSettings, open_from_url

__all__ = ["PostgresStore", "StoreSettings", "open_from_url"]
