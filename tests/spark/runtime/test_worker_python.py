from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.find_spark_home import _find_spark_home

from pairbus.spark import session
from pairbus.spark.runtime import worker_python

ZIPS = [str(each) for each in sorted(Path(_find_spark_home(), "python", "lib").glob("*.zip"), reverse=True)]
#: Prints where pyspark comes from, the rest of the search path's variable, which Python this is, and an argument.
PROGRAM = "import os, sys, pyspark; print(pyspark.__file__, os.environ['PYTHONPATH'], sys.executable, sys.argv[1])"


def run(command: Path | str, *in_front: str) -> list[str]:
    environ = {**os.environ, "PYTHONPATH": ":".join((*in_front, "/some/folder"))}
    return subprocess.check_output([command, "-c", PROGRAM, "a b"], env=environ, text=True).split(maxsplit=3)


def test_pyspark_is_imported_from_where_it_is_installed(tmp_path: Path) -> None:
    command = worker_python.write(tmp_path, sys.executable)
    assert command is not None
    assert run(sys.executable, *ZIPS)[0].startswith(ZIPS[0])  # as Spark would have it
    found, rest, python, argument = run(command, *ZIPS)
    assert Path(found).parent == Path(_find_spark_home())
    assert (rest, python, argument) == ("/some/folder", sys.executable, "a b\n")
    assert command.stat().st_mode & 0o077 == 0


def test_a_search_path_that_begins_otherwise_stays_as_it_is(tmp_path: Path) -> None:
    command = worker_python.write(tmp_path, sys.executable)
    assert command is not None
    assert run(command, "/other", ZIPS[0])[1] == f"/other:{ZIPS[0]}:/some/folder"


def test_names_with_spaces_and_quotes_are_taken_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "it's a $folder"
    folder.mkdir()
    python = folder / "python 3"
    python.symlink_to(sys.executable)
    command = worker_python.write(folder, str(python))
    assert command is not None
    assert subprocess.check_output([command, "-c", "print(1 + 1)"], text=True) == "2\n"


def test_another_spark_than_the_installed_one_keeps_its_zip_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert worker_python.write(tmp_path, sys.executable) is None


def test_where_nothing_may_be_executed_python_is_started_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.X_OK)  # as on a file system mounted with noexec
    environ = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    with worker_python.in_use(tmp_path, environ):
        assert set(environ.values()) == {sys.executable}


def test_the_command_is_in_the_environment_only_while_spark_starts(tmp_path: Path) -> None:
    environ = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    with worker_python.in_use(tmp_path, environ):
        assert set(environ.values()) == {str(tmp_path / "python")}
    assert set(environ.values()) == {sys.executable}


@pytest.mark.parametrize("name", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
def test_a_python_that_somebody_chose_is_used(tmp_path: Path, name: str) -> None:
    environ = {**dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable), name: "/usr/bin/python3"}
    before = dict(environ)
    with worker_python.in_use(tmp_path, environ):
        assert environ == before


def test_the_workers_of_our_session_import_it_so() -> None:
    spark = session()

    def where(_: object) -> str:
        import pyspark

        return pyspark.__file__

    (found,) = spark.sparkContext.parallelize([1], 1).map(where).collect()
    assert Path(found).parent == Path(_find_spark_home())
