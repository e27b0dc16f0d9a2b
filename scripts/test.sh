#!/usr/bin/env bash
# What `make test` runs: checks, tests, simulations and a short fuzz, each with small counts.
#
# The tests run in parallel, because they mostly wait for servers, processes and clocks. Tests on Spark run beside them.
# Simulations and checks only compute; they run beside the tests at a low priority. Both print their output when the
# tests are through. Tests that need the machine to themselves (marked `serial`) run last, one at a time.
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
memory= groups=()
trap 'for group in "${groups[@]}"; do kill -- "-$group" 2>/dev/null; done; [[ -z $memory ]] || rm -rf "$memory"' EXIT
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
tests() { # tests NAME PATHS AND OPTIONS…
    local cache=.pytest_cache/$1
    shift
    rm -f "$cache/v/cache/lastfailed"
    "$bin/python" -m pytest -q -o cache_dir="$cache" --hypothesis-seed="$TEST_SEED" "$@"
    local code=$? count
    ((code == 1)) || return $code
    count=$("$bin/python" -c 'import json, sys; print(len(json.load(open(sys.argv[1]))))' "$cache/v/cache/lastfailed")
    if ((count <= diagnosed_max)); then
        local paths=() argument
        for argument in "$@"; do [[ $argument == tests/* ]] && paths+=("$argument"); done
        echo "== diagnosis: the $count that failed, alone, with the same seed (the run has failed either way)"
        "$bin/python" -m pytest -v -o cache_dir="$cache" --hypothesis-seed="$TEST_SEED" --last-failed --last-failed-no-failures none \
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

on_spark() { # in one process, so that they share a session; its JVM compiles fast instead of well: it lives for minutes
    export SPARK_SUBMIT_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    run "tests on Spark" tests spark -m "not serial" tests/spark
    ((${#failed[@]} == 0))
}

logs=$(mktemp -d)
set -m # each in a process group of its own, which ends with this script
(renice -n 10 $BASHPID >/dev/null; computing) >"$logs/computing" 2>&1 &
computing=$!
on_spark >"$logs/spark" 2>&1 &
spark=$!
groups=("$computing" "$spark")
set +m

# One file stays on one worker, so that a server starts once per file. Directories with long files come first, so that
# all workers end at about the same time.
run tests tests main -m "not serial" -n "$jobs" --dist loadfile --no-loadscope-reorder \
    tests/system tests/docs tests/clients tests/contract tests/simulation tests/unit

wait "$spark" || failed+=("tests on Spark")
wait "$computing" || failed+=("what ran beside the tests")
groups=()
cat "$logs/spark" "$logs/computing"
rm -r "$logs"

mapfile -t serial < <(grep -rl --include='test_*.py' 'mark\.serial' tests)
run "serial tests" tests serial -m serial "${serial[@]}"
((${#failed[@]} == 0)) || { echo "FAILED: ${failed[*]} (TEST_SEED=$TEST_SEED repeats this run)"; exit 1; }
echo "all of it passed in $((SECONDS / 60)) min $((SECONDS % 60)) s"
