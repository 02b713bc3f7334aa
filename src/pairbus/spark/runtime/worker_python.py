"""Writes the command with which Spark starts Python on this machine.

Spark puts a zip file with pyspark on Python's search path before the installed pyspark. Modules from a zip file are
compiled again in each process, which takes nearly half a second, and the first query of a session starts a dozen
processes. So the command removes the zip file from the search path if it belongs to the installed pyspark.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Final

_NAMES: Final = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
_COMMAND: Final = """\
#!/bin/sh
zips={zips}
export PYTHONPATH="${{PYTHONPATH#"$zips"}}"
exec {python} "$@"
"""


@contextlib.contextmanager
def in_use(folder: Path, environ: MutableMapping[str, str]) -> Iterator[None]:
    """Have a Spark that is started meanwhile start Python by a command in this folder, unless the environment names
    another Python than this one."""
    before = {name: environ.get(name) for name in _NAMES}
    command = write(folder, sys.executable) if set(before.values()) == {sys.executable} else None
    if command is not None:
        environ.update(dict.fromkeys(_NAMES, str(command)))
    try:
        yield
    finally:
        environ.update({name: value for name, value in before.items() if value is not None})


def write(folder: Path, python: str) -> Path | None:
    """Write the command and return its path; None where this Python has no pyspark with the zip file in it."""
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    home = Path(_find_spark_home())
    library = home / "python" / "lib"
    zips = [library / "pyspark.zip", *sorted(library.glob("py4j-*.zip"))]
    if Path(pyspark.__file__).resolve().parent != home.resolve() or not zips[0].is_file():
        return None
    command = folder / "python"
    in_front = "".join(f"{each}:" for each in zips)
    command.write_text(_COMMAND.format(zips=shlex.quote(in_front), python=shlex.quote(python)))
    command.chmod(0o700)
    return command if os.access(command, os.X_OK) else None  # not where nothing may be executed
