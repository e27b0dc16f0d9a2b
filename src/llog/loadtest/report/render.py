"""The page of a report."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from llog.limits import GIB
from llog.loadtest.report.charts.scales import number
from llog.loadtest.report.charts.svg import Markup, element
from llog.loadtest.report.model import Report, Table
from llog.loadtest.report.page import header_of, notice, page, pill, plain_section, section, table_card, tile

UNITS: Final = {"mb_per_s": "MB/s", "ms": "ms", "dollars_per_hour": "$/h", "failed_requests": "requests"}
"""By the ending of a target's name."""
NAMES: Final = {"dollars_per_hour": "cost of S3", "failed_requests": "failed requests"}
BOUNDS: Final = {"min": "at least ", "max": "at most "}


def render_report(report: Report) -> str:
    header = header_of("llog load test", report.scenario, report.description, when(report), machine_line(report))
    first = section("summary", "Summary", *_notices(report), _tiles(report), _verdicts(report))
    return page(f"{report.scenario} · {report.run_id}", header, [first, *(plain_section(s) for s in report.sections)])


def when(report: Report) -> str:
    if report.began_s is None or report.ended_s is None:
        return f"Run {report.run_id}"
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report.began_s))
    return f"Run {report.run_id} · {began} · {number(report.ended_s - report.began_s)} s of load"


def machine_line(report: Report) -> str:
    """The main facts of the machine; the table has all."""
    machine = report.machine
    parts = [machine.get("processor", ""), f"{machine['cores']} cores" if "cores" in machine else ""]
    memory = machine.get("memory_bytes", "")
    if memory.isdigit():
        parts.append(f"{int(memory) / GIB:.3g} GiB")
    parts += [machine.get("kernel", ""), f"llog {machine['llog']}" if "llog" in machine else ""]
    if "git.commit" in machine:
        dirty = " with changes" if machine.get("git.dirty") == "true" else ""
        parts.append(f"commit {machine['git.commit'][:10]}{dirty}")
    shown = [part for part in parts if part]
    return "Machine: " + " · ".join(shown) if shown else ""


def outcome(report: Report) -> tuple[str, str]:
    """Kind of notice and its text: the run in a sentence."""
    if not report.complete:
        return "bad", "The run did not end: its figures describe the part that ran."
    missed = [verdict for verdict in report.verdicts if not verdict.ok]
    if missed:
        return "bad", f"{len(missed)} of {len(report.verdicts)} targets missed."
    if report.verdicts:
        met = f"All {len(report.verdicts)} targets met" if len(report.verdicts) > 1 else "The target is met"
        return ("warn", f"{met}, with warnings.") if report.warnings else ("good", f"{met}, no warnings.")
    return (
        ("warn", "The run ended with warnings.") if report.warnings else ("good", "The run ended; it had no targets.")
    )


def _notices(report: Report) -> Iterator[Markup]:
    kind, sentence = outcome(report)
    yield notice(kind, sentence)
    if report.limited_by_generator:
        title = "The load generator limited this run: its figures describe the generator, not the cluster."
        yield notice("warn", title, [report.limited_by_generator])
    if report.warnings:
        yield notice("warn", "Warnings", report.warnings)
    if report.missing:
        yield notice("warn", "Missing from the run directory", report.missing)


def _tiles(report: Report) -> Markup:
    shown = [tile(f.label, f.value, f.unit, f.note) for f in report.figures if f.headline]
    return element("dl", *shown, class_="tiles") if shown else element("p", "The run has no figures.")


def _verdicts(report: Report) -> Markup:
    if not report.judged:
        about = "Without summary.json nothing is judged."
        return element("div", table_card(Table("verdicts", "Verdicts", (), (), about)), class_="tables")
    rows, cells = [], []
    for verdict in report.verdicts:
        target, bound, unit = target_text(verdict.target)
        limit, value = f"{bound}{number(verdict.limit)} {unit}".strip(), f"{number(verdict.value)} {unit}".strip()
        rows.append((target, limit, value, "met" if verdict.ok else "missed"))
        cells.append([target, limit, value, pill("good", "✓ met") if verdict.ok else pill("bad", "✗ missed")])
    table = Table("verdicts", "Verdicts", ("target", "limit", "value", "verdict"), tuple(rows))
    return element("div", table_card(table, cells), class_="tables")


def target_text(target: str) -> tuple[str, str, str]:
    """`produce_p99_ms_max` is "Produce p99", "at most ", "ms"."""
    name, _, bound = target.rpartition("_")
    if bound not in BOUNDS:
        return target.replace("_", " "), "", ""
    ending = next((each for each in UNITS if name == each or name.endswith(f"_{each}")), "")
    words = NAMES.get(name) or name.removesuffix(ending).strip("_").replace("_", " ")
    return words[:1].upper() + words[1:], BOUNDS[bound], UNITS.get(ending, "")
