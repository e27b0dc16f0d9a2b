"""The URL of a PostgreSQL metadata store, parsed.

libpq refuses unknown parameters, so `llog_table` is removed first. A few parameters of libpq are fixed, because the
store needs a primary and UTF-8. Texts for display contain no password.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from llog.errors import SettingsError

TABLE_DEFAULT: Final = "llog_metadata"
# Room for the longest suffix of ours within PostgreSQL's 63 bytes.
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,45}", re.ASCII)
_VARIABLE: Final = "LLOG_METADATA_URL"
_PRIMARY: Final = ("read-write", "primary")


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    conninfo: dict[str, str]
    """For `psycopg.AsyncConnection.connect`."""
    schema: str | None
    """None: the first schema of the connection's search path."""
    table: str
    url: str
    """Without secrets."""


def parse_url(url: str, *, client_identifier: str) -> PostgresAddress:
    """`postgresql://user:password@host:port/database?llog_table=[schema.]table&…`. Raises `SettingsError`."""
    base, _, query = url.partition("?")
    table, passed_on = TABLE_DEFAULT, []
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        if name == "llog_table":
            table = unquote(value)
        elif name.startswith("llog_"):
            raise SettingsError(_VARIABLE, _safe(url), f"unknown parameter {name}; llog has only llog_table")
        else:
            passed_on.append(pair)
    schema, table = _split_table(url, table)
    try:
        parameters = conninfo_to_dict("?".join([base, "&".join(passed_on)]) if passed_on else base)
    except psycopg.Error as error:
        raise SettingsError(_VARIABLE, _safe(url), f"not a PostgreSQL URL: {_first_line(error)}") from None
    conninfo = {name: str(value) for name, value in parameters.items() if value is not None}
    if conninfo.setdefault("target_session_attrs", _PRIMARY[0]) not in _PRIMARY:
        raise SettingsError(_VARIABLE, _safe(url), f"target_session_attrs must be one of {', '.join(_PRIMARY)}")
    conninfo.setdefault("application_name", client_identifier)
    # A server that disappeared is noticed within half a minute instead of the kernel's two hours.
    conninfo.setdefault("keepalives_idle", "10")
    conninfo.setdefault("keepalives_interval", "5")
    conninfo.setdefault("keepalives_count", "3")
    conninfo["client_encoding"] = "UTF8"
    return PostgresAddress(conninfo, schema, table, _display(conninfo, schema, table))


def _split_table(url: str, text: str) -> tuple[str | None, str]:
    schema, dot, table = text.rpartition(".")
    if not _NAME.fullmatch(table) or (dot and not _NAME.fullmatch(schema)):
        accepted = "llog_table=[schema.]table: lower case letters, digits and _, at most 46 of them each"
        raise SettingsError(_VARIABLE, _safe(url), accepted)
    return (schema if dot else None), table


def _display(conninfo: dict[str, str], schema: str | None, table: str) -> str:
    hosts = conninfo.get("host", "").split(",")
    ports = conninfo.get("port", "").split(",")
    pairs = [f"[{host}]" if ":" in host else quote(host, safe="") for host in hosts]
    if len(ports) == len(pairs):
        pairs = [f"{host}:{port}" if port else host for host, port in zip(pairs, ports, strict=True)]
    user = f"{quote(conninfo['user'], safe='')}@" if "user" in conninfo else ""
    name = table if schema is None else f"{schema}.{table}"
    return f"postgresql://{user}{','.join(pairs)}/{quote(conninfo.get('dbname', ''), safe='')}?llog_table={name}"


def _safe(url: str) -> str:
    """A URL that cannot be parsed may have its password anywhere, so only the scheme is shown."""
    return f"{url.partition('://')[0][:20]}://…"


def _first_line(error: psycopg.Error) -> str:
    """libpq quotes the URL in its messages, so only the description of the fault is kept."""
    return str(error).split("\n", 1)[0].partition(":")[0].partition('"')[0].strip() or type(error).__name__


def stable_number(name: str) -> int:
    """A signed 32-bit hash of `name`, equal in every process: the id of an advisory lock."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big", signed=True)


def channel_name(qualified: str) -> str:
    """The notification channel of one table; hashed because a channel has at most 63 bytes."""
    return "llog_" + hashlib.sha256(qualified.encode()).hexdigest()[:32]
