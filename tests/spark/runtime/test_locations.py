"""Paths and URLs, as people give them and as Spark takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pairbus.spark.runtime.locations import BadLocation, below, escaped, local_path, located


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("here/there", "here/there"),
        ("/data/x", "/data/x"),
        ("file:/data/x", "/data/x"),
        ("file:///data/with%20space/x", "/data/with space/x"),
        ("FILE://localhost/data", "/data"),
        ("odd:name", "odd:name"),
        (Path("a/b"), "a/b"),
    ],
)
def test_a_path_and_a_file_url_are_local(given: str | Path, path: str) -> None:
    assert local_path(given) == Path(path)
    assert located(given) == f"file:{Path(path).absolute()}"
    assert below(given, "audit") == f"file:{Path(path).absolute()}/audit"


@pytest.mark.parametrize(
    "given", ["s3a://bucket/x", "hdfs://host:9000/x", "abfss://c@a.dfs.core.windows.net/x", "dbfs:/x"]
)
def test_other_urls_stay_as_they_are(given: str) -> None:
    assert local_path(given) is None
    assert located(given + "/") == given
    assert below(given, "audit") == f"{given}/audit"


@pytest.mark.parametrize("given", [None, "", " ", 5])
def test_what_names_no_place_is_refused(given: Any) -> None:
    for reads in (local_path, located):
        with pytest.raises(BadLocation, match=f"named by a path or a URL, and not by {given!r}"):
            reads(given)


def test_a_file_url_of_another_machine_is_refused() -> None:
    with pytest.raises(BadLocation, match=r"file://elsewhere/x names a file of the machine elsewhere"):
        located("file://elsewhere/x")


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("file:/data/a table", "file:/data/a table"),
        ("file:/t[1]/{a,b}*?^", r"file:/t\[1\]/\{a,b\}\*\?\^"),
        (Path("/back\\slash"), r"/back\\slash"),
    ],
)
def test_a_path_is_escaped_for_readers_that_take_it_for_a_pattern(path: str | Path, pattern: str) -> None:
    assert escaped(path) == pattern
