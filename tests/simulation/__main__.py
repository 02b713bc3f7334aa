"""Runs worlds by their seeds, replays one with all that happened in it, and makes a failing one small.

python -m tests.simulation --seeds 1000            a thousand worlds that nobody has seen, on all cores
python -m tests.simulation --seed 4711             one of them, line by line
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from .run import Violation
from .shrink import shrink
from .worlds import AnyWorld, fails, first_failing, run_of, world_of

_CHUNK = 50
# A process runs about so many chunks and then makes way for a new one, with what its worlds left in memory. An executor
# that is told to replace its own processes (max_tasks_per_child) can hang at that.
_CHUNKS_PER_PROCESS = 40


def replay(world: AnyWorld) -> bool:
    """Print the world and what happens in it; return whether everything held."""
    print("\n".join(world.describe()))
    run = run_of(world)
    violation = None
    try:
        run.run()
    except Violation as error:
        violation = error
    print("\n".join(run.trace.lines()))
    print(f"digest {run.digest}, {run.loop.now:.1f} simulated seconds")
    print("everything held" if violation is None else f"VIOLATION of seed {world.seed}:\n{violation}")
    return violation is None


def run_many(start: int, count: int, jobs: int) -> int:
    """Run worlds until one fails; return the exit code."""
    began = time.perf_counter()
    chunks = [range(first, min(first + _CHUNK, start + count)) for first in range(start, start + count, _CHUNK)]
    done = 0
    told = began
    for result in _results(chunks, jobs):
        if result is not None:
            return _report(*result)
        done += _CHUNK
        now = time.perf_counter()
        if now - told > 10:
            told = now
            print(
                f"{min(done, count):,} of {count:,} seeds, {(now - began) / done * 1000:.0f} ms each", file=sys.stderr
            )
    seconds = time.perf_counter() - began
    print(f"{count:,} seeds from {start} held, in {seconds:.0f} s ({seconds / count * 1000:.1f} ms each)")
    return 0


def _results(chunks: Sequence[range], jobs: int) -> Iterator[tuple[int, str] | None]:
    if jobs == 1:
        yield from map(first_failing, chunks)
        return
    span = _CHUNKS_PER_PROCESS * jobs
    for first in range(0, len(chunks), span):
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            try:
                yield from pool.map(first_failing, chunks[first : first + span])
            finally:
                pool.shutdown(wait=False, cancel_futures=True)


def _report(seed: int, why: str) -> int:
    print(f"seed {seed}:\n{why}\nmaking it small …", file=sys.stderr)
    world = shrink(world_of(seed), fails)
    replay(world)
    print(f"replay the whole world: make simulate SEED={seed}")
    return 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--seeds", type=int, default=500, help="how many to run (500)")
    parser.add_argument("--start", type=int, help="the first of them (drawn at random)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (one for each core)")
    parser.add_argument("--shrink", action="store_true", help="make the world of --seed small first")
    options = parser.parse_args(arguments)
    if options.seed is None:
        start = random.randrange(10**7, 10**9) if options.start is None else options.start
        return run_many(start, options.seeds, options.jobs)
    world = world_of(options.seed)
    if options.shrink and fails(world):
        world = shrink(world, fails)
    return 0 if replay(world) else 1


if __name__ == "__main__":
    sys.exit(main())
