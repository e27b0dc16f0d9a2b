"""Clients that show a certificate, on a server that asks for one."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from llog.kafka.codec.messages.metadata import MetadataRequest
from llog.log.topics.admin import create_topic
from llog.security.acl import Acl, Operation, PatternType, Permission, ResourceType
from llog.security.changes import create_acls
from tests.certificates import make_certificate
from tests.kafka_client import KafkaClient
from tests.unit.kafka.serving import ServedKafka, serve


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The server's certificate, which is its own authority; an authority of clients; a client's certificate."""
    folder = tmp_path_factory.mktemp("certificates")
    cert, key = make_certificate(folder)
    openssl = shutil.which("openssl")
    assert openssl is not None

    def run(*arguments: object) -> None:
        subprocess.run([openssl, *map(str, arguments)], check=True, capture_output=True)

    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    found = {name: folder / name for name in ("ca.pem", "ca.key", "ada.csr", "ada.key", "ada.pem")}
    run(*new, "-x509", "-days", 2, "-subj", "/CN=authority", "-keyout", found["ca.key"], "-out", found["ca.pem"])
    run(*new, "-subj", "/C=CH/O=example/CN=ada", "-keyout", found["ada.key"], "-out", found["ada.csr"])
    signing = ("-CA", found["ca.pem"], "-CAkey", found["ca.key"], "-CAcreateserial")
    run("x509", "-req", "-days", 2, *signing, "-in", found["ada.csr"], "-out", found["ada.pem"])
    return found | {"cert": cert, "key": key}


def context_of(files: dict[str, Path], *, certificate: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files["cert"])
    context.check_hostname = False
    if certificate:
        context.load_cert_chain(files["ada.pem"], files["ada.key"])
    return context


def settings(files: dict[str, Path], asked: str) -> dict[str, Any]:
    return {
        "tls_cert_file": files["cert"],
        "tls_key_file": files["key"],
        "tls_client_ca_file": files["ca.pem"],
        "tls_client_auth": asked,
        "authorization": True,
    }


async def topics(kafka: ServedKafka, tls: ssl.SSLContext) -> list[str]:
    async with KafkaClient.connected(kafka.server.port, tls=tls) as client:
        return [topic.name for topic in (await client.ask(MetadataRequest(topics=None), 12)).topics]


async def allow(kafka: ServedKafka, principal: str) -> None:
    await create_topic(kafka.broker.context, "orders", partitions=1)
    what = (ResourceType.TOPIC, "orders", PatternType.LITERAL, Operation.DESCRIBE, Permission.ALLOW)
    await create_acls(kafka.broker.context, [Acl(principal, "*", *what)])
    await kafka.broker.security.changed()


async def test_the_subject_of_a_certificate_is_the_principal(files: dict[str, Path]) -> None:
    async with serve(**settings(files, "requested")) as kafka:
        await allow(kafka, "User:CN=ada,O=example,C=CH")
        assert await topics(kafka, context_of(files, certificate=True)) == ["orders"]
        assert await topics(kafka, context_of(files, certificate=False)) == []


async def test_rules_make_a_name_of_the_subject(files: dict[str, Path]) -> None:
    async with serve(**settings(files, "required"), tls_principal_rules="RULE:^CN=([^,]+),.*$/$1/U") as kafka:
        await allow(kafka, "User:ADA")
        assert await topics(kafka, context_of(files, certificate=True)) == ["orders"]


async def test_a_client_without_the_certificate_that_is_required_is_refused(files: dict[str, Path]) -> None:
    async with serve(**settings(files, "required")) as kafka:
        with pytest.raises((ConnectionError, ssl.SSLError, asyncio.IncompleteReadError)):
            await topics(kafka, context_of(files, certificate=False))
