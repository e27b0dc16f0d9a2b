"""`llog loadtest …`: start a stack, load it, watch it, end it, report.

What needs the extra `loadtest` is imported by the commands, so `llog --help` stays fast and works without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from llog.cli.exits import FAILED, INTERRUPTED
from llog.cli.output import AsJson, print_report, print_result

if TYPE_CHECKING:
    from llog.loadtest.artifacts import ClientSummary, Percentiles, Summary
    from llog.loadtest.orchestrate import Outcome
    from llog.loadtest.run_directory import RunDirectory
    from llog.loadtest.stack.status import RunRow, RunStatus

app = typer.Typer(help="Load tests: scenarios in YAML, from a stack to a report.", no_args_is_help=True)

PACKAGES: Final = ("hdrh", "psutil", "yaml")
"""Of the extra `loadtest`."""

Name = Annotated[str, typer.Argument(metavar="SCENARIO", help="A shipped scenario, or the path of a YAML file.")]
Run = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="A run's directory, its name, or the end of its name; the newest if left out."),
]
Results = Annotated[
    Path | None, typer.Option("--results", help="Where runs are; loadtest/results below this directory if left out.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Change a field, as in stack.brokers=2; repeatable."),
]


# -- commands --------------------------------------------------------------------------------------------------------


@app.command()
def up(scenario: Name, results: Results = None, changes: Changes = None, as_json: AsJson = False) -> None:
    """Start the stack of a scenario and leave it running; `run --run` loads it, `down` ends it."""
    with _installed():
        import asyncio

        from llog.loadtest.prepare import bring_up, create_run
        from llog.loadtest.progress import Progress

        with Progress(as_json) as progress:
            stack = create_run(scenario, changes or (), _results(results), progress)
            asyncio.run(bring_up(stack, progress))
        record = stack.record
    addresses = [f"  {broker.broker_id}: {broker.http_url}, Kafka {broker.kafka_host}:{broker.kafka_port}"
                 for broker in record.brokers]  # fmt: skip
    print_result(as_json, record, "\n".join([f"{record.run_id} is up", *addresses]))


@app.command()
def precreate(run: Run = None, results: Results = None, as_json: AsJson = False) -> None:
    """Create the topics of a run whose stack is up, with all their logs. `run` does this itself."""
    with _installed():
        import asyncio

        from llog.errors import RunStateWrong
        from llog.loadtest.prepare import create_topics
        from llog.loadtest.progress import Progress
        from llog.loadtest.stack.record import StackFile

        found = _find(run, results)
        record = found.stack()
        if record is None or record.state != "up":
            raise RunStateWrong(found.run_id, "its stack is not up: `llog loadtest up SCENARIO` starts one")
        with Progress(as_json) as progress:
            count = asyncio.run(create_topics(StackFile(found, record), progress))
    print_result(
        as_json, {"run_id": found.run_id, "partitions": count}, f"{found.run_id}: {count} partitions are ready"
    )


@app.command(name="run")
def run_load_test(
    scenario: Annotated[
        str | None, typer.Argument(metavar="[SCENARIO]", help="A shipped scenario, or the path of a YAML file.")
    ] = None,
    run: Annotated[str | None, typer.Option("--run", help="Load the stack of this run, which `up` started.")] = None,
    results: Results = None,
    changes: Changes = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack running afterwards.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a load test: stack, topics, load, summary, report, end of all processes.

    Exit code 1 when acknowledged records are missing or the run failed, 130 after Ctrl-C or SIGTERM.
    """
    with _installed():
        import asyncio

        from llog.errors import InvalidArgument
        from llog.loadtest.orchestrate import measure
        from llog.loadtest.prepare import adopt_run, create_run
        from llog.loadtest.progress import Progress

        if (scenario is None) == (run is None):
            raise InvalidArgument("SCENARIO", "name a scenario, or a run with --run; not both")
        if run is not None and changes:
            raise InvalidArgument("--set", "the run of --run has its scenario already")
        with Progress(as_json) as progress:
            if scenario is None:
                stack = adopt_run(_find(run, results), progress)
            else:
                stack = create_run(scenario, changes or (), _results(results), progress)
            outcome = asyncio.run(measure(stack, progress, keep=keep))
    _print_outcome(outcome, as_json)


@app.command()
def status(run: Run = None, results: Results = None, as_json: AsJson = False) -> None:
    """Show the state of a run, its processes, and what its clients did last."""
    with _installed():
        from llog.loadtest.stack.status import run_status

        shown = run_status(_find(run, results))
    print_result(as_json, shown, _status_text(shown))


@app.command()
def down(run: Run = None, results: Results = None, as_json: AsJson = False) -> None:
    """End every process of a run and remove its data; its other files stay. Works in every state, also repeatedly."""
    with _installed():
        from llog.loadtest.stack.teardown import take_down

        taken = take_down(_find(run, results))
    print_result(as_json, taken, f"{taken.run_id} is down; ended: {', '.join(taken.ended) or 'nothing ran'}")


@app.command()
def report(run: Run = None, results: Results = None, as_json: AsJson = False) -> None:
    """Write the summary, if there is none, and the HTML report of a run, complete or not."""
    with _installed():
        from llog.loadtest.collect.summarise import summarise
        from llog.loadtest.report import write_report

        found = _find(run, results)
        if found.summary() is None:
            summarise(found)
        path = write_report(found)
    print_result(as_json, {"run_id": found.run_id, "report": str(path)}, str(path))


@app.command()
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A run: directory, name, or end of the name.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another run.")],
    results: Results = None,
    out: Annotated[Path | None, typer.Option("--out", help="The HTML file; compare.html in B's directory if left out.")]
    = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Write an HTML file that shows two runs side by side."""
    with _installed():
        from llog.loadtest.report import write_comparison

        first, second = _find(a, results), _find(b, results)
        path = write_comparison(first, second, out or second.path / "compare.html")
    print_result(as_json, {"a": first.run_id, "b": second.run_id, "comparison": str(path)}, str(path))


@app.command(name="list")
def list_all(results: Results = None, as_json: AsJson = False) -> None:
    """List the runs with their states and key figures, and the shipped scenarios."""
    with _installed():
        from llog.loadtest.scenario import shipped
        from llog.loadtest.stack.status import list_runs

        runs, scenarios = list_runs(_results(results)), list(shipped())
    columns = ("run", "state", "MB/s", "p99 ms", "end to end p99 ms", "missing", "warnings")
    print_report(
        as_json, {"runs": runs, "scenarios": scenarios}, columns, [_row(one) for one in runs], empty="no run yet"
    )
    if not as_json:
        typer.echo(f"shipped scenarios: {', '.join(scenarios)}")


# -- shared ----------------------------------------------------------------------------------------------------------


@contextmanager
def _installed() -> Iterator[None]:
    """Turn a missing package of the extra into the error that names the extra."""
    from llog.errors import LoadTestNotInstalled

    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        raise LoadTestNotInstalled(str(error)) from None


def _results(given: Path | None) -> Path:
    from llog.loadtest.run_directory import RESULTS

    return RESULTS if given is None else given


def _find(name: str | None, results: Path | None) -> RunDirectory:
    from llog.loadtest.run_directory import RunDirectory

    return RunDirectory.find(_results(results), name)


# -- what people read ------------------------------------------------------------------------------------------------


def _print_outcome(outcome: Outcome, as_json: bool) -> None:
    if outcome.summary is not None:
        print_result(as_json, outcome.summary, _summary_text(outcome.summary))
    if not as_json:
        typer.echo(f"report: {outcome.report or outcome.run.path}")
    for error in outcome.errors:
        typer.echo(f"llog: {outcome.run.run_id}: {error}", err=True)
    if outcome.interrupted:
        raise typer.Exit(INTERRUPTED)
    if outcome.errors or outcome.summary is None:
        raise typer.Exit(FAILED)
    raise typer.Exit(outcome.summary.exit_code)


def _summary_text(summary: Summary) -> str:
    lines = [f"{summary.run_id}: {'complete' if summary.complete else 'incomplete'}"]
    if summary.client is not None:
        lines += _client_lines(summary.client)
    cpu = ", ".join(f"{cost.name} {cost.cpu_s_per_gb:.1f}" for cost in summary.costs if cost.cpu_s_per_gb)
    lines += [f"  CPU-s per GB     {cpu}"] if cpu else []
    money = summary.money
    lines.append(f"  dollars          {money.requests_per_hour:.3f} per hour of requests, {money.per_gb:.4f} per GB")
    lines += [
        f"  {'met   ' if verdict.ok else 'MISSED'}           {verdict.target} {verdict.limit:g}: {verdict.value:.4g}"
        for verdict in summary.verdicts
    ]
    return "\n".join(lines + [f"  WARNING          {warning}" for warning in summary.warnings])


def _client_lines(client: ClientSummary) -> list[str]:
    lines = [
        f"  produced         {client.produced_mb_per_s:.2f} MB/s of {client.offered_mb_per_s:.2f} offered; consumed"
        f" {client.consumed_mb_per_s:.2f} MB/s; {sum(client.failed.values())} requests failed",
        f"  produce          {_percentiles(client.latency)}",
        f"  end to end       {_percentiles(client.end_to_end)}",
    ]
    loss = client.loss
    if loss.missing or loss.duplicates or loss.reordered:
        lines.append(f"  RECORDS          missing {loss.missing}, twice {loss.duplicates}, reordered {loss.reordered}")
    if client.partitions_unfinished:
        lines.append(f"  UNVERIFIED       {client.partitions_unfinished} partitions were not read to their end")
    return lines


def _percentiles(found: Percentiles) -> str:
    return f"p50 {found.p50:.1f} ms, p99 {found.p99:.1f} ms, p99.9 {found.p999:.1f} ms, max {found.max:.1f} ms"


def _status_text(status: RunStatus) -> str:
    reason = f" ({status.reason})" if status.reason else ""
    orchestrator = "running" if status.orchestrator_alive else "ended"
    lines = [
        f"{status.run_id}: {status.state}{reason}",
        f"  orchestrator {orchestrator}; last step {status.step or '–'}",
    ]
    lines += [
        f"  {process.name}: {'running' if process.alive else 'ended'}, pid {process.pid}"
        for process in status.processes
    ]
    lines += [
        f"  {rate.process} ({rate.phase}): {rate.records_per_s:,.0f} records/s, {rate.mb_per_s:.2f} MB/s,"
        f" {rate.failed} failed"
        for rate in status.rates
    ]
    return "\n".join(lines + ([status.advice] if status.advice else []))


def _row(row: RunRow) -> tuple[str, ...]:
    figures = (row.produced_mb_per_s, row.produce_p99_ms, row.end_to_end_p99_ms)
    shown = ["" if figure is None else f"{figure:.2f}" for figure in figures]
    counts = ["" if count is None else str(count) for count in (row.missing, row.warnings)]
    return row.run_id, row.state, *shown, *counts
