#!/usr/bin/env bash
# Writes constraints.txt again from a clean install of every extra within the ranges of pyproject.toml.
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet ".[oxia,postgres,spark,export,loadtest,dev]" hatchling
{
  echo "# Exact versions of everything \`make setup\` and the extras may install; pip reads it as a constraints file."
  echo "# Written from a clean install of all extras: scripts/constraints.sh"
  "$scratch/venv/bin/pip" freeze | grep -E '^[A-Za-z0-9_.-]+==' | grep -viE '^leaderless-log=='
} >constraints.txt
