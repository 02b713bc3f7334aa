from __future__ import annotations

import errno
import importlib
import os
import pkgutil
import re

import pytest
from azure.core.exceptions import ServiceRequestError

import pairbus.errors
from pairbus.errors import PairbusError, file_problem, first_line, for_command_line, for_data_source
from pairbus.syphon.listing import reason


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
    places = dict(re.findall(r"(\w+) .*\((\S+)\.py\)", pairbus.errors.__doc__ or ""))
    elsewhere = {each.__name__: each.__module__ for each in kinds if each.__module__ not in drawings}
    assert {name: f"pairbus.{places[name].replace('/', '.')}" for name in elsewhere} == elsewhere


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


def test_the_line_that_says_why() -> None:
    worker = (
        "Job aborted\nTraceback\n  File x\npairbus.wire.errors.Unreachable: no route (pairbus:unreachable)\n\tat java"
    )
    assert first_line(worker) == "pairbus.wire.errors.Unreachable: no route (pairbus:unreachable)"
    assert first_line("[X.Y] Not good. SQLSTATE: 42703; line 1") == "[X.Y] Not good"
    assert first_line("") == "no reason given"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "An error occurred while calling o785.parquet.\n: org.apache.spark.SparkException: failed\n\tat x\n"
            "Caused by: java.lang.Error: other\n\tat y\nCaused by: java.io.IOException: No space left on device\n",
            "java.io.IOException: No space left on device",
        ),
        ("An error occurred while calling o1.x.\n: java.lang.Error: alone\n\tat x", "java.lang.Error: alone"),
        (
            'An error occurred while calling o9.start.\n: java.io.IOException: Cannot run "chmod": error=2, No such\n'
            "\tat x\nCaused by: java.io.IOException: error=2, No such\n\tat y",
            'java.io.IOException: Cannot run "chmod": error=2, No such',
        ),
    ],
)
def test_of_java_s_traceback_the_line_that_says_most(text: str, found: str) -> None:
    assert first_line(text) == found


def test_a_hint_names_the_option_of_the_interface_that_is_used() -> None:
    text = reason(ServiceRequestError("[SSL: CERTIFICATE_VERIFY_FAILED] …"))
    assert text.endswith("(the embedded broker's is, with ca_file=)")
    assert for_command_line(text).endswith("with --ca-file)") and for_data_source(text).endswith("with caFile)")
    assert for_command_line("say so with same_namespace=True") == "say so with --same-namespace"
