#!/usr/bin/env bash
# Creates the virtual environment, installs the package with the exact versions of constraints.txt, and compiles the
# kernels so that the first start is fast. The Makefile runs it when pyproject.toml or constraints.txt has changed.
set -euo pipefail
python=${PYTHON:-python3} venv=${VENV:-.venv} extras=${EXTRAS:-oxia,postgres,spark,export,loadtest,dev}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "setup: Python 3.11 or newer is needed; $python is $("$python" --version 2>&1 || echo not installed)." >&2
  echo "setup: choose another one: make setup PYTHON=python3.12" >&2
  exit 1
fi
if [ ! -x "$venv/bin/python" ]; then
  if ! "$python" -m venv "$venv" 2>/dev/null; then
    # Debian packages venv separately; install it if we may.
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
      apt-get update >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y python3-venv >/dev/null
    fi
    "$python" -m venv "$venv"
  fi
fi
echo "setup: installing into $venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt)
# uv takes seconds where pip takes more than a minute, except for PySpark: it is published as source only, and pip keeps
# the wheel it built.
quickly() {
  "${pip[@]}" uv && { [[ $extras != *spark* ]] || "${pip[@]}" --no-deps pyspark; } &&
    "$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --constraint constraints.txt -e ".[$extras]"
}
quickly || "${pip[@]}" -e ".[$extras]"
echo "setup: compiling the kernels"
"$venv/bin/python" -c 'from llog.http.json import warm_up; warm_up()' ||
  echo "setup: the kernels were not compiled; the first start does it" >&2
echo "setup: done; the command is $venv/bin/llog"
