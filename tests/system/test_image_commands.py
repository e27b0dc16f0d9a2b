"""The image and the compose files: they are checked against rules, and their commands run, outside containers.

No container engine can be assumed. What an engine would do is a copy of files and the start of commands; the commands
are read from the files and run here, against fresh processes on the loopback address.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from llog.settings import Settings
from llog.settings.listening import check_exposure
from llog.testing.servers import ServerUnavailable, binary, free_port
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.system.image_files import (
    COMPOSE,
    DOCKERFILE,
    REVIEW,
    ROOT,
    environment,
    health_command,
    instructions,
    is_ignored,
    read_yaml,
    resolved,
)

SOAK: Final = os.environ.get("LLOG_SOAK") == "1"
BIN: Final = Path(sys.executable).parent
IMAGE: Final = instructions(DOCKERFILE.read_text())
FINAL: Final = max(one.stage for one in IMAGE)
REVIEW_VARIABLES: Final = {
    "LLOG_REVIEW_DIR": "/tmp/review",
    "LLOG_REVIEW_USER": "1000:1000",
    "LLOG_REVIEW_PROMETHEUS_PORT": "9090",
    "LLOG_REVIEW_GRAFANA_PORT": "3000",
}
SERVICES: Final = resolved(read_yaml(COMPOSE), {})["services"]
SERVICE_KEYS: Final = frozenset(
    {"build", "command", "depends_on", "entrypoint", "environment", "healthcheck", "image", "init", "network_mode"}
    | {"ports", "restart", "user", "volumes"}
)
HEALTH_KEYS: Final = {"test", "interval", "timeout", "retries", "start_period"}


def named(name: str, stage: int | None = None) -> list[Any]:
    return [one for one in IMAGE if one.name == name and (stage is None or one.stage == stage)]


# -- the Dockerfile ----------------------------------------------------------------------------------------------------


def test_each_stage_names_the_tag_of_its_image() -> None:
    images = [one.words()[0] for one in named("FROM")]
    assert images == ["python:3.11-slim"] * len(images)
    assert FINAL >= 1, "one stage builds, another one runs"


def test_the_last_stage_copies_from_earlier_ones_only_and_never_adds() -> None:
    stages = {match[1] for one in named("FROM") if (match := re.search(r" AS (\w+)$", one.text))}
    sources = [re.match(r"--from=(\w+) ", one.text) for one in named("COPY", FINAL)]
    assert sources
    assert all(source is not None and source[1] in stages for source in sources)
    assert not named("ADD")


def test_nothing_runs_as_root() -> None:
    last = [one for one in IMAGE if one.stage == FINAL]
    [user] = [one for one in last if one.name == "USER"]
    assert int(user.text) > 0, "a number, so that Kubernetes can tell that it is not root"
    assert not [one for one in last[last.index(user) :] if one.name in ("RUN", "COPY")]


def test_the_image_shows_its_ports_health_and_command() -> None:
    settings = Settings.from_env({})
    assert named("EXPOSE")[0].words() == [str(settings.http_port), str(settings.kafka_port)]
    assert named("ENTRYPOINT")[0].words() == ["llog"]
    assert named("CMD")[0].words() == ["broker"]
    assert any("/health" in word for word in health_command(IMAGE))
    for one in (*named("ENTRYPOINT"), *named("CMD")):
        assert one.text.startswith("["), "a shell would not pass SIGTERM on"


def test_no_instruction_holds_a_secret() -> None:
    assert not re.search(r"(?i)secret|password|token", "\n".join(one.text for one in IMAGE))


def test_packages_have_the_versions_of_the_constraints() -> None:
    installs = [one.text for one in named("RUN") if "pip install" in one.text]
    assert installs
    assert all("--constraint constraints.txt" in text for text in installs)


def test_everything_that_is_copied_exists_and_is_sent_to_the_builder() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    for one in named("COPY", 0):
        *sources, _ = one.words()
        for source in sources:
            assert (ROOT / source).exists(), source
            assert not is_ignored(source, rules), source
    assert not is_ignored("src/llog/limits.py", rules)
    for path in (".git/config", ".venv/bin/python", ".env", "tests/conftest.py", "src/llog/__pycache__/limits.pyc"):
        assert is_ignored(path, rules), path


def test_a_dockerfile_with_an_unknown_instruction_is_noticed() -> None:
    with pytest.raises(ValueError, match="COPPY"):
        instructions("FROM a:1\nCOPPY b c")


# -- the compose files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [COMPOSE, REVIEW], ids=["compose", "review"])
def test_services_have_known_keys_and_pinned_images(path: Path) -> None:
    document = resolved(read_yaml(path), REVIEW_VARIABLES)
    assert {key for key in document if not key.startswith("x-")} <= {"name", "services", "volumes"}
    for name, service in document["services"].items():
        assert set(service) <= SERVICE_KEYS, name
        assert re.fullmatch(r"[a-z0-9./-]+:v?\d[\w.-]*|llog:latest", service["image"]), name


def test_every_port_is_published_on_the_loopback_address() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert len(published) >= 6
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in published)
    assert len({port.split(":")[1] for port in published}) == len(published)


def test_the_review_listens_on_the_loopback_address() -> None:
    services = read_yaml(REVIEW)["services"]
    assert {service["network_mode"] for service in services.values()} == {"host"}
    assert any("--web.listen-address=127.0.0.1:" in word for word in services["prometheus"]["command"])
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"


def test_every_lasting_service_has_a_health_check_and_restarts() -> None:
    for name, service in SERVICES.items():
        if service["restart"] == "no":
            continue
        assert set(service["healthcheck"]) == HEALTH_KEYS, name
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert service["restart"] == "unless-stopped", name


def test_services_wait_for_what_they_need() -> None:
    for name, service in SERVICES.items():
        for other, wait in service.get("depends_on", {}).items():
            once = SERVICES[other]["restart"] == "no"
            wanted = "service_completed_successfully" if once else "service_healthy"
            assert wait == {"condition": wanted}, f"{name} → {other}"
    assert set(SERVICES["broker"]["depends_on"]) == {"oxia", "s3"}


def test_volumes_are_declared_and_mounted_files_exist() -> None:
    declared = set(read_yaml(COMPOSE)["volumes"])
    used = set()
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (COMPOSE.parent / source).exists(), source
                assert volume.endswith(":ro"), volume
            else:
                used.add(source)
    assert used == declared


def test_the_settings_of_brokers_and_compactors_are_valid() -> None:
    for name in ("broker", "compactor"):
        given = SERVICES[name]["environment"]
        settings = Settings.from_env(given)
        check_exposure(settings)
        known = (ROOT / "docs" / "reference" / "settings.md").read_text()
        assert all(f"`{variable}`" in known for variable in given), name
        assert settings.s3_access_key_id == SERVICES["s3"]["environment"]["ROOT_ACCESS_KEY"]
        assert settings.s3_secret_access_key == SERVICES["s3"]["environment"]["ROOT_SECRET_KEY"]


def test_prometheus_and_grafana_read_what_the_others_serve() -> None:
    [scrape] = read_yaml(ROOT / "deploy" / "prometheus.yml")["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": ["broker:8080", "compactor:8090"]}]
    [source] = read_yaml(ROOT / "deploy" / "grafana" / "datasources" / "llog.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    [provider] = read_yaml(ROOT / "deploy" / "grafana" / "dashboards" / "llog.yaml")["providers"]
    folder = provider["options"]["path"]
    assert any(volume.split(":")[1].startswith(f"{folder}/") for volume in SERVICES["grafana"]["volumes"])


def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    from llog.testing.servers import prometheus_program

    try:
        promtool = prometheus_program().with_name("promtool")
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    text = (ROOT / "deploy" / "prometheus.yml").read_text()
    config = tmp_path / "prometheus.yml"
    config.write_text(text.replace("/etc/prometheus/", f"{ROOT / 'grafana'}/"))
    checked = subprocess.run([promtool, "check", "config", config], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("path", [COMPOSE, REVIEW], ids=["compose", "review"])
def test_docker_compose_accepts_the_file(path: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker with its compose plugin is not installed")
    command = [docker, "compose", "-f", str(path), "config", "--quiet"]
    checked = subprocess.run(
        command, env=os.environ | REVIEW_VARIABLES, capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stderr


# -- the commands ------------------------------------------------------------------------------------------------------


def outside(command: list[str]) -> list[str]:
    """The same programs, of this checkout's environment."""
    places = {"llog": str(BIN / "llog"), "python": sys.executable, "/opt/llog/bin/python": sys.executable}
    return [places.get(command[0], command[0]), *command[1:]]


def clean(settings: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("LLOG_", "AWS_"))}
    return inherited | dict(settings)


def succeeds(command: list[str], settings: Mapping[str, str]) -> bool:
    done = subprocess.run(outside(command), env=clean(settings), capture_output=True, timeout=PATIENCE_SECONDS)
    return done.returncode == 0


@contextmanager
def running(command: list[str], settings: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process gets STOPSIGNAL at the end, and must end well."""
    with open(log, "wb") as output:
        child = subprocess.Popen(outside(command), env=clean(settings), cwd=log.parent, stdout=output, stderr=output)
    try:
        yield child
        child.send_signal(getattr(signal, named("STOPSIGNAL")[0].text))
        assert child.wait(PATIENCE_SECONDS) == 0, log.read_text()
    finally:
        child.kill()
        child.wait()


def test_the_default_command_serves_and_the_health_check_sees_it(tmp_path: Path) -> None:
    command = named("ENTRYPOINT")[0].words() + named("CMD")[0].words()
    given = {name: value for name, value in environment(IMAGE, FINAL).items() if name.startswith("LLOG_")}
    settings = given | {
        "LLOG_DATA_DIR": str(tmp_path / "data"),
        "LLOG_HTTP_PORT": str(free_port()),
        "LLOG_KAFKA_PORT": str(free_port()),
    }
    check = health_command(IMAGE)
    assert not succeeds(check, settings), "nothing serves yet"
    with running(command, settings, tmp_path / "log"):
        wait_until(lambda: succeeds(check, settings), "the health check succeeds", pause_seconds=0.2)
    assert not succeeds(check, settings)


def test_the_kernels_are_compiled_into_the_image(tmp_path: Path) -> None:
    """They are compiled here only with LLOG_SOAK=1: that takes half a minute of a processor."""
    runs = named("RUN", 0)
    [compiling] = [one for one in runs if "warm_up" in one.text]
    [dating] = [one for one in runs if one.text.startswith("find ") and "touch" in one.text]
    assert runs.index(dating) < runs.index(compiling), "sources get their time before kernels are compiled for it"
    [processor] = [one.text.partition("=")[2] for one in IMAGE if one.name == "ARG" and one.stage == -1]
    assert environment(IMAGE, 0)["NUMBA_CPU_NAME"] == environment(IMAGE, FINAL)["NUMBA_CPU_NAME"] == "${KERNEL_CPU}"
    program, option, code = compiling.words()
    assert (program, option) == ("/opt/llog/bin/python", "-c")
    compile(code, "Dockerfile", "exec")
    if SOAK:
        assert succeeds(compiling.words(), {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_CPU_NAME": processor})
        assert list(tmp_path.rglob("*.nbi"))


def test_the_time_of_sources_survives_an_image_layer(tmp_path: Path) -> None:
    [dating] = [one for one in named("RUN", 0) if "touch" in one.text]
    source = tmp_path / "module.py"
    source.write_text("x = 1\n")
    command = dating.text.replace("/opt/llog", str(tmp_path))
    subprocess.run(["sh", "-c", command], check=True, timeout=PATIENCE_SECONDS)
    assert source.stat().st_mtime_ns % 1_000_000_000 == 0


@pytest.mark.server
@pytest.mark.skipif(not SOAK, reason="LLOG_SOAK=1: starts four processes")
def test_the_commands_of_the_compose_file_make_a_cluster(tmp_path: Path) -> None:
    try:
        programs = {"oxia": str(binary("oxia")), "s3": str(binary("versitygw"))}
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    ports = {name: str(free_port()) for name in ("oxia", "metrics", "s3", "http", "kafka", "compactor")}
    (tmp_path / "llog").mkdir()

    def here(text: str) -> str:
        return (
            text.replace("oxia:6648", f"127.0.0.1:{ports['oxia']}")
            .replace("http://s3:7070", f"http://127.0.0.1:{ports['s3']}")
            .replace("0.0.0.0", "127.0.0.1")
            .replace("/data", str(tmp_path))
        )

    oxia = [programs["oxia"], *map(here, SERVICES["oxia"]["command"][1:])]
    oxia += ["-p", f"127.0.0.1:{ports['oxia']}", "-m", f"127.0.0.1:{ports['metrics']}"]
    s3 = [programs["s3"], *map(here, SERVICES["s3"]["command"])]
    s3[s3.index(":7070")] = f"127.0.0.1:{ports['s3']}"
    moved = {
        "LLOG_HTTP_PORT": ports["http"],
        "LLOG_KAFKA_PORT": ports["kafka"],
        "LLOG_COMPACTOR_PORT": ports["compactor"],
        "LLOG_KAFKA_ADVERTISED": f"127.0.0.1:{ports['kafka']}",
    }

    def settings(name: str) -> dict[str, str]:
        mine = {key: here(value) for key, value in SERVICES[name]["environment"].items()} | moved
        return mine | {"LLOG_DATA_DIR": str(tmp_path / name)}

    def check(name: str, port: str) -> list[str]:
        _, *command = SERVICES[name]["healthcheck"]["test"]
        return [re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{ports[port]}", word) for word in command]

    children: list[subprocess.Popen[bytes]] = []
    try:
        for command, environ in ((oxia, {}), (s3, SERVICES["s3"]["environment"])):
            log = open(tmp_path / f"log-{len(children)}", "wb")  # noqa: SIM115
            children.append(subprocess.Popen(command, env=clean(environ), stdout=log, stderr=log))
        for name, port in (("oxia", "metrics"), ("s3", "s3")):
            command = check(name, port)
            wait_until(partial(succeeds, command, {}), f"{name} is healthy", pause_seconds=0.2)
        entry = named("ENTRYPOINT")[0].words()
        broker, compactor = (entry + SERVICES[name]["command"] for name in ("broker", "compactor"))
        with running(broker, settings("broker"), tmp_path / "broker.log"):
            wait_until(lambda: succeeds(check("broker", "http"), {}), "the broker is ready", pause_seconds=0.2)
            with running(compactor, settings("compactor"), tmp_path / "compactor.log"):
                wait_until(lambda: succeeds(check("compactor", "compactor"), {}), "the compactor", pause_seconds=0.2)
    finally:
        for child in children:
            child.kill()
            child.wait()
