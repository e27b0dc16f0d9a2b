"""Which value wins, what is derived, what is refused, and that nothing secret is shown."""

from __future__ import annotations

import dataclasses
import logging
import pickle
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from llog.errors import InvalidArgument, SettingsError, SettingsErrors
from llog.settings import CompactorTarget, Settings, settings_table

HOME = {"HOME": "/home/someone"}

# Every name that deployments of the protocol already use, and those the design adds.
PROTOCOL_VARIABLES = """
LLOG_OXIA_SERVICE_ADDRESS LLOG_S3_BUCKET LLOG_OXIA_NAMESPACE LLOG_ROOT_PREFIX LLOG_OXIA_SESSION_TIMEOUT_MS
LLOG_CLIENT_IDENTIFIER LLOG_S3_ENDPOINT_URL LLOG_S3_REGION_NAME LLOG_S3_ACCESS_KEY_ID LLOG_S3_SECRET_ACCESS_KEY
LLOG_S3_SESSION_TOKEN LLOG_BATCH_MAX_BYTES LLOG_BATCH_MAX_DELAY_MS LLOG_BATCH_MAX_BUFFER_BYTES LLOG_TAIL_CACHE_DIR
LLOG_TAIL_CACHE_MAX_BYTES LLOG_COMPACTOR_BIND_HOST LLOG_COMPACTOR_PORT LLOG_COMPACTOR_ID LLOG_COMPACTOR_TARGETS
LLOG_COMPACTOR_WORKERS LLOG_COMPACTOR_DISCOVERY_INTERVAL_MS LLOG_COMPACTOR_IDLE_SLEEP_MS LLOG_COMPACTOR_ERROR_SLEEP_MS
LLOG_COMPACTOR_IDLE_JITTER_MS LLOG_COMPACTOR_ERROR_JITTER_MS LLOG_COMPACTOR_MAX_OFFSETS_PER_RUN
"""
DESIGN_VARIABLES = """
LLOG_METADATA_URL LLOG_OBJECTS_URL LLOG_WAL_URL LLOG_AUTO_CREATE_TOPICS LLOG_COMPACTOR_MIN_AGE_MS LLOG_ENCODING
LLOG_FLUSH_MAX_AGE_MS LLOG_FLUSH_MAX_BYTES LLOG_REQUEST_TIMEOUT_MS LLOG_SPARK_MASTER LLOG_TAIL_REFRESH_MS
LLOG_TOPIC_PARTITIONS_MAX LLOG_WAL_GRACE_MS LLOG_WAL_MAX_BYTES LLOG_OXIA_TLS_CA_FILE LLOG_OXIA_TOKEN
"""


def make(**variables: str) -> Settings:
    return Settings.from_env({**HOME, **variables})


def refusal(**variables: str) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        make(**variables)
    return caught.value


# -- the table ----------------------------------------------------------------------------------------------------


def test_every_name_of_the_contract_is_a_setting() -> None:
    known = {name for row in settings_table() for name in row.variables}
    assert known >= {*PROTOCOL_VARIABLES.split(), *DESIGN_VARIABLES.split()}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LLOG_FLUSH_MAX_BYTES", "compactor_trigger_bytes"),
        ("LLOG_FLUSH_MAX_AGE_MS", "compactor_trigger_age_ms"),
        ("LLOG_OXIA_SESSION_TIMEOUT_MS", "session_timeout_ms"),
    ],
)
def test_an_older_name_still_works_and_must_not_contradict_the_new_one(
    old: str, new: str, caplog: pytest.LogCaptureFixture
) -> None:
    variable = f"LLOG_{new.upper()}"
    assert getattr(make(**{old: "123456"}), new) == 123_456
    assert make(**{old: "123456"}).source_of(new) == f"environment {old}"
    assert getattr(make(**{old: "123456", variable: "123456"}), new) == 123_456
    assert not caplog.records, "neither name is unknown"
    problem = refusal(**{old: "123456", variable: "123457"})
    assert problem.variable == f"{variable} and {old}"
    assert getattr(Settings.from_env({**HOME, old: "123456"}, **{new: 123_457}), new) == 123_457


def test_defaults_are_those_of_the_contract() -> None:
    settings = make()
    assert settings.batch_max_bytes == 8 * 1024 * 1024
    assert settings.tail_cache_max_bytes == 536_870_912
    assert settings.batch_max_buffer_bytes == 536_870_912
    assert settings.root_prefix == "llog"
    assert settings.request_timeout_ms == 10_000
    assert settings.topic_partitions_max == 1_024
    assert settings.compactor_trigger_bytes == 64 * 1024 * 1024
    assert settings.compactor_trigger_age_ms == 60_000
    assert settings.wal_grace_ms == 300_000
    assert settings.encoding == "kafka-v2"
    assert settings.auto_create_topics is True
    assert settings.compactor_targets == ()


def test_every_value_has_the_type_its_attribute_is_annotated_with() -> None:
    settings, hints = make(), get_type_hints(Settings)
    for row in settings_table():
        value, hint = getattr(settings, row.name), hints[row.name]
        if value is None:
            assert type(None) in hint.__args__, row.name
        elif isinstance(hint, type):
            assert isinstance(value, hint), row.name


def test_every_default_passes_its_own_check() -> None:
    for row in settings_table():
        if row.default is not None:
            assert row.kind.convert(row.default) == row.default, row.name


def test_every_row_says_what_it_means_and_every_computed_default_is_explained() -> None:
    for row in settings_table():
        assert row.doc.endswith("."), row.name
        assert bool(row.derive) == bool(row.default_doc), row.name


# -- where values come from ---------------------------------------------------------------------------------------


def test_an_argument_beats_the_variable_which_beats_the_fallback_which_beats_the_default() -> None:
    assert make().source_of("s3_region_name") == "default"
    fallback = make(AWS_DEFAULT_REGION="eu-west-1")
    assert (fallback.s3_region_name, fallback.source_of("s3_region_name")) == (
        "eu-west-1",
        "fallback AWS_DEFAULT_REGION",
    )
    first = make(AWS_DEFAULT_REGION="eu-west-1", AWS_REGION="eu-west-2")
    assert first.source_of("s3_region_name") == "fallback AWS_REGION"
    own = make(AWS_REGION="eu-west-1", LLOG_S3_REGION_NAME="eu-west-3")
    assert (own.s3_region_name, own.source_of("s3_region_name")) == ("eu-west-3", "environment LLOG_S3_REGION_NAME")
    argument = Settings.from_env({**HOME, "LLOG_S3_REGION_NAME": "eu-west-3"}, s3_region_name="eu-west-4")
    assert (argument.s3_region_name, argument.source_of("s3_region_name")) == ("eu-west-4", "argument")


def test_arguments_may_be_values_or_text_and_none_means_not_given() -> None:
    assert Settings.from_env(HOME, batch_max_bytes=4096).batch_max_bytes == 4096
    assert Settings.from_env(HOME, batch_max_bytes="4k").batch_max_bytes == 4096
    assert Settings.from_env(HOME, batch_max_bytes=None).source_of("batch_max_bytes") == "default"
    assert Settings.from_env(HOME, auto_create_topics=False).auto_create_topics is False
    assert Settings.from_env(HOME, tail_cache_dir=Path("/x")).tail_cache_dir == Path("/x")
    assert Settings.from_env(HOME, compactor_targets=[("a", 1)]).compactor_targets == (CompactorTarget("a", 1),)


@pytest.mark.parametrize("value", [True, 1.5, b"1", -1, 2**80])
def test_an_argument_of_the_wrong_type_or_size_is_refused(value: Any) -> None:
    with pytest.raises(SettingsError, match="argument batch_max_bytes"):
        Settings.from_env(HOME, batch_max_bytes=value)


def test_an_argument_that_is_no_setting_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidArgument, match="did you mean batch_max_bytes"):
        Settings.from_env(HOME, batch_max_byte=1)


def test_an_empty_variable_counts_as_not_set() -> None:
    settings = make(LLOG_S3_ENDPOINT_URL="", LLOG_BATCH_MAX_BYTES="  ", LLOG_METADATA_URL="")
    assert settings.s3_endpoint_url is None
    assert settings.source_of("batch_max_bytes") == "default"
    assert settings == make()


def test_an_empty_kafka_port_turns_kafka_off() -> None:
    assert make().kafka_port == 9092
    for off in (make(LLOG_KAFKA_PORT=""), make(LLOG_KAFKA_PORT=" "), make().replaced(kafka_port="")):
        assert off.kafka_port is None
        assert off.replaced(zone="a").kafka_port is None
    assert make(LLOG_KAFKA_PORT="").source_of("kafka_port") == "environment LLOG_KAFKA_PORT"
    assert make(LLOG_KAFKA_PORT="").replaced(kafka_port=0).kafka_port == 0


def test_settings_cannot_be_changed_and_survive_pickling() -> None:
    settings = make(LLOG_BATCH_MAX_BYTES="1MiB")
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.batch_max_bytes = 1  # type: ignore[misc]
    copy = pickle.loads(pickle.dumps(settings))
    assert copy == settings
    assert copy.source_of("batch_max_bytes") == "environment LLOG_BATCH_MAX_BYTES"


def test_the_process_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLOG_COMPACTOR_WORKERS", "7")
    assert Settings.from_env().compactor_workers == 7


# -- stores and what follows from them ------------------------------------------------------------------------------


def test_without_any_setting_the_embedded_stores_are_used() -> None:
    settings = make()
    assert settings.metadata_url == "lmdb:///home/someone/.local/share/leaderless-log/metadata"
    assert settings.objects_url == "file:///home/someone/.local/share/leaderless-log/objects"
    assert settings.wal_url == settings.objects_url
    assert settings.source_of("metadata_url") == "derived from LLOG_DATA_DIR"
    assert settings.source_of("data_dir") == "derived from HOME"
    xdg = make(XDG_DATA_HOME="/xdg")
    assert (xdg.data_dir, xdg.source_of("data_dir")) == (Path("/xdg/leaderless-log"), "derived from XDG_DATA_HOME")
    assert make(LLOG_DATA_DIR="/d d").objects_url == "file:///d d/objects"


def test_the_data_directory_is_absolute_and_knows_home() -> None:
    assert make(LLOG_DATA_DIR="some/where").data_dir == Path.cwd() / "some" / "where"
    assert make(LLOG_DATA_DIR="~/x").data_dir == Path("~/x").expanduser()
    assert "cannot stand in a store's URL" in str(refusal(LLOG_DATA_DIR="/a?b"))


def test_an_oxia_address_and_a_bucket_stand_for_urls() -> None:
    settings = make(LLOG_OXIA_SERVICE_ADDRESS="oxia.local:6648", LLOG_OXIA_NAMESPACE="orders", LLOG_S3_BUCKET="bucket")
    assert settings.metadata_url == "oxia://oxia.local:6648/orders"
    assert settings.source_of("metadata_url") == "derived from LLOG_OXIA_SERVICE_ADDRESS and LLOG_OXIA_NAMESPACE"
    assert settings.objects_url == "s3://bucket"
    assert settings.source_of("objects_url") == "derived from LLOG_S3_BUCKET"
    assert make(LLOG_OXIA_SERVICE_ADDRESS="h").metadata_url == "oxia://h:6648"
    assert make(LLOG_OXIA_SERVICE_ADDRESS="h", LLOG_OXIA_TLS_CA_FILE="/ca.pem").metadata_url == "oxia+tls://h:6648"


def test_the_namespace_in_the_url_is_the_namespace_in_force() -> None:
    settings = make(LLOG_METADATA_URL="oxia://h:6648/orders")
    assert (settings.oxia_namespace, settings.source_of("oxia_namespace")) == (
        "orders",
        "derived from LLOG_METADATA_URL",
    )
    assert make(LLOG_METADATA_URL="oxia://h:6648", LLOG_OXIA_NAMESPACE="x").oxia_namespace == "x"


@pytest.mark.parametrize(
    "variables",
    [
        {"LLOG_METADATA_URL": "oxia://H:6648/", "LLOG_OXIA_SERVICE_ADDRESS": "h"},
        {"LLOG_METADATA_URL": "oxia+tls://h", "LLOG_OXIA_SERVICE_ADDRESS": "h:6648"},
        {"LLOG_METADATA_URL": "oxia://h/ns", "LLOG_OXIA_SERVICE_ADDRESS": "h", "LLOG_OXIA_NAMESPACE": "ns"},
        {"LLOG_OBJECTS_URL": "s3://bucket/", "LLOG_S3_BUCKET": "bucket"},
    ],
)
def test_two_names_for_one_store_are_fine(variables: dict[str, str]) -> None:
    settings = make(**variables)
    assert settings.oxia_service_address or settings.s3_bucket


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"LLOG_METADATA_URL": "lmdb:///x", "LLOG_OXIA_SERVICE_ADDRESS": "h:1"}, "LLOG_OXIA_SERVICE_ADDRESS"),
        ({"LLOG_METADATA_URL": "oxia://g:1", "LLOG_OXIA_SERVICE_ADDRESS": "h:1"}, "LLOG_OXIA_SERVICE_ADDRESS"),
        ({"LLOG_METADATA_URL": "oxia://h:1/a", "LLOG_OXIA_NAMESPACE": "b"}, "LLOG_OXIA_NAMESPACE"),
        ({"LLOG_OBJECTS_URL": "file:///x", "LLOG_S3_BUCKET": "bucket"}, "LLOG_S3_BUCKET"),
        ({"LLOG_OBJECTS_URL": "s3://bucket/prefix", "LLOG_S3_BUCKET": "bucket"}, "LLOG_S3_BUCKET"),
    ],
)
def test_two_names_for_different_stores_are_refused_naming_both(variables: dict[str, str], named: str) -> None:
    error = refusal(**variables)
    assert error.variable == f"{next(iter(variables))} and {named}"
    for value in variables.values():
        assert value in error.value


def test_an_argument_beats_the_other_name_in_the_environment() -> None:
    environ = {**HOME, "LLOG_OXIA_SERVICE_ADDRESS": "h:1", "LLOG_S3_BUCKET": "bucket"}
    settings = Settings.from_env(environ, metadata_url="memory://", objects_url="memory://")
    assert (settings.metadata_url, settings.objects_url) == ("memory://", "memory://")
    environ = {**HOME, "LLOG_METADATA_URL": "oxia://g:1/ns", "LLOG_OBJECTS_URL": "file:///x"}
    settings = Settings.from_env(environ, oxia_service_address="h:1", s3_bucket="bucket")
    assert (settings.metadata_url, settings.objects_url) == ("oxia://h:1", "s3://bucket")


def test_defaults_that_depend_on_a_store_follow_it_and_say_so() -> None:
    local, s3 = make(), make(LLOG_OBJECTS_URL="s3://bucket", LLOG_METADATA_URL="postgresql://h/db")
    assert (local.batch_max_delay_ms, s3.batch_max_delay_ms) == (13, 500)
    assert (local.tail_refresh_ms, s3.tail_refresh_ms) == (100, 500)
    assert s3.source_of("batch_max_delay_ms") == "derived from LLOG_WAL_URL"
    tiers = make(LLOG_OBJECTS_URL="s3://bucket", LLOG_WAL_URL="file:///fast")
    assert (tiers.batch_max_delay_ms, tiers.wal_url) == (13, "file:///fast")
    assert make(LLOG_OBJECTS_URL="s3://bucket", LLOG_BATCH_MAX_DELAY_MS="20").batch_max_delay_ms == 20
    assert make(LLOG_REQUEST_TIMEOUT_MS="3s").compactor_min_age_ms == 6_000
    for grace, interval_ms in (("1h", 900_000), ("20m", 300_000), ("10s", 60_000), ("30d", 900_000)):
        assert make(LLOG_VACUUM_GRACE_MS=grace).compactor_backup_interval_ms == interval_ms


def test_the_process_goes_by_host_and_pid_unless_it_is_named() -> None:
    settings = make(LLOG_CLIENT_IDENTIFIER="broker-1")
    assert settings.compactor_id == "broker-1"
    assert make().source_of("client_identifier") == "derived from host name and process id"
    assert make().client_identifier.rpartition("-")[2].isdecimal()


# -- credentials ----------------------------------------------------------------------------------------------------

AWS = {"AWS_ACCESS_KEY_ID": "aws-id", "AWS_SECRET_ACCESS_KEY": "aws-secret", "AWS_SESSION_TOKEN": "aws-token"}


def test_aws_credentials_are_a_fallback() -> None:
    settings = make(**AWS)
    assert (settings.s3_access_key_id, settings.s3_secret_access_key) == ("aws-id", "aws-secret")
    assert settings.s3_session_token == "aws-token"


def test_a_left_over_aws_session_token_is_not_mixed_with_our_own_key() -> None:
    settings = make(**AWS, LLOG_S3_ACCESS_KEY_ID="own", LLOG_S3_SECRET_ACCESS_KEY="own-secret")
    assert settings.s3_access_key_id == "own"
    assert settings.s3_session_token is None


@pytest.mark.parametrize("name", ["LLOG_S3_ACCESS_KEY_ID", "LLOG_S3_SECRET_ACCESS_KEY"])
def test_half_a_pair_of_credentials_is_refused(name: str) -> None:
    error = refusal(**{name: "hunter2"})
    assert error.variable == name
    assert "hunter2" not in str(error)


def test_secrets_and_passwords_are_never_shown() -> None:
    settings = make(
        **dict.fromkeys(AWS, "hunter2"), LLOG_OXIA_TOKEN="hunter2", LLOG_METADATA_URL="postgresql://u:hunter2@h/db"
    )
    assert settings.metadata_url == "postgresql://u:hunter2@h/db"
    assert "hunter2" not in repr(settings) + str(settings)
    assert "postgresql://u:***@h/db" in repr(settings)


def test_an_error_never_shows_a_secret() -> None:
    error = refusal(
        LLOG_OXIA_TOKEN="hunter2 hunter2",
        LLOG_METADATA_URL="oxia://u:hunter2@h:1/a/b",
        LLOG_OBJECTS_URL="s3://u:hunter2@x",
        LLOG_S3_ENDPOINT_URL="ftp://u:hunter2@x",
        AWS_SECRET_ACCESS_KEY="hunter2 hunter2",
    )
    assert isinstance(error, SettingsErrors)
    assert len(error.errors) == 5
    assert "hunter2" not in str(error)


@pytest.mark.parametrize("name", ["LLOG_HTTP_READ_TOKEN", "LLOG_HTTP_WRITE_TOKEN"])
def test_a_bearer_token_that_is_short_enough_to_guess_is_refused(name: str) -> None:
    error = refusal(**{name: "hunter2-hunter2"})
    assert error.variable == name
    assert "15 characters" in str(error)
    assert "at least 16" in str(error)
    assert "hunter2" not in str(error)
    make(**{name: "hunter2-hunter2-"})


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LLOG_BATCH_MAX_BYTES", "many"),
        ("LLOG_BATCH_MAX_BYTES", "0"),
        ("LLOG_BATCH_MAX_BYTES", "1TiB"),
        ("LLOG_BATCH_MAX_DELAY_MS", "-1"),
        ("LLOG_BATCH_MAX_DELAY_MS", "1h"),
        ("LLOG_SESSION_TIMEOUT_MS", "1s"),
        ("LLOG_COMPACTOR_PORT", "65536"),
        ("LLOG_KAFKA_PORT", "65536"),
        ("LLOG_KAFKA_PORT", "off"),
        ("LLOG_KAFKA_HOST", "a b"),
        ("LLOG_KAFKA_ADVERTISED", "kafka://host:9092"),
        ("LLOG_KAFKA_ADVERTISED", "host:0"),
        ("LLOG_KAFKA_ADVERTISED", "host:port"),
        ("LLOG_KAFKA_ADVERTISED", "0.0.0.0:9092"),
        ("LLOG_KAFKA_ADVERTISED", "[::]:9092"),
        ("LLOG_NODE_ID", "-1"),
        ("LLOG_NODE_ID", "2147483648"),
        ("LLOG_ZONE", "eu 1"),
        ("LLOG_WORKERS", "0"),
        ("LLOG_WORKERS", "65"),
        ("LLOG_COMPACTOR_PORT", "8_0 8"),
        ("LLOG_COMPACTOR_WORKERS", "0"),
        ("LLOG_COMPACTOR_WORKERS", "1.5"),
        ("LLOG_AUTO_CREATE_TOPICS", "maybe"),
        ("LLOG_AUTO_CREATE_TOPICS", "2"),
        ("LLOG_ENCODING", "avro"),
        ("LLOG_ROOT_PREFIX", "/llog"),
        ("LLOG_ROOT_PREFIX", "a/../b"),
        ("LLOG_ROOT_PREFIX", "@topics"),
        ("LLOG_ROOT_PREFIX", "x" * 101),
        ("LLOG_S3_ENDPOINT_URL", "host:9000"),
        ("LLOG_S3_ENDPOINT_URL", "http://"),
        ("LLOG_OXIA_SERVICE_ADDRESS", "http://h:1"),
        ("LLOG_S3_BUCKET", "a/b"),
        ("LLOG_CLIENT_IDENTIFIER", "a b"),
        ("LLOG_WAL_URL", "somewhere"),
        ("LLOG_COMPACTOR_TARGETS", "orders"),
        ("LLOG_COMPACTOR_TARGETS", "orders:x"),
        ("LLOG_COMPACTOR_TARGETS", "orders:0,,orders:1"),
        ("LLOG_COMPACTOR_TARGETS", "or/ders:0"),
        ("LLOG_COMPACTOR_TARGETS", "wal-shared:0"),
        ("LLOG_COMPACTOR_TARGETS", "orders:-1"),
        ("LLOG_COMPACTOR_TARGETS", "orders:2147483648"),
    ],
)
def test_a_wrong_value_is_refused_naming_the_variable_the_value_and_what_is_accepted(variable: str, value: str) -> None:
    error = refusal(**{variable: value})
    assert (error.variable, error.value) == (variable, value)
    assert "accepted: " in error.accepted


def test_all_wrong_values_are_reported_at_once() -> None:
    error = refusal(
        LLOG_BATCH_MAX_BYTES="x",
        LLOG_COMPACTOR_PORT="y",
        LLOG_ENCODING="z",
        LLOG_METADATA_URL="q",
        AWS_REGION="not one!",
    )
    assert isinstance(error, SettingsErrors)
    wrong = {e.variable for e in error.errors}
    assert wrong == {"LLOG_BATCH_MAX_BYTES", "LLOG_COMPACTOR_PORT", "LLOG_ENCODING", "LLOG_METADATA_URL", "AWS_REGION"}
    for name in wrong:
        assert name in str(error)


def test_a_wrong_value_is_not_reported_again_by_what_follows_from_it() -> None:
    assert not isinstance(refusal(LLOG_OBJECTS_URL="nowhere"), SettingsErrors)
    assert not isinstance(refusal(LLOG_REQUEST_TIMEOUT_MS="1"), SettingsErrors)


def test_a_buffer_that_cannot_hold_a_batch_is_refused() -> None:
    error = refusal(LLOG_BATCH_MAX_BUFFER_BYTES="1MiB", LLOG_BATCH_MAX_BYTES="2MiB")
    assert error.variable == "LLOG_BATCH_MAX_BUFFER_BYTES"
    assert "LLOG_BATCH_MAX_BYTES" in error.accepted


@pytest.mark.parametrize("value", ["1", "true", "YES", "on"])
def test_yes_has_four_spellings(value: str) -> None:
    assert make(LLOG_AUTO_CREATE_TOPICS=value).auto_create_topics is True


@pytest.mark.parametrize("value", ["0", "False", "no", "OFF"])
def test_no_has_four_spellings(value: str) -> None:
    assert make(LLOG_AUTO_CREATE_TOPICS=value).auto_create_topics is False


def test_compactor_targets_keep_their_order_and_lose_repeats() -> None:
    settings = make(LLOG_COMPACTOR_TARGETS=" orders:1, orders:0 ,a.b-c_d:7,orders:1")
    assert settings.compactor_targets == (("orders", 1), ("orders", 0), ("a.b-c_d", 7))


# -- unknown names --------------------------------------------------------------------------------------------------


def test_an_unknown_variable_is_warned_about_with_the_nearest_name_and_without_its_value(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "llog.settings"):
        make(LLOG_S3_SECRET_ACESS_KEY="hunter2", LLOG_SOAK="1", OTHER="x")
    assert [r.getMessage() for r in caplog.records] == [
        "LLOG_S3_SECRET_ACESS_KEY is not a setting and is ignored; did you mean LLOG_S3_SECRET_ACCESS_KEY?"
    ]
