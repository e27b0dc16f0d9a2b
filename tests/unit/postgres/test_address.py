"""The URL of a PostgreSQL store."""

from __future__ import annotations

import pytest

from llog.errors import SettingsError
from llog.stores.metadata.postgres.address import PostgresAddress, channel_name, parse_url, stable_number


def parse(url: str) -> PostgresAddress:
    return parse_url(url, client_identifier="broker-1")


def test_our_parameter_does_not_reach_libpq() -> None:
    address = parse("postgresql://u:p@h:5433/d?connect_timeout=3&llog_table=app.log_meta")
    assert (address.schema, address.table) == ("app", "log_meta")
    assert address.conninfo["connect_timeout"] == "3"
    assert not any(name.startswith("llog") for name in address.conninfo)


def test_defaults_ask_for_a_primary_by_our_name() -> None:
    address = parse("postgresql://h/d")
    assert (address.schema, address.table) == (None, "llog_metadata")
    assert address.conninfo["target_session_attrs"] == "read-write"
    assert address.conninfo["application_name"] == "broker-1"
    assert address.conninfo["client_encoding"] == "UTF8"


def test_a_users_own_application_name_is_kept() -> None:
    assert parse("postgresql://h/d?application_name=mine").conninfo["application_name"] == "mine"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:sesame@h:5433/d",
        "postgresql://h/d?password=sesame&user=u",
        "postgresql://u:ses%61me@h1:1,h2:2/d?llog_table=s.t",
    ],
)
def test_the_url_shown_holds_no_password(url: str) -> None:
    address = parse(url)
    assert address.conninfo["password"] == "sesame"
    assert "sesame" not in address.url
    assert "ses%61me" not in address.url


def test_the_url_shown_names_every_host() -> None:
    assert parse("postgresql://u@h1:1,h2:2/d").url == "postgresql://u@h1:1,h2:2/d?llog_table=llog_metadata"
    assert parse("postgresql://[::1]:1/d").url == "postgresql://[::1]:1/d?llog_table=llog_metadata"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:sesame@h/d?llog_tables=x",
        "postgresql://u:sesame@h/d?llog_table=",
        "postgresql://u:sesame@h/d?llog_table=Big",
        "postgresql://u:sesame@h/d?llog_table=a.b.c",
        "postgresql://u:sesame@h/d?llog_table=x%22;drop",
        "postgresql://u:sesame@h/d?llog_table=" + "x" * 47,
        "postgresql://u:sesame@h/d?target_session_attrs=any",
        "postgresql://u:sesame@h/d?no_such_parameter=1",
        "postgresql://u:sesame@h/d?broken",
        "postgresql://u:sesame@[::1/d",
    ],
)
def test_what_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse(url)
    assert refused.value.variable == "LLOG_METADATA_URL"
    assert "sesame" not in str(refused.value)


def test_lock_and_channel_are_the_same_in_every_process() -> None:
    assert stable_number("public.llog_metadata") == -1299201658
    assert channel_name("public.llog_metadata") != channel_name("public.other")
    assert len(channel_name("x" * 200)) <= 63
