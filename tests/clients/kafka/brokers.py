"""The broker that the clients of this folder are let loose on: ours, Apache Kafka itself, or one that runs already.

`pytest tests/clients/kafka` judges our broker. With `--kafka reference` the same claims judge Apache Kafka: a
claim that fails there is wrong. `--kafka 127.0.0.1:9092` judges the broker at that address.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from llog.testing.kafka_server import KafkaServer
from llog.testing.servers import ServerUnavailable, free_port
from tests.clients.http_calls import Running, running

OURS: Final = "llog"
REFERENCE: Final = "reference"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate of 127.0.0.1 that signs itself, so it is its own authority; `both` is key and certificate."""

    cert: Path
    key: Path
    both: Path


@dataclass(frozen=True, slots=True)
class KafkaBroker:
    address: str
    ca_file: Path | None = None
    """Of the certificate; set where clients have to speak TLS."""
    ours: Running | None = None
    """The process, where the broker is ours."""


@contextmanager
def kafka_broker(which: str, directory: Path, certificate: Certificate | None = None) -> Iterator[KafkaBroker]:
    """The broker that `--kafka` names; it speaks TLS where a certificate is given."""
    ca_file = None if certificate is None else certificate.cert
    if which == OURS:
        with our_broker(directory, certificate) as broker:
            yield broker
    elif which == REFERENCE:
        try:
            server = KafkaServer(tls=None if certificate is None else certificate.both)
        except ServerUnavailable as reason:
            pytest.skip(str(reason))
        with server:
            yield KafkaBroker(server.address, ca_file)
    elif certificate is None:
        yield KafkaBroker(which)
    else:
        pytest.skip("the broker at a given address has a certificate of its own, or none")


@contextmanager
def our_broker(
    directory: Path, certificate: Certificate | None = None, *, name: str = "broker", **settings: str
) -> Iterator[KafkaBroker]:
    """`llog broker` with both of its ports."""
    port = free_port()
    settings |= {"llog_kafka_port": str(port)}
    if certificate is not None:
        settings |= {"llog_tls_cert_file": str(certificate.cert), "llog_tls_key_file": str(certificate.key)}
    with running("broker", "--broker-id", name, directory=directory, name=name, **settings) as process:
        yield KafkaBroker(f"127.0.0.1:{port}", None if certificate is None else certificate.cert, process)


def make_certificate(directory: Path) -> Certificate:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    made = Certificate(directory / "cert.pem", directory / "key.pem", directory / "both.pem")
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    command = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        *names,
    ]
    subprocess.run([*command, "-keyout", made.key, "-out", made.cert], check=True, capture_output=True)
    made.both.write_bytes(made.key.read_bytes() + made.cert.read_bytes())
    return made
