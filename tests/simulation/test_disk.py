from __future__ import annotations

import random

import pytest

from tests.simulation.disk import MachineStopped, SimulatedDisk


def made(files: SimulatedDisk, path: str = "j/a") -> int:
    fd = files.create(path)
    files.pwrite(fd, b"synced", 0)
    files.fdatasync(fd)
    files.fsync_dir("j")
    return fd


def test_a_power_cut_takes_what_was_not_synced() -> None:
    files = SimulatedDisk()
    fd = made(files)
    files.pwrite(fd, b"SYNCED+", 0)
    files.create("j/b")
    assert files.power_cut().content("j/a") == b"synced"
    assert files.power_cut().listdir("j") == ["a"]
    everything = files.power_cut(everything=True)
    assert everything.content("j/a") == b"SYNCED+"
    assert sorted(everything.listdir("j")) == ["a", "b"]


def test_a_power_cut_may_leave_any_sectors() -> None:
    files = SimulatedDisk()
    fd = made(files)
    files.pwrite(fd, b"x" * 300, 0)
    seen = {bytes(files.power_cut(random.Random(seed)).content("j/a")) for seed in range(200)}
    assert b"synced" in seen and b"x" * 300 in seen
    assert any(b"\0" in content and content.endswith(b"x") for content in seen)


def test_a_failed_sync_forgets_and_a_later_one_believes_it_is_done() -> None:
    files = SimulatedDisk()
    fd = made(files)
    files.pwrite(fd, b"lost!!", 0)

    def fault(name: str, path: str) -> int | None:
        if name == "fdatasync":
            raise OSError(5, "injected")
        return None

    files.fault = fault
    with pytest.raises(OSError, match="injected"):
        files.fdatasync(fd)
    files.fault = None
    files.fdatasync(fd)
    assert files.pread(fd, 6, 0) == b"lost!!"
    assert files.power_cut().content("j/a") == b"synced"


def test_a_full_disk_writes_short_and_then_not_at_all() -> None:
    files = SimulatedDisk(capacity=10)
    fd = files.create("j/a")
    assert files.pwrite(fd, b"x" * 8, 0) == 8
    assert files.pwrite(fd, b"y" * 8, 8) == 2
    with pytest.raises(OSError, match="No space"):
        files.pwrite(fd, b"z", 10)
    assert files.pwrite(fd, b"z", 0) == 1
    with pytest.raises(OSError, match="No space"):
        files.fallocate(fd, 0, 11)
    files.truncate(fd, 0)
    assert files.used() == 0


def test_a_stopped_machine_answers_no_call_and_a_killed_process_leaves_the_cache() -> None:
    files = SimulatedDisk()
    fd = made(files)
    assert files.lock("j/lock") is not None
    files.pwrite(fd, b"CACHED", 0)
    files.dies_at = files.calls + 1
    for _ in range(2):
        with pytest.raises(MachineStopped):
            files.pwrite(fd, b"?", 0)
    after = files.kill()
    assert after.content("j/a") == b"CACHED"
    assert after.lock("j/lock") is not None
    assert after.power_cut().content("j/a") == b"synced"
