"""Apicurio Registry, which keeps its schemas in a topic: a journal that it reads back when it starts.

Its packages come from Maven. The journal is made beforehand as a compacted topic. Karapace, which is better known, is
on no package registry.
"""

from __future__ import annotations

import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic

from llog.testing.servers import free_port, is_ok
from tests.conformance.java import Service
from tests.conformance.outcome import Result
from tests.conformance.packages import java_program, kept, maven_archive
from tests.conformance.running import end_group
from tests.conformance.suite import Claims, Suite, Target

VERSION: Final = "3.3.3"
JAVA_MIN: Final = 21
ARTIFACT: Final = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
JOURNAL: Final = "registry-journal"
START_SECONDS_MAX: Final = 120
CALL_SECONDS_MAX: Final = 30
ORDER: Final = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
WITH_DEFAULT: Final = {"name": "note", "type": "string", "default": ""}
WITHOUT_DEFAULT: Final = {"name": "total", "type": "double"}


def run(target: Target) -> list[Result]:
    java = java_program(JAVA_MIN)
    package = kept(f"apicurio-{VERSION}", lambda stage: maven_archive(ARTIFACT, stage))
    admin = AdminClient({"bootstrap.servers": target.address})
    for made in admin.create_topics([NewTopic(JOURNAL, 1, 1, config={"cleanup.policy": "compact"})]).values():
        made.result(CALL_SECONDS_MAX)
    claims = Claims()
    ids: dict[str, int] = {}
    with claims.claim("the registry starts on a compacted topic"), _registry(target, java, package, "first") as url:
        with claims.claim("schemas are registered and read back by id"):
            ids["orders"] = _register(url, "orders-value", ORDER)
            ids["users"] = _register(url, "users-value", ORDER | {"name": "User"})
            assert _schema(url, ids["orders"]) == ORDER
        with claims.claim("the same schema again has the same id"):
            assert _register(url, "orders-value", ORDER) == ids["orders"]
        with claims.claim("a compatible schema becomes version 2"):
            assert _call(url, "PUT", "/config/orders-value", {"compatibility": "BACKWARD"})[0] == 200
            ids["orders-2"] = _register(url, "orders-value", _with(WITH_DEFAULT))
            assert _versions(url) == [1, 2]
        with claims.claim("an incompatible schema is refused"):
            status, answer = _call(url, "POST", "/subjects/orders-value/versions", _body(_with(WITHOUT_DEFAULT)))
            assert status == 409, (status, answer)
        with claims.claim("a subject is deleted"):
            assert _call(url, "DELETE", "/subjects/users-value", None)[0] == 200
            assert "users-value" not in _call(url, "GET", "/subjects", None)[1]
    with claims.claim("the registry starts again from its journal"), _registry(target, java, package, "second") as url:
        with claims.claim("after a restart ids, versions and deletions are as before"):
            assert _schema(url, ids["orders"]) == ORDER
            assert _schema(url, ids["orders-2"]) == _with(WITH_DEFAULT)
            assert _versions(url) == [1, 2]
            assert "users-value" not in _call(url, "GET", "/subjects", None)[1]
        with claims.claim("after a restart an incompatible schema is still refused"):
            assert _call(url, "POST", "/subjects/orders-value/versions", _body(_with(WITHOUT_DEFAULT)))[0] == 409
        with claims.claim("after a restart a new schema gets a new id"):
            assert _register(url, "more-value", ORDER | {"name": "More"}) not in ids.values()
    return claims.results


@contextmanager
def _registry(target: Target, java: str, package: Path, name: str) -> Iterator[str]:
    """The address of its API for clients of Confluent's registry; its tables are in memory, so only the topic lasts."""
    port = free_port()
    settings = {
        "APICURIO_STORAGE_KIND": "kafkasql",
        "APICURIO_KAFKASQL_BOOTSTRAP_SERVERS": target.address,
        "APICURIO_KAFKASQL_TOPIC": JOURNAL,
        "APICURIO_DATASOURCE_URL": f"jdbc:h2:mem:{name}",
        "QUARKUS_HTTP_PORT": str(port),
        "QUARKUS_HTTP_HOST": "127.0.0.1",
        "QUARKUS_LOG_CONSOLE_FORMAT": "%p %c{1} %s%e%n",
        "QUARKUS_LOG_LEVEL": "WARN",
    }
    log = target.directory / f"registry-{name}.log"
    with open(log, "wb") as output:
        child = subprocess.Popen(
            [
                java,
                "-XX:TieredStopAtLevel=1",
                "-XX:+UseSerialGC",
                "-Xmx512m",
                "-jar",
                str(package / "quarkus-run.jar"),
            ],
            cwd=target.directory,
            env=os.environ | settings,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    service = Service("registry", child, log)
    try:
        service.until(
            "the registry is ready", lambda: is_ok(f"http://127.0.0.1:{port}/health/ready"), START_SECONDS_MAX
        )
        yield f"http://127.0.0.1:{port}/apis/ccompat/v7"
        service.stop()
    finally:
        end_group(child)


def _with(field: dict[str, str]) -> dict[str, Any]:
    return ORDER | {"fields": [{"name": "id", "type": "long"}, field]}


def _body(schema: dict[str, Any]) -> dict[str, str]:
    return {"schema": json.dumps(schema)}


def _register(url: str, subject: str, schema: dict[str, Any]) -> int:
    status, answer = _call(url, "POST", f"/subjects/{subject}/versions", _body(schema))
    assert status == 200, (status, answer)
    return int(answer["id"])


def _schema(url: str, number: int) -> Any:
    status, answer = _call(url, "GET", f"/schemas/ids/{number}", None)
    assert status == 200, (status, answer)
    return json.loads(answer["schema"])


def _versions(url: str) -> Any:
    return _call(url, "GET", "/subjects/orders-value/versions", None)[1]


def _call(url: str, method: str, path: str, body: Any) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    request = urllib.request.Request(url + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=CALL_SECONDS_MAX) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")


SUITE: Final = Suite(
    "registry",
    "Apicurio Registry",
    VERSION,
    run,
    note="a schema registry on a compacted topic; restarted. Karapace is on no package registry",
)
