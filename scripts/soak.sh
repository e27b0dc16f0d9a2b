#!/usr/bin/env bash
# What `make soak` runs: every count that a release must show, once. Some hours on 2 cores; scopes too large to finish
# are cut, and say so.
set -euo pipefail
bin=${1:-.venv/bin}
export LLOG_SOAK=1
# The mutants are judged below, two at a time.
"$bin/python" -m pytest -q --timeout 3600 --ignore tests/simulation/test_mutants.py \
    tests/contract tests/clients tests/system tests/simulation tests/unit
"$bin/python" -m pytest -q --timeout 3600 tests/spark
# The same claims about Apache Kafka itself: one that fails here is wrong.
"$bin/python" -m pytest -q --timeout 3600 --kafka reference tests/clients/kafka tests/spark/test_kafka_connector.py
"$bin/python" -m llog.testing.model_check --schedules 2000
"$bin/python" -m llog.testing.sim --scenario 'h*'
"$bin/python" -m llog.testing.mutants
"$bin/python" -m llog.testing.sim --scenario 'scope-*' --exhaustive
"$bin/python" -m llog.testing.sim --scenario 'log-everything-*' --schedules 25000 --jobs 2
"$bin/python" -m llog.testing.sim --scenario 'log-some-*' --schedules 25000 --jobs 2
"$bin/python" -m llog.testing.sim --scenario 'pieces-*' --schedules 2000 --jobs 2
"$bin/python" -m tests.fuzz --inputs 1000000
"$bin/python" -m tests.fuzz --only kafka_dispatch --inputs 10000000 --parts 2
"$bin/python" -m tests.benchmarks
