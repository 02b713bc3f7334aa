"""The world of a seed: one in ten has a pair of brokers (`pair.py`), from 400,005 on one in eight has what changes and
moves messages by itself (`features.py`), from 500,002 on one in eight has nodes that fail (`crashes.py`), from
600,003 on one in eight has partitioned entities (`partitioned.py`), from 800,000 on one in eight has folders that stall
(`stalls.py`), from 800,004 on in one in eight features meet (`combined.py`), the others have one broker
(`world.py`)."""

from __future__ import annotations

from .combined import CombinedRun, CombinedWorld, draw_combined, is_of_combinations
from .crashes import draw_crashes, is_of_crashes
from .features import FeatureRun, FeatureWorld, draw_features, is_of_features
from .pair import PairRun
from .pair_world import PairWorld, draw_pair
from .partitioned import PartitionedRun, PartitionedWorld, draw_partitioned, is_of_partitions
from .run import Run, Violation
from .stalls import draw_stalls, is_of_stalls
from .world import World, draw

AnyWorld = World | PairWorld


def world_of(seed: int) -> AnyWorld:
    """Return the world that this seed draws."""
    if is_of_stalls(seed):
        return draw_stalls(seed)
    if is_of_combinations(seed):
        return draw_combined(seed)
    if is_of_crashes(seed):
        return draw_crashes(seed)
    if is_of_features(seed):
        return draw_features(seed)
    if is_of_partitions(seed):
        return draw_partitioned(seed)
    return draw_pair(seed) if seed % 10 == 9 else draw(seed)


def run_of(world: AnyWorld) -> Run | PairRun:
    """Return the run of a world, which has not begun."""
    if isinstance(world, PairWorld):
        return PairRun(world)
    if isinstance(world, CombinedWorld):
        return CombinedRun(world)
    if isinstance(world, PartitionedWorld):
        return PartitionedRun(world)
    return FeatureRun(world) if isinstance(world, FeatureWorld) else Run(world)


def fails(world: AnyWorld) -> bool:
    try:
        run_of(world).run()
    except Exception:  # a violation, or a mistake of the simulation's own
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
