"""The minimum security of every broker: no access by accident, and no secret in any output."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.patience import PATIENCE_SECONDS
from tests.system.broker_process import LlogProcess, batch, run_llog

READ, WRITE, S3_KEY, S3_SECRET, OXIA, PASSWORD = SECRETS = (
    "read-4c1f0e52d7b6",
    "write-9d27ab41c8e3",
    "key-71aa02",
    "s3secret-5e3b90",
    "oxia-b8d61c",
    "pw-0f93de",
)
TOKENS: Final = {"LLOG_HTTP_READ_TOKEN": READ, "LLOG_HTTP_WRITE_TOKEN": WRITE}
OTHERS: Final = {"LLOG_S3_ACCESS_KEY_ID": S3_KEY, "LLOG_S3_SECRET_ACCESS_KEY": S3_SECRET, "LLOG_OXIA_TOKEN": OXIA}


def assert_no_secret(text: str, where: str) -> None:
    assert [secret for secret in SECRETS if secret in text] == [], f"in {where}: {text}"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Signed by itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([*command, "-keyout", key, "-out", cert, "-days", "2", *names], check=True, capture_output=True)
    key.chmod(0o600)
    return cert, key


def test_tokens_and_tls_are_asked_for_and_no_secret_leaves_the_process(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    settings = {
        "LLOG_DATA_DIR": f"{tmp_path}/data",
        "LLOG_TLS_CERT_FILE": str(cert),
        "LLOG_TLS_KEY_FILE": str(key),
        **TOKENS,
        **OTHERS,
    }
    with LlogProcess("up", "--json", settings=settings, log=tmp_path / "log") as stack:
        stack.wait(lambda: stack.output().count('"service":') == 2, "listen")
        lines = map(json.loads, stack.output().splitlines())  # of the log too
        urls = {line["service"]: line["url"] for line in lines if "service" in line}
        trust = ssl.create_default_context(cafile=cert)
        with httpx.Client(verify=trust, timeout=PATIENCE_SECONDS) as client:
            _ask(client, urls["broker"])
            for service, url in urls.items():
                for page in ("/health", "/metrics", "/metrics/prometheus", *(["/schema"] * (service == "broker"))):
                    answer = client.get(url + page, headers={"authorization": f"Bearer {READ}"})
                    assert answer.status_code == 200, f"{service} {page}: {answer.text}"
                    assert_no_secret(answer.text, f"{service}{page}")
        with pytest.raises(httpx.ConnectError):
            httpx.get(
                urls["broker"].replace("127.0.0.1", "localhost") + "/health", timeout=5
            )  # the certificate does not name it
        assert stack.terminate() == 0, stack.output()
        assert_no_secret(stack.output(), "the log")
    for command in (("settings",), ("settings", "--json"), ("doctor",), ("doctor", "--json"), ("stores", "check")):
        done = run_llog(*command, settings=settings)
        assert done.returncode == 0, done.stdout + done.stderr
        assert_no_secret(done.stdout + done.stderr, " ".join(command))


def _ask(client: httpx.Client, url: str) -> None:
    """Each token opens its own kind; nothing opens without."""
    body = batch("orders", 0, ["alpha"])
    asked = {"topic_partitions": [{"topic": "orders", "partition": 0, "fetch_offset": 1}]}
    for path, sent, right, wrong in (("/produce", body, WRITE, READ), ("/consume", asked, READ, WRITE)):
        for token, status in ((None, 401), ("guessed", 401), (wrong, 403), (right, 200)):
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            answer = client.post(url + path, json=sent, headers=headers)
            assert answer.status_code == status, f"{path} with {token}: {answer.text}"
            assert_no_secret(answer.text, path)
    assert client.get(url + "/metrics").status_code == 401
    assert client.get(url + "/health").status_code == 200, "those who watch a process need no secret"


@pytest.mark.parametrize("service", ["broker", "up", "compactor"])
def test_an_address_that_others_reach_is_refused_with_what_is_missing(tmp_path: Path, service: str) -> None:
    settings = {"LLOG_DATA_DIR": str(tmp_path), "LLOG_HTTP_READ_TOKEN": READ}
    variable = "LLOG_COMPACTOR_BIND_HOST" if service == "compactor" else "LLOG_HTTP_BIND_HOST"
    ended = run_llog(service, settings=settings | {variable: "0.0.0.0"})
    assert ended.returncode == 2, ended.stdout + ended.stderr
    for named in (variable, "LLOG_TLS_CERT_FILE", "LLOG_INSECURE"):
        assert named in ended.stderr
    assert "Traceback" not in ended.stderr
    assert_no_secret(ended.stdout + ended.stderr, service)


def test_going_without_protection_must_be_said(tmp_path: Path) -> None:
    """By a name: it may mean any address, although this one stays on this machine."""
    name = next((name for name in ("ip6-localhost", socket.gethostname()) if _is_ours(name)), None)
    if name is None:
        pytest.skip("no name but localhost means this machine alone")
    settings = {"LLOG_DATA_DIR": str(tmp_path)}
    assert run_llog("broker", "--host", name, settings=settings).returncode == 2
    with LlogProcess("broker", "--host", name, settings=settings | {"LLOG_INSECURE": "1"}, log=tmp_path / "log") as run:
        assert name in run.url
        assert run.terminate() == 0


def _is_ours(name: str) -> bool:
    try:
        found = {str(address[4][0]) for address in socket.getaddrinfo(name, 0)}
    except OSError:
        return False
    return found <= {"127.0.0.1", "127.0.1.1", "::1"}


@pytest.mark.parametrize(
    "stores",
    [
        {"LLOG_METADATA_URL": f"postgresql://llog:{PASSWORD}@127.0.0.1:9/llog"},
        {"LLOG_OBJECTS_URL": "s3://bucket", "LLOG_S3_ENDPOINT_URL": "http://127.0.0.1:9"},
    ],
    ids=["postgresql", "s3"],
)
def test_a_store_that_is_down_is_told_without_its_password(tmp_path: Path, stores: dict[str, str]) -> None:
    settings = {"LLOG_DATA_DIR": str(tmp_path), "LLOG_REQUEST_TIMEOUT_MS": "500", **OTHERS, **stores}
    for command, code in ((("doctor", "--json"), 1), (("topic", "list"), None), (("settings",), 0)):
        ended = run_llog(*command, settings=settings)
        assert code is None or ended.returncode == code, ended.stdout + ended.stderr
        assert "Traceback" not in ended.stderr
        assert_no_secret(ended.stdout + ended.stderr, " ".join(command))
    with LlogProcess("broker", settings=settings, log=tmp_path / "log") as broker:
        broker.wait(lambda: "waiting for a store" in broker.output() and '"listening"' in broker.output(), "wait")
        [url] = re.findall(r'"event":"listening","url":"([^"]+)"', broker.output())
        health = httpx.get(f"{url}/health", timeout=PATIENCE_SECONDS)
        assert health.json()["status"] != "ok"
        assert_no_secret(health.text, "/health")
        assert broker.terminate() == 0, broker.output()
        assert_no_secret(broker.output(), "the log")
