"""`llog cost`: objects, index keys, requests and dollars of a cluster, from a load, a scenario or running processes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from llog.cli.output import AsJson, print_json, print_table

if TYPE_CHECKING:
    from llog.cost.estimate import Estimate
    from llog.cost.inputs import CostInputs, PriceList
    from llog.cost.kafka import KafkaLayout

LIVE_WINDOW_S: Final = 30.0

EPILOG: Final = (
    "Example: llog cost --brokers 5 --partitions 1000 --records-per-second 100000 --record-bytes 1000 --explain"
)


def cost(
    scenario: Annotated[
        str | None, typer.Argument(metavar="[SCENARIO]", help="A scenario of `llog loadtest`, by name or file.")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a field of the scenario; repeatable."),
    ] = None,
    live: Annotated[
        list[str] | None,
        typer.Option("--live", metavar="URL", help="Read a broker or compactor instead; repeatable."),
    ] = None,
    window: Annotated[
        float, typer.Option("--window", metavar="SECONDS", help="How long to read them.")
    ] = LIVE_WINDOW_S,
    brokers: Annotated[int | None, typer.Option(help="Brokers that take writes. (default: 1)")] = None,
    partitions: Annotated[int | None, typer.Option(help="Partitions with records. (default: 16)")] = None,
    delay_ms: Annotated[float | None, typer.Option(help="LLOG_BATCH_MAX_DELAY_MS. (default: 500)")] = None,
    batch_max_bytes: Annotated[float | None, typer.Option(help="LLOG_BATCH_MAX_BYTES. (default: 8 MiB)")] = None,
    records_per_second: Annotated[
        float | None, typer.Option(help="Records of all producers. (default: 1000, or the scenario's)")
    ] = None,
    record_bytes: Annotated[float | None, typer.Option(help="Bytes of a value. (default: 1024)")] = None,
    retention_hours: Annotated[float | None, typer.Option(help="Of all topics. (default: 168)")] = None,
    consumers_fanout: Annotated[
        float | None, typer.Option(help="Times each record is read at the tail. (default: 1)")
    ] = None,
    owners: Annotated[int | None, typer.Option(help="Brokers that get records of one partition. (default: 1)")] = None,
    compactors: Annotated[int | None, typer.Option(help="Compaction services; 0: none. (default: 1)")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME=VALUE", help="Any other input that --explain lists; repeatable."),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option("--price", metavar="NAME=DOLLARS", help="A price that --explain lists; repeatable."),
    ] = None,
    kafka_zones: Annotated[int, typer.Option(help="Zones of the Kafka cluster compared with.")] = 3,
    kafka_replicas: Annotated[int, typer.Option(help="Its replication factor.")] = 3,
    kafka_consumers_cross: Annotated[
        bool, typer.Option("--kafka-consumers-cross", help="Its consumers read from leaders in other zones, too.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Add every input, price and formula.")] = False,
    as_json: AsJson = False,
) -> None:
    """Estimate objects, index keys, requests and dollars per month, and compare with Kafka across zones."""
    from llog.cost.estimate import estimate_of
    from llog.cost.inputs import PriceList
    from llog.cost.kafka import KafkaLayout
    from llog.errors import InvalidArgument

    named = {
        "brokers": brokers,
        "partitions": partitions,
        "delay_ms": delay_ms,
        "batch_max_bytes": batch_max_bytes,
        "records_per_s": records_per_second,
        "record_bytes": record_bytes,
        "retention_hours": retention_hours,
        "consumers_fanout": consumers_fanout,
        "owners": owners,
        "compactors": compactors,
    }
    values: dict[str, object] = {name: value for name, value in named.items() if value is not None}
    values |= _other_inputs(option or ())
    prices = PriceList().changed(price or ())
    kafka = KafkaLayout(
        zones=kafka_zones, replication_factor=kafka_replicas, consumers_read_in_zone=not kafka_consumers_cross
    )
    if live:
        if scenario is not None or values or change:
            raise InvalidArgument("--live", "reads everything from the processes; give no scenario and no inputs")
        estimate = _read_live(live, window, prices, kafka)
    elif scenario is None and change:
        raise InvalidArgument("--set", "changes a scenario; name one")
    else:
        estimate = estimate_of(_inputs(scenario, change or (), values), prices, kafka, scenario or "options")
    if as_json:
        print_json(estimate)
    else:
        _print(estimate, explain)


def _inputs(scenario: str | None, changes: list[str] | tuple[()], values: dict[str, object]) -> CostInputs:
    from llog.cost.inputs import inputs_of

    if scenario is None:
        return inputs_of(values)
    from llog.loadtest.cost_inputs import scenario_inputs
    from llog.loadtest.scenario.read import read_scenario

    rate = values.get("records_per_s")
    base = scenario_inputs(read_scenario(scenario, changes), rate if isinstance(rate, float) else None)
    return inputs_of(values, base)


def _other_inputs(options: list[str] | tuple[()]) -> dict[str, object]:
    """`name=value`, the value as JSON: a number, true or false, or else a text."""
    import msgspec

    from llog.cost.inputs import input_names
    from llog.errors import InvalidArgument

    found: dict[str, object] = {}
    for option in options:
        name, _, text = option.partition("=")
        if name not in input_names():
            raise InvalidArgument("--input", f"no input is called {name!r}; there are {', '.join(input_names())}")
        try:
            found[name] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            found[name] = text
    return found


def _read_live(urls: list[str], window_s: float, prices: PriceList, kafka: KafkaLayout) -> Estimate:
    from llog.cli.output import progress_line
    from llog.cost.live import http_page, live_estimate, observe

    with progress_line(f"reading {len(urls)} processes for {window_s:g} s"):
        begin, end, seconds = observe(urls, window_s, http_page(os.environ.get("LLOG_HTTP_READ_TOKEN")))
    return live_estimate(begin, end, seconds, prices, kafka, source=", ".join(urls))


# -- output ------------------------------------------------------------------------------------------------------------


def _print(estimate: Estimate, explain: bool) -> None:
    notes = _Notes()
    rows = [
        (figure.name + notes.mark(figure.name, figure.formula, explain), _number(figure.value), figure.unit)
        for figure in estimate.figures
    ]
    print_table(("figure", "value", "unit"), rows)
    typer.echo()
    money = [
        (
            item.name + notes.mark(item.name, item.formula, explain),
            _dollars(item.dollars_per_month) if item.counted else "not counted",
        )
        for item in estimate.items
    ]
    kafka = estimate.kafka
    mark = notes.mark("Kafka across zones", kafka.formula, explain)
    money += [
        ("total", _dollars(estimate.dollars_per_month)),
        (f"Kafka, transfer between {kafka.layout.zones} zones{mark}", _dollars(kafka.dollars_per_month)),
    ]
    print_table(("item", "dollars per month"), money)
    typer.echo(
        f"\nrequests {_dollars(estimate.requests_dollars_per_hour)} an hour, all items"
        f" {_dollars(estimate.dollars_per_gb)} per GB produced; transfer between zones"
        f" {_dollars(kafka.dollars_per_hour)} an hour"
    )
    if explain:
        notes.print()
        _print_inputs(estimate)
    else:
        typer.echo("prices of S3 Standard in us-east-1; --explain shows every formula, input and price")
    if estimate.inputs is not None and estimate.inputs.brokers.store == "local":
        typer.echo("the stores are local, so nobody bills these requests: this is what S3 would charge for them")


class _Notes:
    """Footnotes, numbered as they are mentioned."""

    def __init__(self) -> None:
        self._notes: list[str] = []

    def mark(self, name: str, formula: str, wanted: bool) -> str:
        if not wanted:
            return ""
        self._notes.append(f"{name}: {formula}")
        return f" [{len(self._notes)}]"

    def print(self) -> None:
        typer.echo()
        for number, note in enumerate(self._notes, 1):
            typer.echo(f"[{number}] {note}")


def _print_inputs(estimate: Estimate) -> None:
    import msgspec

    from llog.cost.inputs import PRICE_NAMES

    if estimate.inputs is not None:
        typer.echo("\ninputs (an option, or --input NAME=VALUE)")
        document: dict[str, dict[str, Any]] = msgspec.to_builtins(estimate.inputs)
        for part in document.values():
            for name, value in part.items():
                typer.echo(f"  {name}={'none' if value is None else value}")
    typer.echo("\nprices (--price NAME=DOLLARS)")
    for name, value in estimate.prices.items():
        typer.echo(f"  {name}={value:g}  {PRICE_NAMES[name]}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 or value == int(value) else f"{value:.4g}"


def _dollars(value: float) -> str:
    return f"${value:,.2f}" if value >= 1 or value == 0 else f"${value:.3g}"
