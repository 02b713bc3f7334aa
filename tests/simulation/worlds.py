"""The world of a seed: one in ten has a pair of brokers (`pair.py`), the others have one broker (`world.py`)."""

from __future__ import annotations

from .pair import PairRun, PairWorld, draw_pair
from .run import Run, Violation
from .world import World, draw

AnyWorld = World | PairWorld


def world_of(seed: int) -> AnyWorld:
    """Return the world that this seed draws."""
    return draw_pair(seed) if seed % 10 == 9 else draw(seed)


def run_of(world: AnyWorld) -> Run | PairRun:
    """Return the run of a world, which has not begun."""
    return PairRun(world) if isinstance(world, PairWorld) else Run(world)


def fails(world: AnyWorld) -> bool:
    try:
        run_of(world).run()
    except Violation:
        return True
    return False


def first_failing(seeds: range) -> tuple[int, str] | None:
    """Return the first of the seeds whose world fails, and why."""
    for seed in seeds:
        try:
            run_of(world_of(seed)).run()
        except Violation as violation:
            return seed, str(violation)
        except Exception as error:
            return seed, f"the simulation itself failed: {error!r}"
    return None
