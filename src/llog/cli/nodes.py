"""Several broker processes of one command: `llog up --brokers N`, or `LLOG_WORKERS=n` of `llog up` and `llog broker`.

    --brokers 2                 Kafka 9092                     Kafka 9093
    LLOG_WORKERS=2              Kafka 9092 (both), 9093        Kafka 9092 (both), 9094      the same for HTTP

Each process is a node of its own, on its own core, and clients are given its own address. Workers also accept
connections at the port of the settings, among which the kernel spreads them, so one address is enough to find the
cluster. The supervisor holds that port (without listening), so that it is known when 0 was asked for, and that it stays
theirs while a worker is started again.
"""

from __future__ import annotations

import socket
import sys
from contextlib import ExitStack
from typing import Final, Self
from urllib.parse import urlsplit

from llog.errors import SettingsError
from llog.settings import Settings
from llog.settings.listening import SharedPorts, advertised_address, listening_socket
from llog.settings.urls import format_host_port, parse_host_port

PORT_MAX: Final = 65_535


class HeldPorts:
    """`with HeldPorts(settings, host) as ports:` holds the shared ports of workers."""

    def __init__(self, settings: Settings, host: str | None) -> None:
        self._settings, self._http_host = settings, settings.http_bind_host if host is None else host
        self._held = ExitStack()
        self.ports = SharedPorts(0, None)

    def __enter__(self) -> Self:
        settings = self._settings
        try:
            http = self._hold(self._http_host, settings.http_port, "LLOG_HTTP")
            kafka = settings.kafka_port
            self.ports = SharedPorts(
                http, None if kafka is None else self._hold(settings.kafka_host, kafka, "LLOG_KAFKA")
            )
        except BaseException:
            self._held.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @property
    def url(self) -> str:
        scheme = "http" if self._settings.tls_cert_file is None else "https"
        return f"{scheme}://{format_host_port(self._http_host, self.ports.http)}"

    @property
    def kafka(self) -> str:
        """Where Kafka clients find the cluster; empty if Kafka is off."""
        if self.ports.kafka is None:
            return ""
        return format_host_port(*advertised_address(self._settings, self.ports.kafka))

    def _hold(self, host: str, port: int, of: str) -> int:
        # A socket that does not share the port finds out whether another process listens there, even a sharing one.
        with listening_socket(host, port, of=of, backlog=None) as alone:
            port = alone.getsockname()[1]
        held: socket.socket = listening_socket(host, port, of=of, backlog=None, reuse_port=True)
        self._held.callback(held.close)
        return port


def plan_brokers(
    settings: Settings,
    *,
    count: int,
    host: str | None = None,
    role: str = "both",
    shared: SharedPorts | None = None,
    as_json: bool = False,
) -> list[list[str]]:
    """The command line of each process; with `shared`, they are workers. Raises for stores that processes cannot share,
    and when ports run out."""
    _check_stores(settings)
    first = 0 if shared is None else 1
    http_ports = _ports(settings.http_port, first, count, "LLOG_HTTP_PORT")
    kafka_ports: list[str] = [""] * count
    if settings.kafka_port is not None:
        kafka_ports = [str(port) for port in _ports(settings.kafka_port, first, count, "LLOG_KAFKA_PORT")]
    commands = []
    for number in range(count):
        command = [sys.executable, "-m", "llog", "broker", "--supervised", "--role", role]
        command += ["--broker-id", f"{settings.client_identifier}-{number}"]
        command += ["--port", str(http_ports[number]), "--kafka-port", kafka_ports[number]]
        command += [] if host is None else ["--host", host]
        if settings.kafka_advertised is not None:
            command += ["--kafka-advertised", _advertised(settings.kafka_advertised, first + number)]
        if settings.node_id is not None:
            command += ["--node-id", str(settings.node_id + number)]
        if shared is not None:
            command += ["--shared-port", str(shared.http)]
            command += [] if shared.kafka is None else ["--shared-kafka-port", str(shared.kafka)]
        commands.append([*command, "--json"] if as_json else command)
    return commands


def _check_stores(settings: Settings) -> None:
    for name in ("metadata_url", "objects_url", "wal_url"):
        url = getattr(settings, name)
        if urlsplit(url).scheme == "memory":
            reason = "broker processes cannot share memory: use another store, or one broker"
            raise SettingsError(f"LLOG_{name.upper()}", url, reason)


def _ports(base: int, first: int, count: int, variable: str) -> list[int]:
    """One port per process, `first` above `base` and on; 0: any port for each."""
    if base and base + first + count - 1 > PORT_MAX:
        reason = f"{count} brokers need as many ports from this one on, and the last port is {PORT_MAX}"
        raise SettingsError(variable, str(base), reason)
    return [base + first + number if base else 0 for number in range(count)]


def _advertised(address: str, add: int) -> str:
    """An address without a port stays as it is: the process adds the port that it listens on."""
    if urlsplit(f"//{address}").port is None:
        return address
    host, port = parse_host_port(address)
    if port + add > PORT_MAX:
        raise SettingsError("LLOG_KAFKA_ADVERTISED", address, f"{add} is added to its port, beyond {PORT_MAX}")
    return format_host_port(host, port + add)
