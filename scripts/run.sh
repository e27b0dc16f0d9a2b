#!/usr/bin/env bash
# Opens the stores that the settings name (embedded ones by default), proves that they work, says what to try.
set -euo pipefail
bin=${1:-.venv/bin}
"$bin/llog" stores check
cat <<TEXT

The stores are ready. Try:
  make demo                  records to bytes, bytes to objects, order in metadata, and back
  $bin/llog settings   what is in force, and where each value came from
  $bin/llog --help
TEXT
