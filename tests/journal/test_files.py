"""The same conformance on the real files and on their twin."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from pairbus.journal import Files, RealFiles
from tests.simulation.disk import SimulatedDisk


@pytest.fixture(params=["real", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, str]:
    files: Files = RealFiles() if request.param == "real" else SimulatedDisk()
    folder = str(tmp_path / "data" / "journal") if request.param == "real" else "journal"
    files.make_folder(folder)
    return files, folder


def test_read_back_what_was_written(disk: tuple[Files, str]) -> None:
    files, folder = disk
    fd = files.create(f"{folder}/a")
    assert files.pwrite(fd, b"hello", 0) == 5
    assert files.pwrite(fd, b"there", 10) == 5
    files.fdatasync(fd)
    assert files.pread(fd, 100, 0) == b"hello" + bytes(5) + b"there"
    assert files.pread(fd, 3, 1) == b"ell"
    assert files.pread(fd, 10, 100) == b""
    assert files.size(fd) == 15
    files.truncate(fd, 4)
    assert files.pread(fd, 100, 0) == b"hell"
    files.truncate(fd, 6)
    assert files.pread(fd, 100, 0) == b"hell" + bytes(2)
    files.fallocate(fd, 6, 10)
    assert files.size(fd) == 16
    files.fallocate(fd, 0, 4)
    assert files.size(fd) == 16
    files.close(fd)


def test_names(disk: tuple[Files, str]) -> None:
    files, folder = disk
    files.close(files.create(f"{folder}/a"))
    with pytest.raises(FileExistsError):
        files.create(f"{folder}/a")
    with pytest.raises(FileNotFoundError):
        files.open(f"{folder}/b")
    files.rename(f"{folder}/a", f"{folder}/b")
    files.fsync_dir(folder)
    assert files.listdir(folder) == ["b"]
    fd = files.open(f"{folder}/b")
    files.unlink(f"{folder}/b")
    assert files.listdir(folder) == []
    assert files.pwrite(fd, b"x", 0) == 1
    files.close(fd)
    with pytest.raises(FileNotFoundError):
        files.unlink(f"{folder}/b")


def test_one_lock_at_a_time(disk: tuple[Files, str]) -> None:
    files, folder = disk
    held = files.lock(f"{folder}/lock")
    assert held is not None
    assert files.lock(f"{folder}/lock") is None
    assert files.holder(f"{folder}/lock") in (str(os.getpid()), "in memory")
    files.close(held)
    again = files.lock(f"{folder}/lock")
    assert again is not None
    files.close(again)


def test_salts_differ(disk: tuple[Files, str]) -> None:
    files, _ = disk
    salts = {files.salt() for _ in range(20)}
    assert len(salts) == 20 and all(0 <= salt < 2**32 for salt in salts)


def test_only_the_owner_may_look(tmp_path: Path) -> None:
    files, folder = RealFiles(), tmp_path / "j"
    folder.mkdir(mode=0o755)
    files.make_folder(str(folder))
    files.close(files.create(str(folder / "a")))
    lock = files.lock(str(folder / "lock"))
    assert lock is not None
    files.close(lock)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
