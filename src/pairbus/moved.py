"""Old names of public modules that have moved. Each keeps working for one minor version, with a warning. Pure."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any


def forward(old: str, new: str) -> Callable[[str], Any]:
    """Return a module-level `__getattr__` that warns and looks the name up in the module `new`."""

    def lookup(name: str) -> Any:
        found = getattr(import_module(new), name)
        warnings.warn(f"{old} has moved: import {name} from {new}", DeprecationWarning, stacklevel=2)
        return found

    return lookup
