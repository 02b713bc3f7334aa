from __future__ import annotations

import errno
import importlib
import os
import pkgutil

import pytest

import pairbus
from pairbus.errors import PairbusError, file_problem


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


@pytest.mark.parametrize(
    ("number", "path", "expected"),
    [
        (errno.EACCES, "/x/keys.json", "/x/keys.json: Permission denied; let this user have it, or name another"),
        (errno.ENOENT, "x", "x: No such file or directory; check the path, or name another"),
        (errno.EROFS, "x", "x: Read-only file system; its file system can't be written to; name another"),
        (errno.ENOSPC, "x", "x: No space left on device; free some space"),
        (errno.ENOSPC, None, "the output: No space left on device; free some space"),
        (errno.EMFILE, None, "Too many open files; allow more open files (ulimit -n)"),
        (errno.EIO, "x", "x: Input/output error; run it with --debug to see where"),
        (errno.ENOENT, "two\nlines", "two lines: No such file or directory; check the path, or name another"),
    ],
)
def test_what_the_system_says_of_a_file_is_one_line_with_the_next_step(
    number: int, path: str | None, expected: str
) -> None:
    assert file_problem(OSError(number, os.strerror(number), path)) == expected
