#!/usr/bin/env bash
# What `make test` runs: checks, tests, simulations and a short fuzz, each with small counts.
#
# Two lanes side by side. The tests wait much of their time (for servers, processes, clocks), so they have more workers
# than there are cores. What only computes runs beside them at a low priority, on what they leave over; it says nothing
# until the tests are through, then everything at once. Whatever fails, all of it is run, and the exit code tells.
set -uo pipefail
bin=${1:-.venv/bin} jobs=${2:-3}

# Where a shell forbids bytecode, every process (there are hundreds) would compile the whole package again.
unset PYTHONDONTWRITEBYTECODE

# The stores sync every write. In memory that costs nothing, and a kill -9 is survived all the same; `make soak` and a
# test that is run alone use the disk. S3 servers need extended attributes, which older kernels do not have there.
gigabytes_free=$(df --output=avail --block-size=1G /dev/shm 2>/dev/null | tail -n 1)
memory= beside=
trap '[[ -z $beside ]] || kill -- "-$beside" 2>/dev/null; [[ -z $memory ]] || rm -rf "$memory"' EXIT
trap 'exit 130' INT TERM
if [[ -z ${TMPDIR:-} ]] && ((${gigabytes_free:-0} >= 4)); then
    memory=$(mktemp -d /dev/shm/llog-test.XXXXXX)
    chmod 755 "$memory" # PostgreSQL runs as another user
    if "$bin/python" -c 'import os, sys; os.setxattr(sys.argv[1], "user.llog", b"1")' "$memory" 2>/dev/null; then
        export TMPDIR=$memory
    fi
fi

failed=()
run() { # run NAME COMMAND…
    local name=$1 began=$SECONDS
    shift
    echo "== $name"
    if ! "$@"; then
        failed+=("$name")
    fi
    echo "== $name: $((SECONDS - began)) s"
}

# Thousands of tests beside hundreds of processes: one or two may fail for want of a processor. A few that failed are
# run once more, alone, and named either way; one that fails again has failed, and so have many at once.
retried_max=3
tests() { # tests PATHS AND OPTIONS…
    "$bin/python" -m pytest -q "$@"
    local code=$? paths=() argument count
    ((code == 1)) || return $code
    count=$("$bin/python" -c 'import json; print(len(json.load(open(".pytest_cache/v/cache/lastfailed"))))')
    ((count <= retried_max)) || return $code
    for argument in "$@"; do [[ $argument == tests/* ]] && paths+=("$argument"); done
    echo "== once more, alone: the $count that failed beside the others"
    "$bin/python" -m pytest -v --last-failed --last-failed-no-failures none "${paths[@]}" &&
        echo "== FAILED BESIDE OTHERS AND PASSED ALONE: $count, named above; worth a look"
}

# (The hazards themselves are played by tests/simulation, on both kinds of store.)
computing() {
    run checks scripts/check.sh "$bin"
    run "random runs" "$bin/python" -m llog.testing.sim --scenario 'log-*' --schedules "${LLOG_SIM_SCHEDULES:-250}"
    run "two writers" "$bin/python" -m llog.testing.sim --scenario 'scope-2-writers-atomic' --exhaustive
    run "writer and compactor" "$bin/python" -m llog.testing.sim --scenario 'scope-writer-compactor-atomic' --exhaustive
    run pieces "$bin/python" -m llog.testing.sim --scenario 'pieces-*' --schedules "${LLOG_SIM_SCHEDULES:-100}"
    run fuzz "$bin/python" -m tests.fuzz --inputs "${LLOG_FUZZ_INPUTS:-5000}" --jobs 1
    run mutants "$bin/python" -m llog.testing.mutants # last: each has a minute, which the tests should not take up
    ((${#failed[@]} == 0)) || { echo "failed: ${failed[*]}"; return 1; }
}

# Compiled once, and not by every worker at the same time.
"$bin/python" -c 'from llog.formats.records.records import warm_up; warm_up()'
set -m # a process group of its own, which ends with this script
beside_log=$(mktemp)
(renice -n 10 $BASHPID >/dev/null; computing) >"$beside_log" 2>&1 &
beside=$!
set +m

# One file stays on one worker, so that a server starts once per file; the long ones are in the directories that come
# first, so that the last worker to end is not far behind the others.
rm -f .pytest_cache/v/cache/lastfailed
run tests tests -n "$jobs" --dist loadfile --no-loadscope-reorder \
    tests/system tests/docs tests/clients tests/contract tests/simulation tests/unit
# One process, so that they share a session.
rm -f .pytest_cache/v/cache/lastfailed
run "tests on Spark" tests tests/spark

wait "$beside" || failed+=("what ran beside the tests")
beside=
cat "$beside_log"
rm "$beside_log"
((${#failed[@]} == 0)) || { echo "FAILED: ${failed[*]}"; exit 1; }
echo "all of it passed in $((SECONDS / 60)) min $((SECONDS % 60)) s"
