"""Bugs that are put into the product, one for each rule of the checkers, to show that the simulation sees them.

    python -m tests.simulation.sabotage                     lists them
    python -m tests.simulation.sabotage hunt [NAME …]       looks for the first seed that shows each
    python -m tests.simulation.sabotage NAME --seed 4711    as python -m tests.simulation, with that bug in the code

A sabotage replaces one method or function while a world runs. It names the seed of a world that shows it, and the rule
that this world must be found to break.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import re
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any
from unittest import mock

from .. import combined, crashes, features, journal_world, partitioned, stalls
from ..worlds import run_of, world_of

JOURNAL = "journal", "stalled journal"
#: The first seed of each kind of world, and the step to the next one.
KINDS = {
    "journal": (0, 1),
    "stalled journal": (journal_world.STALLS_FROM, 1),
    "broker": (0, 1),
    "pair": (9, 10),
    "features": (features.FIRST, features.EVERY),
    "crashes": (crashes.FIRST, crashes.EVERY),
    "partitioned": (partitioned.FIRST, partitioned.EVERY),
    "combined": (combined.FIRST, combined.EVERY),
    "stalls": (stalls.FIRST, stalls.EVERY),
}


@dataclass(frozen=True)
class Sabotage:
    """A bug: `wrong` is called in place of `owner.name`, with that as its first argument. `rule` matches what is said
    of the world with this seed."""

    owner: Any
    name: str
    kind: str
    seed: int
    rule: str
    wrong: Callable[..., Any]

    @property
    def why(self) -> str:
        """What a user would suffer."""
        return inspect.cleandoc(self.wrong.__doc__ or "")

    def put_in(self) -> AbstractContextManager[Any]:
        """Return a context in which the bug is in the code."""
        real = inspect.getattr_static(self.owner, self.name)
        if isinstance(real, property):
            return mock.patch.object(self.owner, self.name, property(self._replacing(real.fget)))
        return mock.patch.object(self.owner, self.name, self._replacing(real) if callable(real) else self.wrong(real))

    def _replacing(self, real: Any) -> Callable[..., Any]:
        @wraps(real)
        def replacement(*arguments: Any, **options: Any) -> Any:
            return self.wrong(real, *arguments, **options)

        return replacement

    def show(self, seed: int) -> str:
        """Run a world with the bug; return what is found to be wrong with it, or nothing."""
        with self.put_in():
            try:
                journal_world.draw(seed).run() if self.kind in JOURNAL else run_of(world_of(seed)).run()
            except Exception as error:  # a violation, or what nobody could have expected
                return str(error) or repr(error)
        return ""

    def hunt(self, seconds: float) -> Iterator[tuple[int, str]]:
        """Yield seeds that show the bug, and what they show."""
        end = time.process_time() + seconds
        for seed in itertools.chain((self.seed,), itertools.count(*KINDS[self.kind])):
            if self.kind == "broker" and seed % 10 == 9:
                continue  # a pair
            if time.process_time() > end:
                return
            if said := self.show(seed):
                yield seed, said


@dataclass
class Sabotages:
    """A list of sabotages, by name."""

    by_name: dict[str, Sabotage] = field(default_factory=dict)

    def __call__(self, owner: Any, name: str, kind: str, seed: int, rule: str) -> Callable[[Any], Any]:
        """Decorate what is done in place of a method or function; of a value, what makes the wrong one of it."""

        def add(wrong: Callable[..., Any]) -> Callable[..., Any]:
            if self.by_name.setdefault(wrong.__name__, Sabotage(owner, name, kind, seed, rule, wrong)).wrong != wrong:
                raise ValueError(f"there are two sabotages {wrong.__name__}")
            return wrong

        return add


sabotage = Sabotages()


def sabotages() -> dict[str, Sabotage]:
    """Return all sabotages by name."""
    for part in ("broker", "storage", "clients", "pairing"):
        importlib.import_module(f"{__name__}.{part}")
    return sabotage.by_name


def hunt(names: Sequence[str], seconds: float = 60.0) -> None:
    for name in names:
        each = sabotages()[name]
        others: dict[str, int] = {}
        for seed, said in each.hunt(seconds):
            if re.search(each.rule, said):
                print(f"{name}: {each.kind} {seed}: {said.splitlines()[0]}")
                break
            others.setdefault(said.splitlines()[0], seed)
        else:
            print(f"{name}: not found: {each.rule!r}, only {others}")
        sys.stdout.flush()


def main(arguments: Sequence[str]) -> None:
    name, *others = arguments or ["list"]
    if name == "list":
        for known, each in sabotages().items():
            print(f"{known}: {each.why}")
    elif name == "hunt":
        hunt(others or list(sabotages()))
    elif name in sabotages():
        sys.argv = ["python -m tests.simulation", *others]
        with sabotages()[name].put_in():
            runpy.run_module("tests.simulation", run_name="__main__", alter_sys=True)
    else:
        raise SystemExit(f"there is no sabotage {name!r}; 'list' shows them")
