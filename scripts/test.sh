#!/usr/bin/env bash
# What `make test` runs: checks, tests and a short fuzz, each with small counts.
set -euo pipefail
bin=${1:-.venv/bin} jobs=${2:-2}
scripts/check.sh "$bin"
# One file stays on one worker, so that a server starts once per file.
"$bin/python" -m pytest -q -n "$jobs" --dist loadfile tests/unit tests/contract tests/clients tests/system tests/simulation tests/docs
# One process, so that they share a session.
"$bin/python" -m pytest -q tests/spark
"$bin/python" -m llog.testing.sim --scenario 'h*'
"$bin/python" -m llog.testing.mutants
"$bin/python" -m llog.testing.sim --scenario 'log-*' --schedules "${LLOG_SIM_SCHEDULES:-500}" --jobs "$jobs"
"$bin/python" -m llog.testing.sim --scenario 'scope-2-writers-atomic' --exhaustive
"$bin/python" -m llog.testing.sim --scenario 'scope-writer-compactor-atomic' --exhaustive
"$bin/python" -m llog.testing.sim --scenario 'pieces-*' --schedules "${LLOG_SIM_SCHEDULES:-100}" --jobs "$jobs"
"$bin/python" -m tests.fuzz --inputs "${LLOG_FUZZ_INPUTS:-5000}" --jobs "$jobs"
