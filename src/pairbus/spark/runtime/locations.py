"""Decides which paths and URLs are files on this machine, and how they are passed to Spark.

Pure except for the last two functions, which ask Spark's JVM. Spark resolves a path on its default file system, and a
relative one from the folder where its JVM started, so paths are passed as complete `file:` URLs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from pairbus.errors import PairbusError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
#: What has a meaning in a pattern of paths.
_GLOB: Final = re.compile(r"([\\{}\[\]*?^])")


class BadLocation(PairbusError):
    """A path or URL that can't be read from or written to."""


def local_path(given: str | Path) -> Path | None:
    """Return the path on this machine, or None for a URL of another file system. Raises BadLocation."""
    if not isinstance(given, str | Path) or not str(given).strip():  # what is None would become a folder "None"
        raise BadLocation(f"a folder or file is named by a path or a URL, and not by {given!r}")
    text = str(given)
    found = None if isinstance(given, Path) else _URL.match(text)
    if found is None:
        return Path(text)
    if found[1].lower() != "file":
        return None
    host = urlsplit(text).netloc
    if host not in ("", "localhost"):
        raise BadLocation(f"{text} names a file of the machine {host}; for one of this machine write file:///PATH")
    return Path(unquote(urlsplit(text).path))


def located(given: str | Path) -> str:
    """Return the name by which Spark finds it."""
    path = local_path(given)
    return str(given).rstrip("/") if path is None else f"file:{path.absolute()}"


def escaped(path: str | Path) -> str:
    """Return the pattern that matches this path alone: Spark's readers take a path for a pattern."""
    return _GLOB.sub(r"\\\1", str(path))


def below(folder: str | Path, name: str) -> str:
    """Return the name by which Spark finds a file in this folder."""
    return f"{located(folder)}/{name}"


def check_writable(spark: SparkSession, given: str | Path) -> None:
    """Raise BadLocation where Spark has no file system for the URL, which it would say only after the work is done."""
    from py4j.protocol import Py4JJavaError

    if local_path(given) is not None:
        return
    text = str(given)
    scheme = text.partition(":")[0]
    context = spark.sparkContext
    assert context._jvm is not None
    try:
        context._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, context._jsc.hadoopConfiguration())
    except Py4JJavaError as error:
        raise BadLocation(
            f"this Spark can't write to {text}: {str(error.java_exception.getMessage()).splitlines()[0]}; a path or a "
            "file:/// URL works always, and others with the package of their file system, such as --packages "
            "org.apache.hadoop:hadoop-aws:VERSION for s3a"
        ) from None


def write_text(spark: SparkSession, location: str, text: str) -> None:
    """Write a file with this text, wherever Spark can write; replaces what is there."""
    context = spark.sparkContext
    assert context._jvm is not None
    path = context._jvm.org.apache.hadoop.fs.Path(location)
    stream = path.getFileSystem(context._jsc.hadoopConfiguration()).create(path, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()
