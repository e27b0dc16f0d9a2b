"""What the driver and a generator process say to each other, and what the driver writes for it beforehand.

`plan-<process>.json` is read at the start, together with `resolved-config.json`, `stack.json` and
`routing-manifest.json`. Orders are JSON lines on the process's standard input; its end means end at once. Reports are
JSON lines on its standard output; log lines go to standard error. Results are files of the run directory.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from llog.loadtest.artifacts import Phase


class GeneratorPlan(msgspec.Struct, frozen=True):
    """`plan-<process>.json`."""

    process: str
    kind: Literal["producer", "consumer"]
    number: int
    """Of `processes` of this kind: client n runs in process n % processes."""
    processes: int
    clock_offset_s: float
    """Unix time minus monotonic time. Processes of a run add it to their monotonic clock, so that they agree on the
    time also when the wall clock is set."""
    mb_per_s: float = 0.0
    """Of all producers together, at the beginning."""


class Order(msgspec.Struct, frozen=True):
    order: Literal["begin", "phase", "rate", "cut", "drain", "stop"]
    """`begin`: start the load at `at_s`. `phase`: what is due from `at_s` on belongs to `phase`. `rate`: go on with
    `mb_per_s` from `at_s` on, without the requests that are overdue. `cut`: write a line to `client-30s.jsonl` now and
    report it. `drain`: producers send nothing that is due after `at_s` and wait for answers, consumers read to the ends
    of the logs, both until `until_s` at the latest; then the process writes its results and ends. `stop`: drain without
    waiting."""
    at_s: float = 0.0
    """Unix time; may lie ahead."""
    phase: Phase = "measured"
    mb_per_s: float = 0.0
    until_s: float = 0.0


class Report(msgspec.Struct, frozen=True):
    """A line on standard output."""

    event: Literal["ready", "progress", "cut", "failed"]
    """`ready`: connected, waiting for `begin`. `progress`: about once a second."""
    records: int = 0
    """Acknowledged, or received, since the beginning."""
    payload_bytes: int = 0
    reason: str = ""


class ProducerResult(msgspec.Struct, frozen=True):
    """`result-<process>.json` of a producer process."""

    records_intended: int
    records_acknowledged: int
    payload_bytes_acknowledged: int
    uncertain_records: int


class ConsumerResult(msgspec.Struct, frozen=True):
    """`result-<process>.json` of a consumer process."""

    records_received: int
    payload_bytes_received: int
    partitions_unfinished: int = 0
    """Whose end was not reached in time."""
    unfinished: tuple[str, ...] = ()
    """Some of them, as `topic:partition`."""
    records_foreign: int = 0
    """Of other runs, or without a stamp."""
    records_misplaced: int = 0
    """Of this run, in a partition that their stamp does not name; they count as missing in their own."""
    offset_gaps: int = 0
    """Offsets that were passed and hold no record."""
