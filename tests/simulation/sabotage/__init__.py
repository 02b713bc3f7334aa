"""Puts one seeded bug into the real code, so that it can be shown that the simulation finds it.

    python -m tests.simulation.sabotage list
    python -m tests.simulation.sabotage hunt [SECONDS] [NAME …]   find a seed for each, and renew caught.toml
    python -m tests.simulation.sabotage NAME --seed 4711  as python -m tests.simulation, with that bug in the code

A sabotage replaces one piece of the source of one module of pairbus while that module is imported. So it has to be put
in before the module is imported for the first time, in a process of its own: nothing here imports pairbus.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import runpy
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

#: A world that finds each sabotage. Where a change of the worlds has made it useless, `hunt` looks for another.
CAUGHT = Path(__file__).with_name("caught.toml")
_FIRST = "first-catch"


@dataclass(frozen=True)
class Sabotage:
    """A bug: `new` in place of `old`, which occurs once in the module. `why`: what a user would lose by it. `needs`:
    words that the description of a world must have for the bug to show in it. `kind`: the module of the worlds that
    alone can show it."""

    name: str
    module: str
    old: str
    new: str
    why: str
    needs: tuple[str, ...] = ()
    kind: str = ""

    @property
    def path(self) -> Path:
        """The file of the module."""
        return Path(__file__).parents[3] / "src" / Path(*self.module.split(".")).with_suffix(".py")

    def patched(self) -> str:
        """Return the source of the module with the bug in it; raise ValueError where the code is no longer as it was
        when the sabotage was written."""
        source = self.path.read_text()
        found = source.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: what it replaces occurs {found} times in {self.module}, not once")
        return source.replace(self.old, self.new)


def parts() -> tuple[ModuleType, ...]:
    """Return the modules that list sabotages."""
    from . import (
        broker_sabotages,
        client_sabotages,
        combined_sabotages,
        crash_sabotages,
        feature_sabotages,
        partition_sabotages,
        slice_sabotages,
        storage_sabotages,
    )

    return (
        storage_sabotages,
        broker_sabotages,
        client_sabotages,
        feature_sabotages,
        crash_sabotages,
        partition_sabotages,
        combined_sabotages,
        slice_sabotages,
    )


def sabotages() -> dict[str, Sabotage]:
    """Return all sabotages by name."""
    return {sabotage.name: sabotage for part in parts() for sabotage in part.SABOTAGES}


class _Loader(SourceFileLoader):
    def __init__(self, sabotage: Sabotage) -> None:
        super().__init__(sabotage.module, str(sabotage.path))
        self._source = sabotage.patched()

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, sabotage: Sabotage) -> None:
        self._sabotage = sabotage
        self._loader = _Loader(sabotage)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._sabotage.module:
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is None or found.origin is None or Path(found.origin).resolve() != self._sabotage.path.resolve():
            raise ImportError(f"{fullname} is not imported from {self._sabotage.path}: {found}")
        return importlib.util.spec_from_file_location(fullname, found.origin, loader=self._loader)


def put_in(name: str) -> Sabotage:
    """Sabotage this process: from now on the named bug is in the code."""
    sabotage = sabotages()[name]
    if sabotage.module in sys.modules:
        raise RuntimeError(f"{sabotage.module} is imported already: it is too late for {name}")
    sys.meta_path.insert(0, _Finder(sabotage))
    return sabotage


class Catch(NamedTuple):
    """The world that shows a sabotage, what was seen first, and the CPU seconds that it took to find it."""

    kind: str  # "broker" (worlds.py), or "journal" for the journal alone (journal_world.py)
    seed: int
    why: str
    seconds: float


def known() -> dict[str, tuple[str, int]]:
    """Return the kind and seed of the worlds that found a sabotage when they were last looked for."""
    if not CAUGHT.exists():
        return {}
    return {
        name: (kind, seed) for kind, seeds in tomllib.loads(CAUGHT.read_text()).items() for name, seed in seeds.items()
    }


def catch(name: str, seconds: float = 60.0) -> Catch | None:
    """Look, in a process of its own, for a world that finds the sabotage: the known one first."""
    kind, seed = known().get(name, ("", 0))
    command = [sys.executable, "-m", __spec__.name, _FIRST, name, kind, str(seed), str(seconds)]
    found = subprocess.run(command, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, text=True, check=True)
    answer = json.loads(found.stdout.splitlines()[-1])
    return None if answer is None else Catch(*answer)


def _first_catch(name: str, known_kind: str, known_seed: int, seconds: float) -> Catch | None:
    sabotage = put_in(name)
    from .. import features, journal_world, worlds

    runs: dict[str, Callable[[int], object]] = {
        "journal": lambda seed: journal_world.draw(seed).run(),
        "broker": lambda seed: worlds.run_of(worlds.world_of(seed)).run(),
    }

    def is_promising(seed: int) -> bool:
        description = "\n".join(worlds.world_of(seed).describe())
        return all(word in description for word in sabotage.needs)

    began = time.process_time()

    def tried(kind: str, seeds: Iterable[int], until: float) -> Catch | None:
        for seed in seeds:
            if (spent := time.process_time() - began) > until:
                return None
            try:
                runs[kind](seed)
            except Exception as error:  # a violation, or what nobody could have expected
                return Catch(kind, seed, str(error).partition("\n")[0], round(spent, 1))
        return None

    found = tried(known_kind, (known_seed,), seconds) if known_kind else None
    if found is None and sabotage.module.startswith("pairbus.journal") and sabotage.kind in ("", "stalls"):
        found = tried("journal", itertools.count(journal_world.STALLS_FROM if sabotage.kind else 0), seconds / 3)
    seeds = itertools.count()
    if sabotage.kind:
        own = importlib.import_module(f"tests.simulation.{sabotage.kind}")
        first = features.FIRST_CLOSED if features.CLOSED in sabotage.needs else own.FIRST
        seeds = itertools.count(first, own.EVERY)
    return found or tried("broker", filter(is_promising, seeds), seconds)


def hunt(names: Sequence[str], seconds: float) -> None:
    """Look for a world for each, and write down those that were found."""
    worlds = known()
    for name in names:
        found = catch(name, seconds)
        print(
            f"{name}: {'not found' if found is None else f'{found.kind} {found.seed}, {found.seconds} s: {found.why}'}"
        )
        sys.stdout.flush()
        if found is not None:
            worlds[name] = (found.kind, found.seed)
        lines = ["# Seeds that find each sabotage; made by python -m tests.simulation.sabotage hunt"]
        for kind in ("broker", "journal"):
            lines.append(f"\n[{kind}]")
            lines += [f'"{each}" = {worlds[each][1]}' for each in sabotages() if worlds.get(each, ("", 0))[0] == kind]
        CAUGHT.write_text("\n".join((*lines, "")))


def main(arguments: Sequence[str]) -> None:
    if list(arguments) in ([], ["list"]):
        for each in sabotages().values():
            print(f"{each.name}: {each.why}")
        return
    name, *others = arguments
    if name == "hunt":
        seconds = float(others.pop(0)) if others and others[0].isdecimal() else 60.0
        hunt(others or list(sabotages()), seconds)
        return
    if name == _FIRST:
        print(json.dumps(_first_catch(others[0], others[1], int(others[2]), float(others[3]))))
        return
    if name not in sabotages():
        raise SystemExit(f"there is no sabotage {name!r}; 'list' shows them")
    put_in(name)
    sys.argv = ["python -m tests.simulation", *others]
    runpy.run_module("tests.simulation", run_name="__main__", alter_sys=True)
