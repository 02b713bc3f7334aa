"""Worlds in which the storage stalls (P48): a folder does not answer for a while, and most journals have a standby
folder.

A world of any kind with one broker, and a few stalls beside its own troubles. Often the broker is killed, or the power
cut, while one lasts. A stall is brought about by the fault `storage-stall`, or the disk itself does not answer: the
journal's folder, the standby folder, or both. With a standby folder what is sent while the fault lasts may be late.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeVar

from .crashes import draw_crashes
from .features import FeatureWorld, draw_features
from .partitioned import draw_partitioned
from .world import Trouble, World, draw

#: The first seed, and then every eighth: no other kind of world has one of them.
FIRST: Final = 800_000
EVERY: Final = 8

AnyWorld = TypeVar("AnyWorld", bound=World)

_DRAWERS: Final[tuple[Callable[[int], World], ...]] = (draw, draw, draw_features, draw_partitioned, draw_crashes)


def is_of_stalls(seed: int) -> bool:
    return seed >= FIRST and (seed - FIRST) % EVERY == 0


def draw_stalls(seed: int) -> World:
    """Return the world of a seed."""
    rng = random.Random(f"{seed} stalls")
    world = rng.choice(_DRAWERS)(seed)
    has_standby = rng.random() < 0.75
    drawn = [*world.troubles]
    for _ in range(rng.choice((1, 1, 2, 3))):
        drawn += draw_stall(rng, has_standby)
    stalled = replace(
        world,
        troubles=tuple(sorted(drawn, key=lambda each: (each.answers or 99, each.at))),
        disk=world.disk if rng.random() < 0.5 else (),
        standby=has_standby,
        stall_s=rng.choice((0.05, 0.05, 0.2, 0.5, 2.0, 5.0)),
    )
    if has_standby and (chance := random.Random(f"{seed} late")).random() < 0.3:
        stalled = _with_lateness(stalled, chance)
    return killed_for_power_cuts(stalled) if isinstance(world, FeatureWorld) else stalled


def _with_lateness(world: AnyWorld, rng: random.Random) -> AnyWorld:
    """Return the world with messages that are late, in half of the cases without an end of the broker. Its clock is not
    set, so that it is certain how long they are late."""
    left_out = ("clock", "kill", "power", "stop") if rng.random() < 0.5 else ("clock",)
    drawn = [each for each in world.troubles if each.kind not in left_out]
    drawn.append(Trouble(0.0, "storage-stall", rng.choice((1.0, 3.0, 10.0)), answers=rng.choice((1, 1, 2))))
    late = [replace(each, late=rng.choice((0.5, 3.0, 8.0))) if each.kind == "storage-stall" else each for each in drawn]
    return replace(world, troubles=tuple(sorted(late, key=lambda each: (each.answers or 99, each.at))))


def killed_for_power_cuts(world: AnyWorld) -> AnyWorld:
    """Return a world of forwarding, with kills in place of power cuts where nothing is synced in two folders.

    What was written in the standby folder may outlive what was written at home before it: a message whose first hop is
    lost is then there twice, as `docs/explanation/durability.md` says.
    """
    if world.durability != "none" or not world.standby:
        return world
    troubles = [replace(each, kind="kill", torn=False) if each.kind == "power" else each for each in world.troubles]
    return replace(world, troubles=tuple(troubles))


def draw_stall(rng: random.Random, has_standby: bool) -> list[Trouble]:
    """Return a stall, and perhaps the end of the broker in the middle of it."""
    kind = rng.choice(("storage-stall", "stall home", "stall home", "stall home"))
    if has_standby and rng.random() < 0.2:
        kind = rng.choice(("stall standby", "stall all"))
    elif kind == "stall home" and rng.random() < 0.4:
        kind += " " + rng.choice(("create", "fsync_dir", "rename", "unlink", "unlink"))  # where segments are changed
    seconds = rng.choice((0.3, 1.0, 3.0, 10.0, 30.0))
    if rng.random() < 0.7:
        begin, answers = rng.choice((0.0, 0.0, 0.001, 0.02, 0.3)), rng.choice((1, 2, 3, 5, 8, 13))
    else:
        begin, answers = rng.choice((0.0, 0.5, 1.0, 2.0, 4.0, 8.0)), 0
    stall = Trouble(begin, kind, seconds, answers=answers)
    if rng.random() < 0.5:
        return [stall]
    # With answers its time counts from the one before.
    later = rng.choice((0.05, 0.3, 0.6, 2.2, 5.5)) + (0.0 if answers else begin)
    end = rng.choice(("kill", "power", "power", "stop"))
    pause = rng.choice((0.0, 0.2, 1.0))
    return [stall, Trouble(later, end, pause, end == "power" and rng.random() < 0.6, answers=answers)]
