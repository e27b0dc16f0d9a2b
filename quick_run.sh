#!/usr/bin/env bash
# A load test to look at, in one command: sets up what is missing, starts the stack of a scenario with Prometheus, and
# Grafana where it is available, shows their URLs, loads the stack, and ends everything again. Loopback only.
#
#   ./quick_run.sh [SCENARIO] [--set FIELD=VALUE] [--results DIR] [--stay | --no-stay]      (--help lists them)
#
# QUICK_RUN_SETUP=no leaves out `make setup`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

if [ "${QUICK_RUN_SETUP:-yes}" != no ]; then
  make --no-print-directory setup
fi
review=(.venv/bin/python -m llog.loadtest.review "$@")

case " $* " in
  *" --help "*) exec "${review[@]}" ;;
esac

# Only the servers that this scenario needs, and only those that are not there yet.
there=$(servers/build.sh --list | cut -d' ' -f1)
missing=()
for server in $("${review[@]}" --servers); do
  grep -qx "$server" <<<"$there" || missing+=("$server")
done
if [ ${#missing[@]} -gt 0 ]; then
  servers/build.sh "${missing[@]}"
fi

exec "${review[@]}"
