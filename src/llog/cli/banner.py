"""What the long-running processes print when they start: addresses, what an acknowledgement means, what to try."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from llog.cli.output import print_json_line

if TYPE_CHECKING:
    from llog.broker.broker import Broker


def print_broker(url: str, opened: Broker, as_json: bool) -> None:
    from llog.broker.broker import acknowledged_means
    from llog.process_memory import freeze_start_up_objects
    from llog.settings.listening import kafka_protocol

    freeze_start_up_objects()
    meaning = acknowledged_means(opened.settings)
    kafka = kafka_address(opened)
    if as_json:
        ids = {"broker_id": opened.broker_id, "node_id": opened.cluster.node_id, "role": opened.role}
        print_json_line({"service": "broker", "url": url, "kafka": kafka or None, **ids, "acknowledged_means": meaning})
        return
    typer.echo(f"broker {opened.broker_id} ({opened.role}) at {url}")
    if kafka:
        protocol = kafka_protocol(opened.settings)
        shown = "" if protocol == "PLAINTEXT" else f", {protocol}"
        typer.echo(f"  Kafka: {kafka}, node {opened.cluster.node_id}{shown}")
    else:
        typer.echo("  Kafka: off (LLOG_KAFKA_PORT is empty)")
    typer.echo(f"  acknowledged: {meaning}")


def kafka_address(opened: Broker) -> str:
    """Where Kafka clients connect; empty if Kafka is off."""
    from llog.settings.urls import format_host_port

    return "" if opened.kafka is None else format_host_port(*opened.kafka)


def print_compactor(url: str, as_json: bool) -> None:
    if as_json:
        print_json_line({"service": "compactor", "url": url})
    else:
        typer.echo(f"compactor at {url}/health")


def print_spark(state: str, as_json: bool) -> None:
    if as_json:
        print_json_line({"spark": state})
    else:
        typer.echo(f"  Spark: {describe_spark(state)}")


def describe_spark(state: str) -> str:
    """Where compaction runs while Spark is `starting`, `ready` or `unavailable (reason)`."""
    if state == "ready":
        return "ready; compaction runs there, small rounds of it in this process"
    if state == "starting":
        return "starting; until it is ready, compaction runs in this process"
    return f"{state}; compaction runs in this process"


def print_workers(url: str, kafka: str, count: int, as_json: bool) -> None:
    """The addresses that all workers share."""
    if as_json:
        print_json_line({"service": "workers", "url": url, "kafka": kafka or None, "count": count})
        return
    typer.echo(f"{count} workers at {url}" + (f", Kafka: {kafka}" if kafka else ""))


def print_examples(url: str, kafka: str) -> None:
    typer.echo(
        f"""Try, in another terminal:
  curl -s -X POST {url}/produce -H 'content-type: application/json' \\
    -d '{{"topic_partitions": [{{"topic": "orders", "partition": 0, "records": ["alpha", "beta"]}}]}}'
  curl -s -X POST {url}/consume -H 'content-type: application/json' \\
    -d '{{"topic_partitions": [{{"topic": "orders", "partition": 0, "fetch_offset": 1}}]}}'
  curl -s {url}/health       {url}/schema is the API, {url}/metrics/prometheus the metrics"""
    )
    if kafka:
        typer.echo(
            f"""Kafka clients connect to {kafka}, for example kcat:
  echo gamma | kcat -P -b {kafka} -t orders        kcat -C -b {kafka} -t orders -e"""
        )
    typer.echo("Stop with Ctrl-C.")
