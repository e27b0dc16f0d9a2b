"""Listening addresses: an address that other machines can reach must be protected, and sockets with clear errors.

Listening without protection needs an explicit `LLOG_INSECURE=1`; a forgotten variable is not enough.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Final, NamedTuple

from llog.errors import ExposureRefused, SettingsError
from llog.settings import Settings
from llog.settings.kinds import is_wildcard
from llog.settings.urls import parse_host_port


def check_exposure(settings: Settings, *, host: str | None = None, variable: str = "LLOG_HTTP_BIND_HOST") -> None:
    """Raises `ExposureRefused` unless `host` is a loopback address, or protected, or explicitly allowed, and
    `SettingsError` for a certificate without its key. The default `host` is that of the HTTP front end."""
    host = settings.http_bind_host if host is None else host
    check_certificate(settings)
    if is_loopback(host) or settings.insecure:
        return
    needed: dict[str, object] = {
        "LLOG_TLS_CERT_FILE": settings.tls_cert_file,
        "LLOG_TLS_KEY_FILE": settings.tls_key_file,
    }
    if not settings.authorization:  # else ACLs keep everybody out who shows no token of a user
        needed |= {
            "LLOG_HTTP_READ_TOKEN": settings.http_read_token,
            "LLOG_HTTP_WRITE_TOKEN": settings.http_write_token,
        }
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise ExposureRefused(variable, host, missing)


def check_kafka_address(settings: Settings, *, host: str | None = None) -> None:
    """The same for the Kafka front end, where clients authenticate by SASL or by certificate. Raises `SettingsError` if
    clients could not be given an address, or would send passwords or tokens that others could read: these are refused
    even where `LLOG_INSECURE` allows the rest."""
    host = settings.kafka_host if host is None else host
    check_certificate(settings)
    if not is_loopback(host):
        in_clear = [name for name in settings.kafka_sasl_mechanisms if name in ("PLAIN", "OAUTHBEARER")]
        if in_clear and settings.tls_cert_file is None:
            reason = "what it sends could be read on the way: set LLOG_TLS_CERT_FILE and LLOG_TLS_KEY_FILE"
            raise SettingsError("LLOG_KAFKA_SASL_MECHANISMS", ",".join(in_clear), reason)
        missing = missing_for_kafka(settings)
        if missing and not settings.insecure:
            raise ExposureRefused("LLOG_KAFKA_HOST", host, missing)
    advertised_address(settings, 0, host=host)


def missing_for_kafka(settings: Settings) -> list[str]:
    """What an exposed address lacks."""
    missing = []
    if not settings.kafka_sasl_mechanisms and settings.tls_client_auth != "required":
        missing.append("LLOG_KAFKA_SASL_MECHANISMS (or LLOG_TLS_CLIENT_AUTH=required)")
    if settings.tls_cert_file is None:
        missing += ["LLOG_TLS_CERT_FILE", "LLOG_TLS_KEY_FILE"]
    return missing


def kafka_protocol(settings: Settings) -> str:
    """The listener's protocol, by Kafka's names: what clients set as `security.protocol`."""
    protocol = "PLAINTEXT" if settings.tls_cert_file is None else "SSL"
    return f"SASL_{protocol}" if settings.kafka_sasl_mechanisms else protocol


def advertised_address(settings: Settings, port: int, *, host: str | None = None) -> tuple[str, int]:
    """Host and port that Kafka clients are given for a listener at `port`."""
    host = settings.kafka_host if host is None else host
    if settings.kafka_advertised is not None:
        return parse_host_port(settings.kafka_advertised, port or 1)
    if is_wildcard(host):
        reason = f"must be set, because clients cannot connect to LLOG_KAFKA_HOST={host}; accepted: `host:port`"
        raise SettingsError("LLOG_KAFKA_ADVERTISED", "", reason)
    return host, port


def check_certificate(settings: Settings) -> None:
    """Check that certificate and key are both given, and are files."""
    files = {"LLOG_TLS_CERT_FILE": settings.tls_cert_file, "LLOG_TLS_KEY_FILE": settings.tls_key_file}
    given = [name for name, path in files.items() if path is not None]
    if len(given) == 1:
        [absent] = files.keys() - given
        raise SettingsError(absent, "", f"a certificate needs its key and the reverse: {given[0]} is set, this is not")
    for name, path in (files | {"LLOG_TLS_CLIENT_CA_FILE": settings.tls_client_ca_file}).items():
        if path is not None and not path.is_file():
            raise SettingsError(name, str(path), "must be a file that exists")


def is_loopback(host: str) -> bool:
    """A name other than `localhost` may resolve to any address, so it counts as reachable."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"


# -- listening sockets -------------------------------------------------------------------------------------------------

_HOST_VARIABLES: Final = {"LLOG_KAFKA": "LLOG_KAFKA_HOST"}


class SharedPorts(NamedTuple):
    """Ports at which all workers of one configuration accept connections; `kafka` is None where Kafka is off."""

    http: int
    kafka: int | None


def listening_socket(host: str, port: int, *, of: str, backlog: int | None, reuse_port: bool = False) -> socket.socket:
    """A socket that accepts up to `backlog` waiting connections; None: it has the address but does not listen. Errors
    name the setting to change; `of` is the prefix of the two settings (`LLOG_HTTP`). With `reuse_port` other sockets of
    this user may listen there too, and the kernel spreads connections over them."""
    host_variable = _HOST_VARIABLES.get(of, f"{of}_BIND_HOST")
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, proto)
    except OSError as error:
        raise SettingsError(host_variable, host, f"an address of this machine ({error})") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(address)
        if backlog is not None:
            listening.listen(backlog)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise SettingsError(host_variable, host, "an address of this machine") from error
        accepted = f"a free port of {host} ({error.strerror}); 0 picks one"
        raise SettingsError(f"{of}_PORT", str(port), accepted) from error
    return listening
