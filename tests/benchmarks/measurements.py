"""`python -m tests.benchmarks.measurements add RUN_DIR…` stores the figures of load tests, each in place of those of
the same scenario; `… page` writes the tables of docs/performance.md from all stored figures, as `make docs` does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from llog.errors import LlogError
from tests.benchmarks.history import BENCHES, SCENARIOS, read_benches, read_entries
from tests.benchmarks.performance_page import bench_table, filled, kafka_table, scenario_tables
from tests.benchmarks.scenario_figures import ScenarioFigures, add_runs

PAGE: Final = Path(__file__).parents[2] / "docs" / "performance.md"


def page_with_figures(page: str, benches: Path = BENCHES, scenarios: Path = SCENARIOS) -> str:
    stored = read_benches(benches)
    tables = {
        "kafka": kafka_table(stored),
        "benchmarks": bench_table(stored),
        "scenarios": scenario_tables(read_entries(scenarios, ScenarioFigures)),
    }
    return filled(page, tables)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.measurements", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add", help="store the figures of load tests")
    add.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    commands.add_parser("page", help="write the tables of docs/performance.md")
    options = parser.parse_args()
    if options.command == "page":
        PAGE.write_text(page_with_figures(PAGE.read_text("utf-8")), "utf-8")
        return 0
    try:
        for figures in add_runs(SCENARIOS, options.runs):
            print(f"{figures.scenario}: {figures.run_id}, {len(figures.warnings)} warnings")
    except LlogError as error:
        print(f"nothing is stored: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
