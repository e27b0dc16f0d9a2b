"""What the processes that stay say when they begin, and when Spark comes or goes: lines for people, or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from llog.cli.output import print_json_line

if TYPE_CHECKING:
    from llog.broker.broker import Broker


def say_broker(url: str, opened: Broker, as_json: bool) -> None:
    from llog.broker.broker import acknowledged_means
    from llog.broker.process_memory import spare_what_is_there

    spare_what_is_there()
    if as_json:
        print_json_line(
            {
                "service": "broker",
                "url": url,
                "broker_id": opened.broker_id,
                "role": opened.role,
                "acknowledged_means": acknowledged_means(opened.settings),
            }
        )
        return
    typer.echo(f"broker {opened.broker_id} ({opened.role}) at {url}")
    typer.echo(f"  acknowledged: {acknowledged_means(opened.settings)}")


def say_compactor(url: str, as_json: bool) -> None:
    if as_json:
        print_json_line({"service": "compactor", "url": url})
        return
    typer.echo(f"compactor at {url}/health")


def say_spark(state: str, as_json: bool) -> None:
    if as_json:
        print_json_line({"spark": state})
        return
    typer.echo(f"  Spark: {spark_words(state)}")


def spark_words(state: str) -> str:
    """What it means that Spark is `starting`, `ready` or `unavailable (why)`."""
    if state == "ready":
        return "ready; compaction runs there, small rounds of it in this process"
    if state == "starting":
        return "starting; until it is ready, compaction runs in this process"
    return f"{state}; compaction runs in this process"


def say_what_to_try(url: str) -> None:
    typer.echo(
        f"""Try, in another terminal:
  curl -s -X POST {url}/produce -H 'content-type: application/json' \\
    -d '{{"topic_partitions": [{{"topic": "orders", "partition": 0, "records": ["alpha", "beta"]}}]}}'
  curl -s -X POST {url}/consume -H 'content-type: application/json' \\
    -d '{{"topic_partitions": [{{"topic": "orders", "partition": 0, "fetch_offset": 1}}]}}'
  curl -s {url}/health       {url}/schema is the API, {url}/metrics/prometheus the numbers
Stop with Ctrl-C."""
    )
