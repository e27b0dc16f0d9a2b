"""The address of the Kafka front end: protected or refused, and one that clients can use."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from llog.errors import ExposureRefused, SettingsError
from llog.settings import Settings
from llog.settings.listening import advertised_address, check_kafka_address, listening_socket
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
