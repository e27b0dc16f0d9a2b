"""Tables and functions of the store: created by the first process, checked by all others.

They are created in one transaction under an advisory lock, because brokers may start together on an empty database. An
existing schema is only read, so a role without the right to create can use it. A schema of a newer release is refused.
"""

from __future__ import annotations

from importlib import resources
from typing import Final, LiteralString

import psycopg

from llog.errors import MetadataMisconfigured
from llog.stores.metadata.postgres.address import PostgresAddress
from llog.stores.metadata.postgres.connection import PostgresLink
from llog.stores.metadata.postgres.failures import translate
from llog.stores.metadata.postgres.statements import Names

SCHEMA_VERSION: Final = 1

_TABLE_EXISTS: Final = b"""
SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""


async def open_schema(link: PostgresLink, address: PostgresAddress) -> Names:
    """Create or check the store; returns its names. Raises `MetadataMisconfigured`, `MetadataDenied`, …"""
    try:
        names = Names(address.schema or await _current_schema(link, address), address.table)
        version = await _version(link, names)
        if version is None:
            version = await _create(link, names)
    except psycopg.Error as error:
        raise translate(error, "open", address.url, writing=False, connection_lost=link.broken) from error
    if version != SCHEMA_VERSION:
        reason = f"its schema has version {version}, this llog knows {SCHEMA_VERSION}"
        raise MetadataMisconfigured("open", address.url, f"{reason}: use a matching llog, or another table")
    return names


async def _current_schema(link: PostgresLink, address: PostgresAddress) -> str:
    cursor = await link.connection.execute("SELECT current_schema()")
    [schema] = await cursor.fetchone() or [None]
    if schema is None:
        reason = "the search path names no existing schema; say llog_table=schema.table"
        raise MetadataMisconfigured("open", address.url, reason)
    return str(schema)


async def _version(link: PostgresLink, names: Names) -> int | None:
    # Read from the catalogue: to_regclass uses a cache, which may be stale within a transaction.
    cursor = await link.connection.execute(_TABLE_EXISTS, (names.schema, f"{names.table}_schema"))
    if await cursor.fetchone() is None:
        return None
    cursor = await link.connection.execute(names.fill("SELECT max(version) FROM {version_table}"))
    [version] = await cursor.fetchone() or [None]
    return 0 if version is None else int(version)


async def _create(link: PostgresLink, names: Names) -> int:
    connection = link.connection
    async with connection.transaction():
        await connection.execute(names.fill("SELECT pg_advisory_xact_lock({lock_class}, {schema_lock_object})"))
        version = await _version(link, names)
        if version is not None:
            return version  # another process was faster
        cursor = await connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (names.schema,))
        if await cursor.fetchone() is None:
            await connection.execute(names.fill("CREATE SCHEMA {schema}"))
        await connection.execute(names.fill(_definition()))
        await connection.execute(names.fill("INSERT INTO {version_table} VALUES ") + b"(%d)" % SCHEMA_VERSION)
    return SCHEMA_VERSION


def _definition() -> LiteralString:
    return resources.files(__package__).joinpath("schema.sql").read_text("utf-8")
