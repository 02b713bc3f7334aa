"""Releases Spark's cached tables when the object that they were cached for, such as a report, is released.

Spark keeps a cached table until it is unpersisted. A table here has an owner and the context in which the owner was
made: `release` of either frees it, and so does the next `keep` once the owner is no longer referenced. It is not freed
when Python collects the owner, since a call to Java may be in progress on that very thread.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class _Kept(NamedTuple):
    owner: weakref.ref[object]
    within: weakref.ref[object]
    tables: tuple[DataFrame, ...]


_kept: list[_Kept] = []


def keep(owner: object, *tables: DataFrame, within: object) -> None:
    """Keep these cached tables as long as their owner."""
    _end([each for each in _kept if each.owner() is None])
    _kept.append(_Kept(weakref.ref(owner), weakref.ref(within), tables))


def release(owner: object) -> None:
    """End what is cached for this object, and for all that was made within it."""
    _end([each for each in _kept if owner in (each.owner(), each.within())])


def _end(ended: list[_Kept]) -> None:
    for each in ended:
        _kept.remove(each)
        for table in each.tables:
            with contextlib.suppress(Exception):  # its session may have been stopped
                table.unpersist()
