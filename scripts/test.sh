#!/usr/bin/env bash
# What `make test` runs: checks, tests, simulations and a short fuzz, each with small counts.
#
# The tests run in parallel, because they mostly wait for servers, processes and clocks. Simulations and checks only
# compute; they run beside the tests at a low priority and print their output when the tests are through. Tests that
# need the machine to themselves (marked `serial`) run last, one at a time, with nothing beside them.
#
# A failed test fails the run. Failed tests are run once more, alone, with the same seed: for diagnosis, not for a verdict.
set -uo pipefail
bin=${1:-.venv/bin} jobs=${2:-3}

# Where a shell forbids bytecode, each of hundreds of processes would compile the whole package again.
unset PYTHONDONTWRITEBYTECODE

# One seed for property tests, random kills, random schedules and fuzzing. TEST_SEED=… repeats a run.
export TEST_SEED=${TEST_SEED:-$((RANDOM * 32768 + RANDOM))}
echo "seed of this run: TEST_SEED=$TEST_SEED"

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

diagnosed_max=5 # failed tests that are run again, one after the other
tests() { # tests PATHS AND OPTIONS…
    rm -f .pytest_cache/v/cache/lastfailed
    "$bin/python" -m pytest -q --hypothesis-seed="$TEST_SEED" "$@"
    local code=$? count
    ((code == 1)) || return $code
    count=$("$bin/python" -c 'import json; print(len(json.load(open(".pytest_cache/v/cache/lastfailed"))))')
    if ((count <= diagnosed_max)); then
        local paths=() argument
        for argument in "$@"; do [[ $argument == tests/* ]] && paths+=("$argument"); done
        echo "== diagnosis: the $count that failed, alone, with the same seed (the run has failed either way)"
        "$bin/python" -m pytest -v --hypothesis-seed="$TEST_SEED" --last-failed --last-failed-no-failures none \
            "${paths[@]}" &&
            echo "== diagnosis: they pass alone, so they depend on load, order or time: a fault of test or code"
    fi
    return $code
}

# (tests/simulation plays the hazards themselves, on both kinds of store.)
computing() {
    run checks scripts/check.sh "$bin"
    simulate=("$bin/python" -m llog.testing.sim --seed "$TEST_SEED")
    run "random schedules" "${simulate[@]}" --scenario 'log-*' --schedules "${LLOG_SIM_SCHEDULES:-60}"
    run "two writers" "${simulate[@]}" --scenario 'scope-2-writers-atomic' --exhaustive
    run "writer and compactor" "${simulate[@]}" --scenario 'scope-writer-compactor-atomic' --exhaustive
    run pieces "${simulate[@]}" --scenario 'pieces-*' --schedules "${LLOG_SIM_SCHEDULES:-30}"
    run fuzz "$bin/python" -m tests.fuzz --inputs "${LLOG_FUZZ_INPUTS:-5000}" --seed "$TEST_SEED" --jobs 1
    run mutants "$bin/python" -m llog.testing.mutants # last: each has a minute, which the tests should not take up
    ((${#failed[@]} == 0)) || { echo "failed: ${failed[*]}"; return 1; }
}

set -m # a process group of its own, which ends with this script
beside_log=$(mktemp)
(renice -n 10 $BASHPID >/dev/null; computing) >"$beside_log" 2>&1 &
beside=$!
set +m

# One file stays on one worker, so that a server starts once per file. Directories with long files come first, so that
# all workers end at about the same time.
run tests tests -m "not serial" -n "$jobs" --dist loadfile --no-loadscope-reorder \
    tests/system tests/docs tests/clients tests/contract tests/simulation tests/unit
# One process, so that they share a session. Its JVM compiles fast instead of well: it lives for two minutes.
export SPARK_SUBMIT_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
run "tests on Spark" tests -m "not serial" tests/spark

wait "$beside" || failed+=("what ran beside the tests")
beside=
cat "$beside_log"
rm "$beside_log"

mapfile -t serial < <(grep -rl --include='test_*.py' 'mark\.serial' tests)
run "serial tests" tests -m serial "${serial[@]}"
((${#failed[@]} == 0)) || { echo "FAILED: ${failed[*]} (TEST_SEED=$TEST_SEED repeats this run)"; exit 1; }
echo "all of it passed in $((SECONDS / 60)) min $((SECONDS % 60)) s"
