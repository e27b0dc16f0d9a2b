"""The stores of a scenario: servers started in the run's data directory, and the settings that lead to them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec

from llog.errors import StackFailed
from llog.loadtest.scenario.model import Scenario
from llog.loadtest.stack import object_proxy
from llog.loadtest.stack.record import StackFile
from llog.testing.servers import (
    ACCESS_KEY,
    SECRET_KEY,
    Minio,
    OxiaCluster,
    OxiaServer,
    PostgresServer,
    S3Server,
    Server,
    ServerPlace,
    ServerUnavailable,
    VersityGateway,
    free_port,
    port_open,
    wait_until,
)

_TRAVERSABLE_BY_ALL: Final = 0o001

S = TypeVar("S", bound=Server)


class OpenStores(msgspec.Struct, frozen=True):
    settings: Mapping[str, str]
    ports: Mapping[str, int]


def needs_object_proxy(scenario: Scenario) -> bool:
    return any(fault.kind.endswith("_objects") for fault in scenario.faults)


def start_stores(stack: StackFile, scenario: Scenario, environment: Mapping[str, str]) -> OpenStores:
    """Start what the scenario names; blocks until it serves. Raises `StackFailed`."""
    metadata = _metadata(stack, scenario)
    objects = _objects(stack, scenario)
    settings, ports = {**metadata.settings, **objects.settings}, {**metadata.ports, **objects.ports}
    if needs_object_proxy(scenario):
        proxy, control = free_port(), free_port()
        _start_proxy(stack, environment, proxy, control, ports[scenario.stack.objects])
        settings["LLOG_S3_ENDPOINT_URL"] = f"http://{object_proxy.HOST}:{proxy}"
        ports |= {object_proxy.NAME: proxy, f"{object_proxy.NAME}-control": control}
    return OpenStores(settings, ports)


def _metadata(stack: StackFile, scenario: Scenario) -> OpenStores:
    wanted = scenario.stack
    if wanted.metadata == "lmdb":
        return OpenStores({"LLOG_METADATA_URL": f"lmdb://{stack.run.data / 'metadata'}"}, {})
    if wanted.metadata == "oxia":
        oxia = _started(stack, wanted.metadata, lambda place: OxiaServer(shards=wanted.metadata_shards, place=place))
        return OpenStores({"LLOG_METADATA_URL": f"oxia://{oxia.address}"}, {"oxia": oxia.port})
    if wanted.metadata == "oxia-cluster":
        cluster = _started(
            stack,
            wanted.metadata,
            lambda place: OxiaCluster(shards=wanted.metadata_shards, nodes=wanted.metadata_nodes, place=place),
        )
        ports = {f"oxia-node-{i}": int(address.rpartition(":")[2]) for i, address in enumerate(cluster.public)}
        return OpenStores({"LLOG_METADATA_URL": f"oxia://{cluster.address}"}, ports)
    if wanted.metadata == "postgresql":
        server = _started(stack, wanted.metadata, _postgres)
        return OpenStores({"LLOG_METADATA_URL": server.url}, {"postgresql": server.port})
    return OpenStores({"LLOG_METADATA_URL": wanted.metadata}, {})


def _objects(stack: StackFile, scenario: Scenario) -> OpenStores:
    wanted = scenario.stack.objects
    if wanted == "directory":
        directory = stack.run.data / "objects"
        directory.mkdir(exist_ok=True)
        return OpenStores({"LLOG_OBJECTS_URL": f"file://{directory}"}, {})
    if wanted in ("minio", "versitygw"):
        server: S3Server = _started(
            stack, wanted, lambda place: Minio(place=place) if wanted == "minio" else VersityGateway(place=place)
        )
        settings = {
            "LLOG_OBJECTS_URL": f"s3://{server.bucket}",
            "LLOG_S3_ENDPOINT_URL": server.endpoint,
            "LLOG_S3_ACCESS_KEY_ID": ACCESS_KEY,
            "LLOG_S3_SECRET_ACCESS_KEY": SECRET_KEY,
        }
        return OpenStores(settings, {wanted: server.port})
    return OpenStores({"LLOG_OBJECTS_URL": wanted}, {})


def _postgres(place: ServerPlace) -> PostgresServer:
    server = PostgresServer(place=place)
    if server.user is not None:
        closed = [path for path in place.data.parents if not path.stat().st_mode & _TRAVERSABLE_BY_ALL]
        if closed:
            reason = (
                f"it runs as user {server.user}, who cannot enter {closed[-1]}; use --results with another directory"
            )
            raise StackFailed("postgresql", reason)
    return server


def _started(stack: StackFile, name: str, make: Callable[[ServerPlace], S]) -> S:
    try:
        server = make(ServerPlace(stack.run.data / name, stack.run.logs))
    except ServerUnavailable as error:
        advice = "" if "make servers" in str(error) else "; `make servers` shows and builds what is missing"
        raise StackFailed(name, f"{error}{advice}") from None
    try:
        server.start()
    except (OSError, RuntimeError, TimeoutError, subprocess.CalledProcessError) as error:
        raise StackFailed(name, str(error)) from error
    for process_name, process in server.processes.items():
        stack.add(process_name, "server", process.pid, process.args)
    return server


def _start_proxy(stack: StackFile, environment: Mapping[str, str], port: int, control: int, target: int) -> None:
    command = [sys.executable, "-m", "llog.loadtest.stack.object_proxy", str(port), str(control), str(target)]
    child = stack.launch(object_proxy.NAME, "other", command, environment)
    try:
        wait_until(object_proxy.NAME, lambda: child.poll() is not None or (port_open(port) and port_open(control)))
    except TimeoutError as error:
        raise StackFailed(object_proxy.NAME, str(error)) from None
    if child.poll() is not None:
        raise StackFailed(object_proxy.NAME, f"it ended; {stack.log_tail(object_proxy.NAME)}")
