"""The world of a seed: one in ten has a pair of brokers (`pair.py`), from 400,005 on one in eight has what changes and
moves messages by itself (`features.py`), the others have one broker (`world.py`)."""

from __future__ import annotations

from .features import FeatureRun, FeatureWorld, draw_features, is_of_features
from .pair import PairRun, PairWorld, draw_pair
from .run import Run, Violation
from .world import World, draw

AnyWorld = World | PairWorld


def world_of(seed: int) -> AnyWorld:
    """Return the world that this seed draws."""
    if is_of_features(seed):
        return draw_features(seed)
    return draw_pair(seed) if seed % 10 == 9 else draw(seed)


def run_of(world: AnyWorld) -> Run | PairRun:
    """Return the run of a world, which has not begun."""
    if isinstance(world, PairWorld):
        return PairRun(world)
    return FeatureRun(world) if isinstance(world, FeatureWorld) else Run(world)


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
