"""Puts one seeded bug into the real code, so that it can be shown that the simulation finds it.

    python -m tests.simulation.sabotage list
    python -m tests.simulation.sabotage NAME [arguments of python -m tests.simulation]

A sabotage replaces one piece of the source of one module of pairbus while that module is imported. So it has to be put
in before the module is imported for the first time, in a process of its own: nothing here imports pairbus.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType


@dataclass(frozen=True)
class Sabotage:
    """A bug: `new` in place of `old`, which occurs once in the module. `why`: what a user would lose by it."""

    name: str
    module: str
    old: str
    new: str
    why: str

    @property
    def path(self) -> Path:
        """The file of the module."""
        return Path(__file__).parents[2] / "src" / Path(*self.module.split(".")).with_suffix(".py")

    def patched(self) -> str:
        """Return the source of the module with the bug in it; raise ValueError where the code is no longer as it was
        when the sabotage was written."""
        source = self.path.read_text()
        found = source.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: what it replaces occurs {found} times in {self.module}, not once")
        return source.replace(self.old, self.new)


def sabotages() -> dict[str, Sabotage]:
    """Return all sabotages by name."""
    from . import broker_sabotages, client_sabotages, storage_sabotages

    lists = (*storage_sabotages.SABOTAGES, *broker_sabotages.SABOTAGES, *client_sabotages.SABOTAGES)
    return {sabotage.name: sabotage for sabotage in lists}


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


def main(arguments: Sequence[str]) -> None:
    if list(arguments) in ([], ["list"]):
        for each in sabotages().values():
            print(f"{each.name}: {each.why}")
        return
    name, *others = arguments
    if name not in sabotages():
        raise SystemExit(f"there is no sabotage {name!r}; 'list' shows them")
    put_in(name)
    sys.argv = ["python -m tests.simulation", *others]
    runpy.run_module("tests.simulation", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
