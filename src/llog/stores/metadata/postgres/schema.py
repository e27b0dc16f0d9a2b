"""Tables, functions and statements of the store.

Tables and functions are created by the first process and checked by all others: in one transaction under an advisory
lock, because brokers may start together on an empty database. An existing schema is only read, so a role without the
right to create can use it. A schema of a newer release is refused. Every connection prepares statements on first use.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Final, LiteralString

import psycopg
from psycopg import sql

from llog.errors import MetadataMisconfigured
from llog.stores.metadata.postgres.address import PostgresAddress, channel_name, stable_number
from llog.stores.metadata.postgres.connection import PostgresLink
from llog.stores.metadata.postgres.failures import translate

POSTGRES_SWEEP_SESSIONS_MAX: Final = 100
# With more different prefixes than this, over all stores, every change is announced.
POSTGRES_WATCH_PREFIXES_MAX: Final = 64
# A notification has less than 8,000 bytes; a chunk ends after the change that exceeds this size.
POSTGRES_NOTIFICATION_BYTES: Final = 7_000

# "llog", so that our advisory locks are recognisable in pg_locks and do not conflict with others.
LOCK_CLASS: Final = 0x6C6C6F67

_VISIBLE: Final[LiteralString] = """
(r.session IS NULL OR EXISTS (SELECT FROM {sessions} s WHERE s.id = r.session AND s.expires_at > clock_timestamp()))
"""
_FIELDS: Final[LiteralString] = "r.value, r.version, r.session IS NOT NULL"


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the database objects of one store."""

    schema: str
    table: str

    @property
    def qualified(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def channel(self) -> str:
        return channel_name(self.qualified)

    def fill(self, text: LiteralString) -> bytes:
        return sql.SQL(text).format(**self._parts()).as_bytes(None)

    def _parts(self) -> dict[str, sql.Composable]:
        suffixes = {
            "records": "", "sessions": "_sessions", "version_table": "_schema", "sequence": "_versions",
            "announce": "_announce", "write": "_write", "drop_records": "_drop_records",
            "end_session": "_end_session", "sweep": "_sweep",
        }  # fmt: skip
        parts: dict[str, sql.Composable] = {
            part: sql.Identifier(self.schema, self.table + suffix) for part, suffix in suffixes.items()
        }
        return parts | {
            "schema": sql.Identifier(self.schema),
            "sequence_name": sql.Literal(f'"{self.schema}"."{self.table}_versions"'),
            "channel": sql.Literal(self.channel),
            "channel_identifier": sql.Identifier(self.channel),
            "lock_class": sql.Literal(LOCK_CLASS),
            "lock_object": sql.Literal(stable_number(self.qualified)),
            "schema_lock_object": sql.Literal(stable_number(self.qualified + " schema")),
            "prefixes_max": sql.Literal(POSTGRES_WATCH_PREFIXES_MAX),
            "payload_bytes": sql.Literal(POSTGRES_NOTIFICATION_BYTES),
            "sweep_max": sql.Literal(POSTGRES_SWEEP_SESSIONS_MAX),
        }


class Statements:
    """`%b` parameters travel in binary."""

    def __init__(self, names: Names) -> None:
        fill = names.fill
        self.get = fill("SELECT " + _FIELDS + " FROM {records} r WHERE r.parent = %b AND r.name = %b AND " + _VISIBLE)
        self.get_many = fill(
            "SELECT w.i, " + _FIELDS + " FROM unnest(%b, %b) WITH ORDINALITY AS w(parent, name, i)"
            " JOIN {records} r ON r.parent = w.parent AND r.name = w.name WHERE " + _VISIBLE
        )
        page: LiteralString = "SELECT r.name, " + _FIELDS + " FROM {records} r WHERE r.parent = %b AND r.name >= %b"
        self.scan = fill(page + " AND " + _VISIBLE + " ORDER BY r.name LIMIT %b")
        self.scan_to = fill(page + " AND r.name < %b AND " + _VISIBLE + " ORDER BY r.name LIMIT %b")
        # Keys below `a/b` have a parent that is `a/b` or begins with `a/b/`; 0 follows / in byte order.
        tree: LiteralString = (
            "SELECT r.parent, r.name, " + _FIELDS + " FROM {records} r WHERE (r.parent, r.name) > (%b, %b)"
        )
        self.tree = fill(tree + " AND " + _VISIBLE + " ORDER BY r.parent, r.name LIMIT %b")
        self.tree_to = fill(tree + " AND r.parent < %b AND " + _VISIBLE + " ORDER BY r.parent, r.name LIMIT %b")
        self.write = fill("SELECT {write}(%b, %b, %b, %b, %b, %b)")
        self.time = b"SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"

        # Lock before reading the counter, so that two callers do not lower it below each other's floor.
        self.raise_versions = fill(
            "SELECT CASE WHEN coalesce(pg_sequence_last_value({sequence_name}::regclass), 0) < %b"
            " THEN setval({sequence_name}, %b) END"
            " FROM (SELECT pg_advisory_xact_lock({lock_class}, {schema_lock_object}) OFFSET 0) AS locked"
        )

        expiry: LiteralString = "clock_timestamp() + %b * interval '1 millisecond'"
        self.open_session = fill(
            "INSERT INTO {sessions} (id, client, timeout_ms, expires_at)"
            " VALUES (nextval({sequence_name}), %b, %b, " + expiry + ") RETURNING id"
        )
        self.renew_session = fill(
            "UPDATE {sessions} SET expires_at = "
            + expiry
            + " WHERE id = %b AND expires_at > clock_timestamp() RETURNING id"
        )
        self.end_session = fill("SELECT {end_session}(%b)")
        self.sweep = fill("SELECT {sweep}()")

        self.listen = fill("LISTEN {channel_identifier}")
        self.open_lease = fill(
            "INSERT INTO {sessions} (id, client, timeout_ms, expires_at, prefixes)"
            " VALUES (nextval({sequence_name}), %b, %b, " + expiry + ", %b) RETURNING id"
        )
        self.renew_lease = fill(
            "UPDATE {sessions} SET expires_at = " + expiry + ", prefixes = %b WHERE id = %b RETURNING id"
        )
        self.extend_lease = fill(
            "UPDATE {sessions} SET prefixes = ARRAY(SELECT DISTINCT p FROM unnest(prefixes || %b) AS u(p))"
            " WHERE id = %b RETURNING id"
        )
        self.barrier = fill("SELECT pg_advisory_xact_lock({lock_class}, {lock_object})")


# -- creating and checking ---------------------------------------------------------------------------------------------

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
