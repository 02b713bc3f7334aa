from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pairbus.spark.runtime import class_archive
from pairbus.spark.runtime.class_archive import ATTEMPT_S, ATTEMPTS_MAX, KEPT_MAX, ClassArchive, cache_folder, find
from tests.waiting import until

NOW = 1_800_000_000.0


def tree(at: Path, *files: str) -> Path:
    for name in files:
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_text(name)
    return at


@pytest.fixture
def java(tmp_path: Path) -> Path:
    return tree(tmp_path / "java", "release", "lib/server/libjvm.so")


@pytest.fixture
def spark(tmp_path: Path) -> Path:
    return tree(tmp_path / "spark", "jars/a.jar", "jars/b.jar")


@pytest.fixture
def archive(tmp_path: Path, java: Path) -> ClassArchive:
    found = ClassArchive(tmp_path / "cache" / "pairbus" / "key", java)
    class_archive.make_private(found.folder)
    return found


def test_the_users_cache_folder() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/x", "HOME": "/users/u"}) == Path("/x")
    assert cache_folder({"HOME": "/users/u"}) == Path("/users/u/.cache")
    # the specification: a path that is not absolute is ignored
    assert cache_folder({"XDG_CACHE_HOME": "x", "HOME": "/users/u"}) == Path("/users/u/.cache")
    assert cache_folder({"XDG_CACHE_HOME": "", "HOME": ""}) is None


@pytest.mark.parametrize("value", ["off", "OFF", "0", "no", "false", " off "])
def test_it_can_be_switched_off(value: str, java: Path, spark: Path) -> None:
    assert find({"HOME": "/users/u", class_archive.SWITCH: value}, java, spark) is None
    assert find({"HOME": "/users/u", class_archive.SWITCH: ""}, java, spark) is not None


@pytest.mark.parametrize("folder", ["/a:b", '/a"b', "/a'b", "/a\\b", "/a\nb"])
def test_a_folder_that_javas_options_cannot_hold_has_no_archive(folder: str, java: Path, spark: Path) -> None:
    assert find({"XDG_CACHE_HOME": folder}, java, spark) is None


def test_another_java_or_another_spark_has_another_archive(java: Path, spark: Path) -> None:
    def key() -> str:
        found = find({"HOME": "/users/u"}, java, spark)
        assert found is not None
        return found.folder.name

    keys = [key()]
    assert key() == keys[0]
    (java / "release").write_text("21")
    keys.append(key())
    (spark / "jars" / "a.jar").write_text("other")
    keys.append(key())
    os.utime(spark / "jars" / "a.jar", (1, 1))
    keys.append(key())
    (spark / "jars" / "c.jar").write_text("")
    keys.append(key())
    (spark / "jars" / "c.jar").unlink()
    assert key() == keys[3]
    assert len(set(keys)) == len(keys)


def test_a_java_that_does_not_say_what_it_is_has_no_archive(java: Path, spark: Path) -> None:
    (java / "release").unlink()
    assert find({"HOME": "/users/u"}, java, spark) is None


def test_nor_has_one_that_says_it_in_no_utf_8(java: Path, spark: Path) -> None:
    (java / "release").write_bytes(b'IMPLEMENTOR="M\xfcller"')
    assert find({"HOME": "/users/u"}, java, spark) is None


def made(archive: ClassArchive, used_at: float = NOW) -> ClassArchive:
    new = archive.folder / "classes.new"
    new.write_text("classes")
    archive.seal(new)
    os.utime(archive.folder / "whole", (used_at, used_at))
    return archive


def test_it_is_used_where_it_is_there_and_nobody_else_could_have_written_it(archive: ClassArchive) -> None:
    assert archive.options() == []
    made(archive, used_at=1.0)
    assert archive.options()[0] == f"-XX:SharedArchiveFile={archive.classes}"
    assert (archive.folder / "whole").stat().st_mtime > 1  # so that it is among those that were used last
    assert {each.name: each.stat().st_mode & 0o777 for each in archive.folder.iterdir()} == {
        "classes.jsa": 0o600, "whole": 0o600,
    }  # fmt: skip
    archive.folder.chmod(0o750)
    assert archive.options() == []


def test_on_top_of_an_archive_of_javas_own_classes(archive: ClassArchive) -> None:
    archive.base.write_text("")
    made(archive)
    assert archive.options()[0] == f"-XX:SharedArchiveFile={archive.base}:{archive.classes}"
    archive.base.unlink()
    assert archive.options() == []


@pytest.mark.parametrize("name", ["classes.jsa", "whole"])
@pytest.mark.parametrize("damage", ["cut", "changed", "grown", "gone", "unreadable"])
def test_one_that_is_not_as_it_was_made_is_not_used_and_made_anew(
    archive: ClassArchive, name: str, damage: str
) -> None:
    """Java maps the file as it is: one that is cut off ends it with a SIGBUS."""
    file = made(archive).folder / name
    before = file.read_bytes()
    match damage:
        case "cut":
            file.write_bytes(before[:-1])
        case "changed":
            file.write_bytes(bytes(reversed(before)))
        case "grown":
            file.write_bytes(before + b"x")
        case "gone":
            file.unlink()
        case "unreadable":
            file.unlink()
            file.mkdir()
    assert archive.options() == []
    assert archive.wants_training(NOW)
    if damage != "unreadable":
        assert made(archive).options()


def test_a_link_to_another_folder_is_not_followed(archive: ClassArchive, tmp_path: Path) -> None:
    made(archive)
    linked = ClassArchive(tmp_path / "linked", archive.java)
    linked.folder.symlink_to(archive.folder)
    assert linked.options() == []
    with pytest.raises(OSError):
        class_archive.make_private(linked.folder)


def test_a_folder_that_is_a_file_has_no_archive(tmp_path: Path, java: Path) -> None:
    (tmp_path / "cache").write_text("")
    archive = ClassArchive(tmp_path / "cache" / "key", java)
    assert archive.options() == []
    assert not archive.wants_training(NOW)


def test_it_is_made_once_and_where_that_fails_a_few_times_a_day_apart(archive: ClassArchive) -> None:
    assert archive.wants_training(NOW)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        archive.begin_attempt()
        os.utime(archive.folder / "attempts", (NOW, NOW))
        assert not archive.wants_training(NOW + ATTEMPT_S - 1)
        assert archive.wants_training(NOW + ATTEMPT_S) is (attempt < ATTEMPTS_MAX)
    made(archive)
    assert not archive.wants_training(NOW + 2 * ATTEMPT_S)


def test_a_torn_note_of_attempts_counts_as_none(archive: ClassArchive) -> None:
    (archive.folder / "attempts").write_text("\0\0")
    os.utime(archive.folder / "attempts", (NOW, NOW))
    assert archive.wants_training(NOW + ATTEMPT_S)


def test_a_disk_that_is_nearly_full_is_not_filled(archive: ClassArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    free = class_archive.FREE_BYTES_MIN - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert not archive.wants_training(NOW)


def test_only_the_archives_that_were_used_last_are_kept(archive: ClassArchive) -> None:
    made(archive)
    others = [ClassArchive(archive.folder.parent / f"other-{number}", archive.java) for number in range(4)]
    for number, other in enumerate(others):
        class_archive.make_private(other.folder)
        made(other, used_at=number)
    unfinished = archive.folder.parent / "unfinished"
    unfinished.mkdir()
    archive.drop_others()
    left = {each.name for each in archive.folder.parent.iterdir()}
    assert left == {archive.folder.name, unfinished.name, *(each.folder.name for each in others[-KEPT_MAX + 1 :])}


def test_it_is_made_when_the_process_has_ended_and_nobody_waits(archive: ClassArchive, tmp_path: Path) -> None:
    """A process of its own, in a session of its own, after everything that was registered later has run."""
    told = tmp_path / "told"
    program = f"""
import os, subprocess, sys
from pathlib import Path
from pairbus.spark.runtime import class_archive
class_archive._TRAINING = "told"
archive = class_archive.ClassArchive(Path({str(archive.folder)!r}), Path({str(archive.java)!r}))
class_archive.train_at_exit(archive)
class_archive.train_at_exit(archive)
if os.fork() == 0:
    sys.exit(0)
os.wait()
print("done")
"""
    (tmp_path / "told.py").write_text(
        "import os\n"
        f"with open({str(told)!r}, 'a') as file:\n"
        "    print(os.environ['JAVA_HOME'], os.getsid(0) == os.getpid(), file=file)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "done\n", "")
    until(lambda: told.exists() and told.read_text().endswith("\n"))
    assert told.read_text() == f"{archive.java} True\n"
