"""Hostile bytes against every decoder: `python -m tests.fuzz [--inputs N] [--seed S] [--only NAME] …`.

Each `fuzz_*.py` here offers TARGETS (name → decoder fed with bytes) and SEEDS (name → valid inputs). Inputs are
mutated seeds. A decoder may return or raise `FormatError` that names its source; anything else is a failure, and so
is memory beyond ALLOCATION_FACTOR × input + ALLOCATION_SLACK bytes (sampled, by tracemalloc) or beyond the process's
limit (always). A failing input is kept as a file with the command that replays it.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import random
import resource
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import tests.fuzz
from llog.errors import FormatError

# What decoded values may weigh per input byte: a 7-byte record becomes 40 bytes of columns, a JSON struct of 90 bytes
# about 600 bytes of objects. What must never happen is an allocation taken from a length or count that lies.
ALLOCATION_FACTOR = 16
ALLOCATION_SLACK = 64 * 1024
"""A target that does more than decode has its own, as an attribute `allocation_slack`."""
SAMPLE_EVERY = 40
PROCESS_HEADROOM_BYTES = 2 * 1024**3
FAILURES = Path("build/fuzz")
SOURCE = "fuzzed"

Target = Callable[[bytes], None]


def collect() -> tuple[dict[str, Target], dict[str, list[bytes]]]:
    targets: dict[str, Target] = {}
    seeds: dict[str, list[bytes]] = {}
    for module in pkgutil.iter_modules(tests.fuzz.__path__):
        if module.name.startswith("fuzz_"):
            found = importlib.import_module(f"tests.fuzz.{module.name}")
            targets.update(found.TARGETS)
            seeds.update(found.SEEDS)
    assert targets.keys() == seeds.keys(), "every target has seeds"
    return targets, seeds


EDGES = [0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE, 0x40000000]


def mutate(rng: random.Random, seeds: list[bytes]) -> bytes:
    """One hostile input: a valid one with a few things done to it."""
    data = bytearray(rng.choice(seeds))
    for _ in range(1 + int(rng.expovariate(1.0))):
        size = len(data)
        kind = rng.randrange(8)
        at = rng.randrange(size) if size else 0
        if kind <= 1 and size:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 2 and size:
            data[at] = rng.randrange(256)
        elif kind == 3:
            del data[at:]
        elif kind == 4 and size >= 4:
            value = rng.choice(EDGES) if rng.random() < 0.7 else max(0, size + rng.randint(-9, 9))
            at = min(at, size - 4)
            data[at : at + 4] = value.to_bytes(4, "big")
        elif kind == 5:
            data[at:at] = rng.randbytes(rng.randint(1, 16))
        elif kind == 6:
            other = rng.choice(seeds)
            cut = rng.randrange(len(other) + 1)
            data[at:] = other[cut:]
        elif size:
            del data[at : at + rng.randint(1, 16)]
    return bytes(data)


def attempt(target: Target, data: bytes) -> str | None:
    """What was wrong with how the decoder took this input, or None."""
    try:
        target(data)
    except FormatError as error:
        if not error.source or error.source not in str(error):
            return f"{type(error).__name__} does not name its source: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return None


def attempt_measured(target: Target, data: bytes) -> str | None:
    tracemalloc.start()
    try:
        wrong = attempt(target, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    allowed = ALLOCATION_FACTOR * len(data) + getattr(target, "allocation_slack", ALLOCATION_SLACK)
    if wrong is None and peak > allowed:
        return f"allocated {peak} bytes for {len(data)} bytes of input (allowed {allowed})"
    return wrong


def fuzz(name: str, inputs: int, seed: int) -> tuple[str, int, float, str | None]:
    """Feed `inputs` inputs to one target; returns (name, inputs fed, seconds, failure)."""
    targets, all_seeds = collect()
    target, seeds = targets[name], all_seeds[name]
    for data in seeds:  # compile kernels, fill caches, and prove that the seeds are valid
        target(data)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + PROCESS_HEADROOM_BYTES, resource.RLIM_INFINITY))
    rng = random.Random(f"{name}:{seed}")
    start = time.monotonic()
    for i in range(inputs):
        data = mutate(rng, seeds)
        wrong = attempt_measured(target, data) if i % SAMPLE_EVERY == 0 else attempt(target, data)
        if wrong is not None:
            FAILURES.mkdir(parents=True, exist_ok=True)
            kept = FAILURES / f"{name}-{seed}-{i}.bin"
            kept.write_bytes(data)
            again = f"python -m tests.fuzz --only {name} --replay {kept}"
            return name, i + 1, time.monotonic() - start, f"input {i}: {wrong}\n    again: {again}"
    return name, inputs, time.monotonic() - start, None


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.fuzz")
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", default=None)
    parser.add_argument("--replay", type=Path, default=None)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--parts", type=int, default=1, help="divide the inputs of each decoder, with a seed for each")
    arguments = parser.parse_args()
    targets, seeds = collect()
    names = [arguments.only] if arguments.only else sorted(targets)
    if arguments.only and arguments.only not in targets:
        raise SystemExit(f"no such target: {arguments.only}; there are: {', '.join(sorted(targets))}")
    if arguments.replay:
        for data in seeds[names[0]]:  # compile kernels first: that would count as the input's memory
            targets[names[0]](data)
        wrong = attempt_measured(targets[names[0]], arguments.replay.read_bytes())
        print(wrong or "fine")
        return 1 if wrong else 0
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(2**32)
    print(f"fuzz: seed {seed}, {arguments.inputs} inputs for each of {len(names)} decoders", flush=True)
    failed = 0
    # Spawned, not forked: jitted kernels do not survive a fork under all threading layers. One after the other in the
    # same process: a start costs more than thousands of inputs, and `fuzz` sets its limits anew.
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        inputs, parts = arguments.inputs // arguments.parts, range(arguments.parts)
        for future in [pool.submit(fuzz, name, inputs, seed + part) for name in names for part in parts]:
            name, fed, seconds, wrong = future.result()
            print(f"fuzz: {name}: {fed} inputs in {seconds:.1f} s: {wrong or 'ok'}", flush=True)
            failed += wrong is not None
    print(f"{len(names) * arguments.parts - failed} passed, {failed} failed", flush=True)
    return 1 if failed else 0
