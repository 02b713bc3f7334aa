"""Worlds in which nodes and entities fail, and are restarted from the journal while the broker goes on (P49).

A world of any kind with one broker, and a few crashes beside its own troubles. Locks of what has crashed are free, and
those of all others hold. Where the disk does not fail, memory and journal agree at every crash.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from .features import ON_THE_WAY, RECEIVED_AT, FeatureWorld, draw_features
from .partitioned import draw_partitioned
from .world import Trouble, World, draw

#: The first seed, and then every eighth: no other kind of world has one of them.
FIRST: Final = 500_002
EVERY: Final = 8
#: From here on some of them have partitioned entities.
FIRST_PARTITIONED: Final = 700_002


def is_of_crashes(seed: int) -> bool:
    return seed >= FIRST and (seed - FIRST) % EVERY == 0


def draw_crashes(seed: int) -> World:
    """Return the world of a seed."""
    rng = random.Random(f"{seed} crashes")
    drawer: Callable[[int], World] = draw_features if rng.random() < 0.4 else draw
    if seed >= FIRST_PARTITIONED and rng.random() < 0.4:
        drawer = draw_partitioned
    world = drawer(seed)
    drawn = [*world.troubles, *(draw_crash(rng, world) for _ in range(rng.choice((1, 2, 3, 5))))]
    troubles = sorted(drawn, key=lambda each: (each.answers or 99, each.at))
    return replace(world, troubles=tuple(troubles), disk=world.disk if rng.random() < 0.5 else ())


def draw_crash(rng: random.Random, world: World) -> Trouble:
    """Return the failure of an entity, or of the node that it is on."""
    names = list(world.entities)
    if isinstance(world, FeatureWorld):
        names += [name for entity in names for name in (*RECEIVED_AT[entity], *ON_THE_WAY[entity]) if "/" not in name]
    kind = rng.choice(("crash-entity", "crash-node"))
    seconds = rng.choice((0.001, 0.02, 0.2, 1.0, 5.0))
    if rng.random() < 0.7:
        soon = rng.choice((0.0, 0.0, 0.001, 0.02, 0.12, 0.3, 1.0))
        return Trouble(soon, kind, seconds, answers=rng.choice((1, 2, 3, 5, 8, 13)), entity=rng.choice(names))
    return Trouble(rng.choice((0.5, 1.0, 2.0, 4.0, 8.0, 15.0)), kind, seconds, entity=rng.choice(names))
