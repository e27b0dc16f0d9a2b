"""The address of the Kafka front end: protected or refused, and one that clients can use."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from llog.errors import ExposureRefused, SettingsError
from llog.settings import Settings
from llog.settings.listening import (
    advertised_address,
    check_exposure,
    check_kafka_address,
    kafka_protocol,
    listening_socket,
)
from llog.settings.urls import format_host_port, parse_host_port


def settings(**given: object) -> Settings:
    return Settings.from_env({}, data_dir="/nowhere", **given)


def test_kafka_at_an_address_that_others_reach_must_be_allowed_explicitly(tmp_path: Path) -> None:
    """Certificate and HTTP tokens do not authenticate Kafka clients."""
    check_kafka_address(settings())
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.touch()
    key.touch()
    protected = {
        "http_read_token": "r" * 16,
        "http_write_token": "w" * 16,
        "tls_cert_file": cert,
        "tls_key_file": key,
    }
    with pytest.raises(ExposureRefused, match=r"LLOG_KAFKA_HOST.*10.0.0.1.*LLOG_INSECURE=1"):
        check_kafka_address(settings(kafka_host="10.0.0.1", **protected))
    check_kafka_address(settings(kafka_host="10.0.0.1", insecure=True))


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").touch()
    with pytest.raises(SettingsError, match="LLOG_TLS_KEY_FILE"):
        check_kafka_address(settings(tls_cert_file=tmp_path / "cert.pem"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_clients_need_an_address_when_the_listener_has_none(host: str) -> None:
    with pytest.raises(SettingsError, match=r"LLOG_KAFKA_ADVERTISED.*must be set"):
        check_kafka_address(settings(kafka_host=host, insecure=True))
    check_kafka_address(settings(kafka_host=host, insecure=True, kafka_advertised="kafka.example"))


def test_clients_are_given_the_advertised_address_or_the_one_listened_on() -> None:
    assert advertised_address(settings(), 9093) == ("127.0.0.1", 9093)
    assert advertised_address(settings(kafka_host="::1"), 9093) == ("::1", 9093)
    assert advertised_address(settings(kafka_advertised="kafka.example:443"), 9093) == ("kafka.example", 443)
    assert advertised_address(settings(kafka_advertised="kafka.example"), 9093) == ("kafka.example", 9093)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "kafka.example"])
def test_an_address_is_read_as_it_was_written(host: str) -> None:
    assert parse_host_port(format_host_port(host, 9092)) == (host, 9092)


def test_errors_name_the_settings_of_the_listener() -> None:
    with listening_socket("127.0.0.1", 0, of="LLOG_KAFKA", backlog=1) as taken:
        port = taken.getsockname()[1]
        for reuse_port in (False, True):
            with pytest.raises(SettingsError, match=f"LLOG_KAFKA_PORT=.{port}"):
                listening_socket("127.0.0.1", port, of="LLOG_KAFKA", backlog=1, reuse_port=reuse_port)
    for of, variable in (("LLOG_KAFKA", "LLOG_KAFKA_HOST"), ("LLOG_HTTP", "LLOG_HTTP_BIND_HOST")):
        with pytest.raises(SettingsError, match=variable):
            listening_socket("192.0.2.1", 0, of=of, backlog=1)


def test_a_port_that_is_held_without_listening_refuses_connections() -> None:
    held = listening_socket("127.0.0.1", 0, of="LLOG_KAFKA", backlog=None, reuse_port=True)
    with held, pytest.raises(ConnectionRefusedError):
        socket.create_connection(held.getsockname(), 5)


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({}, "LLOG_KAFKA_SASL_MECHANISMS"),
        ({"insecure": True}, ""),
        ({"kafka_sasl_mechanisms": ("SCRAM-SHA-256",)}, "LLOG_TLS_CERT_FILE"),
        ({"kafka_sasl_mechanisms": ("SCRAM-SHA-256",), "insecure": True}, ""),
        ({"kafka_sasl_mechanisms": ("SCRAM-SHA-256",), "tls": True}, ""),
        ({"kafka_sasl_mechanisms": ("PLAIN",)}, "read on the way"),
        ({"kafka_sasl_mechanisms": ("PLAIN",), "insecure": True}, "read on the way"),
        ({"kafka_sasl_mechanisms": ("PLAIN",), "tls": True}, ""),
        ({"tls": True}, "LLOG_KAFKA_SASL_MECHANISMS"),
        ({"tls": True, "tls_client_auth": "requested"}, "LLOG_KAFKA_SASL_MECHANISMS"),
        ({"tls": True, "tls_client_auth": "required"}, ""),
    ],
)
def test_an_exposed_kafka_address_needs_clients_that_authenticate_over_tls(
    tmp_path: Path, given: dict[str, object], refused: str
) -> None:
    files = {name: tmp_path / name for name in ("tls_cert_file", "tls_key_file", "tls_client_ca_file")}
    for path in files.values():
        path.touch()
    more = dict(files) if given.pop("tls", False) else {}
    chosen = settings(kafka_host="10.0.0.1", **given, **more)
    if refused:
        with pytest.raises(SettingsError, match=refused):
            check_kafka_address(chosen)
    else:
        check_kafka_address(chosen)
    check_kafka_address(settings(**given, **more))  # a loopback address may do without


def test_the_http_tokens_are_not_needed_where_acls_decide(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.touch()
    key.touch()
    chosen = settings(authorization=True, tls_cert_file=cert, tls_key_file=key)
    check_exposure(chosen, host="10.0.0.1")
    with pytest.raises(ExposureRefused, match="LLOG_TLS_CERT_FILE"):
        check_exposure(settings(authorization=True), host="10.0.0.1")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"kafka_sasl_mechanisms": ("OAUTHBEARER",)}, "LLOG_OAUTH_JWKS and LLOG_OAUTH_ISSUER and LLOG_OAUTH_AUDIENCE"),
        ({"kafka_sasl_mechanisms": ("GSSAPI",)}, "is none of PLAIN"),
        ({"oauth_jwks": "http://id.example/keys"}, "needs https"),
        ({"tls_client_auth": "required"}, "LLOG_TLS_CLIENT_CA_FILE"),
        ({"super_users": ("ada",)}, "User:name"),
    ],
)
def test_settings_that_would_protect_nothing_are_refused(given: dict[str, object], wanted: str) -> None:
    with pytest.raises(SettingsError, match=wanted):
        settings(**given)


def test_the_protocol_has_kafkas_name(tmp_path: Path) -> None:
    tls = {"tls_cert_file": tmp_path / "cert", "tls_key_file": tmp_path / "key"}
    sasl = {"kafka_sasl_mechanisms": ("SCRAM-SHA-512",)}
    names = [kafka_protocol(settings(**one)) for one in ({}, tls, sasl, {**tls, **sasl})]
    assert names == ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
