from __future__ import annotations

import importlib
import pkgutil

import pairbus
from pairbus.errors import PairbusError


def subclasses(kind: type) -> set[type]:
    return {kind}.union(*(subclasses(each) for each in kind.__subclasses__()))


def test_the_drawing_shows_every_error() -> None:
    for module in pkgutil.walk_packages(pairbus.__path__, "pairbus."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    drawings = ("pairbus.errors", "pairbus.wire.errors", "pairbus.pairing.errors")
    drawn = " ".join(importlib.import_module(name).__doc__ or "" for name in drawings)
    kinds = {each for each in subclasses(PairbusError) if each.__module__.startswith("pairbus")}
    assert len(kinds) > 10
    assert {each.__name__ for each in kinds if f" {each.__name__} " not in drawn.replace("\n", " ")} == set()
