#!/usr/bin/env bash
# Makes the virtual environment and installs the package into it, with exact versions from constraints.txt.
# The Makefile calls it only when pyproject.toml or constraints.txt is newer than the last install.
set -euo pipefail
python=${PYTHON:-python3} venv=${VENV:-.venv} extras=${EXTRAS:-oxia,postgres,spark,export,dev}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "setup: Python 3.11 or newer is needed; $python is $("$python" --version 2>&1 || echo not there)." >&2
  echo "setup: name another one: make setup PYTHON=python3.12" >&2
  exit 1
fi
if [ ! -x "$venv/bin/python" ]; then
  if ! "$python" -m venv "$venv" 2>/dev/null; then
    # Debian splits venv off; a machine that lets us install it needs no hand for that.
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
      apt-get update >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y python3-venv >/dev/null
    fi
    "$python" -m venv "$venv"
  fi
fi
echo "setup: installing into $venv"
PIP_CONSTRAINT=constraints.txt "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -e ".[$extras]"
echo "setup: done; the command is $venv/bin/llog"
