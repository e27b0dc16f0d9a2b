#!/usr/bin/env bash
# Lint, formatting, types and import arrows. Runs all of them and fails if one does.
set -u
bin=${1:-.venv/bin}
failed=0
"$bin/ruff" check src tests examples || failed=1
"$bin/ruff" format --check src tests examples || failed=1
# A cache for all checkouts: types of the libraries are read once per machine. mypy compares contents, not times.
"$bin/mypy" --cache-dir "${XDG_CACHE_HOME:-$HOME/.cache}/leaderless-log/mypy" || failed=1
"$bin/lint-imports" --no-cache || failed=1
exit $failed
