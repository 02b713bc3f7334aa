from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable
from typing import Literal, get_args

import pytest

from tests.simulation.disk import (
    CHANGES,
    FAILING_CALLS,
    SECTOR_BYTES,
    DiskFault,
    FaultKind,
    MachineStopped,
    SimulatedDisk,
    draw_faults,
)


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
    files.fail("fdatasync")
    with pytest.raises(OSError, match="Input/output"):
        files.fdatasync(fd)
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
    assert files.power_cut(everything=True).content("j/a") == b"?ACHED"
    after = files.kill()
    assert after.content("j/a") == b"CACHED"
    assert after.lock("j/lock") is not None
    assert after.power_cut().content("j/a") == b"synced"
    after.fdatasync(after.open("j/a"))
    assert after.power_cut().content("j/a") == b"CACHED"


@pytest.mark.parametrize("kind", ["error", "done_error"])
def test_a_call_that_fails_has_done_nothing_or_everything(kind: Literal["error", "done_error"]) -> None:
    files = SimulatedDisk()
    fd = made(files)
    done = kind == "done_error"
    files.faults = [DiskFault(kind, call, value=errno.ENOSPC) for call in CHANGES]
    calls: list[tuple[Callable[[], object], Callable[[], bool]]] = [
        (lambda: files.pwrite(fd, b"SYNCED+", 0), lambda: files.content("j/a") == b"SYNCED+"),
        (lambda: files.fdatasync(fd), lambda: files.power_cut().content("j/a") == b"SYNCED+"),
        (lambda: files.fallocate(fd, 0, 100), lambda: files.size(fd) == 100),
        (lambda: files.truncate(fd, 2), lambda: files.content("j/a") == b"SY"),
        (lambda: files.create("j/b"), lambda: "b" in files.listdir("j")),
        (lambda: files.rename("j/a", "j/c"), lambda: "c" in files.listdir("j")),
        (lambda: files.unlink("j/c" if done else "j/a"), lambda: not {"a", "c"} & set(files.listdir("j"))),
        (lambda: files.fsync_dir("j"), lambda: files.power_cut().listdir("j") == ["b"]),
    ]
    for call, has_happened in calls:
        with pytest.raises(OSError, match="No space"):
            call()
        assert has_happened() is done
    assert [fault.call for _, _, fault in files.struck] == [
        "pwrite", "fdatasync", "fallocate", "truncate", "create", "rename", "unlink", "fsync_dir",
    ]  # fmt: skip
    assert [fault.call for fault in files.faults] == ["lock"]


def test_a_fault_waits_for_its_call_and_its_path_and_strikes_so_often() -> None:
    files = SimulatedDisk(chance=random.Random(1))
    fd, other = made(files), made(files, "j/other")
    files.faults = [DiskFault("error", "pwrite", at=files.calls + 3, count=2, path="/a")]
    outcomes = []
    for handle in (fd, fd, other, fd, fd, fd):
        try:
            outcomes.append(files.pwrite(handle, b"x", 0))
        except OSError:
            outcomes.append(0)
    assert outcomes == [1, 1, 1, 0, 0, 1]
    files.faults = [DiskFault("error", count=10**6, probability=0.3)]
    for _ in range(1000):
        with contextlib.suppress(OSError):
            files.pread(fd, 1, 0)
    assert 200 < len(files.struck) < 400
    assert files.faults[0].count == 10**6 - len(files.struck) + 2


def test_a_sync_may_fail_with_some_of_it_on_the_disk() -> None:
    seen = set()
    for seed in range(50):
        files = SimulatedDisk(chance=random.Random(seed))
        fd = made(files)
        files.pwrite(fd, b"x" * 300, 0)
        files.faults = [DiskFault("torn_sync")]
        with pytest.raises(OSError, match="Input/output"):
            files.fdatasync(fd)
        files.fdatasync(fd)
        seen.add(bytes(files.power_cut().content("j/a")))
    assert len(seen) > 5


def test_a_misdirected_write_shows_after_a_power_cut() -> None:
    changed = set()
    for seed in range(50):
        files = SimulatedDisk(chance=random.Random(seed))
        fd = made(files)
        files.pwrite(fd, b"." * 300, 0)
        files.fdatasync(fd)
        files.close(made(files, "j/b"))
        files.faults = [DiskFault("misdirect")]
        assert files.pwrite(fd, b"wrong way", 300) == 9
        files.fdatasync(fd)
        assert files.kill().content("j/a").endswith(b".wrong way")
        after = files.power_cut()
        assert after.content("j/a")[300:] == bytes(9)
        changed |= {path for path in ("j/a", "j/b") if b"w" in after.content(path)}
    assert changed == {"j/a", "j/b"}


def test_one_sector_rots_on_the_disk_alone() -> None:
    for seed in range(50):
        files = SimulatedDisk(chance=random.Random(seed))
        fd = made(files)
        files.pwrite(fd, b"." * 300, 0)
        files.fdatasync(fd)
        files.faults = [DiskFault("rot")]
        assert files.pread(fd, 300, 0) == b"." * 300
        after = files.power_cut().content("j/a")
        sectors = {at // SECTOR_BYTES for at in range(300) if after[at] != ord(".")}
        assert len(sectors) == 1 and len(after) == 300


def test_room_short_writes_slowness_and_a_stop() -> None:
    files = SimulatedDisk()
    files.latency_s = {"fdatasync": 0.5}
    fd = made(files)
    files.faults = [
        DiskFault("room", value=2),
        DiskFault("short", at=files.calls + 2, value=1),
        DiskFault("slow", value=3),
    ]
    assert files.pwrite(fd, b"12345", 6) == 2
    assert files.pwrite(fd, b"12345", 0) == 1
    files.faults = [DiskFault("room", value=-1)]
    assert files.pwrite(fd, b"12345", 6) == 5
    assert files.elapsed_s == 3.5
    files.faults = [DiskFault("stop", "fdatasync")]
    with pytest.raises(MachineStopped):
        files.fdatasync(fd)
    assert files.is_dead and files.power_cut().content("j/a") == b"synced"


def test_a_folder_that_is_read_only_deleted_or_put_back() -> None:
    files = SimulatedDisk()
    fd = made(files)
    stamp = files.stamp("j")
    files.is_read_only_now = True
    assert files.is_read_only("j")
    for call in (lambda: files.pwrite(fd, b"x", 0), lambda: files.create("j/b"), lambda: files.unlink("j/a")):
        with pytest.raises(OSError, match="Read-only"):
            call()
    assert files.pread(fd, 6, 0) == b"synced"
    files.is_read_only_now = False
    assert files.is_same(fd, "j/a") and files.stamp("j") == stamp
    folder = files.delete_folder("j")
    assert not files.is_same(fd, "j/a") and files.stamp("j") is None
    with pytest.raises(FileNotFoundError):
        files.create("j/b")
    with pytest.raises(FileNotFoundError):
        files.listdir("j")
    assert files.pwrite(fd, b"SYNCED", 0) == 6
    gone = files.power_cut(everything=True)
    gone.make_folder("j")
    assert gone.listdir("j") == []
    files.restore_folder(folder)
    assert files.is_same(fd, "j/a") and files.stamp("j") not in (None, stamp)
    assert files.power_cut(everything=True).content("j/a") == b"SYNCED"


def test_a_power_cut_may_leave_any_of_the_folders_changes() -> None:
    files = SimulatedDisk()
    made(files)
    files.create("j/b")
    files.rename("j/a", "j/c")
    files.unlink("j/b")
    left = {"".join(sorted(files.power_cut(random.Random(seed)).listdir("j"))) for seed in range(200)}
    assert left == {"a", "ab", "bc", "c"}


def test_drawn_faults_are_the_same_for_a_seed_and_damage_only_where_asked() -> None:
    drawn = [draw_faults(random.Random(seed), 1000) for seed in range(300)]
    assert drawn == [draw_faults(random.Random(seed), 1000) for seed in range(300)]
    assert {fault.kind for faults in drawn for fault in faults} == set(get_args(FaultKind)) - {"misdirect", "rot"}
    damaged = [fault for seed in range(300) for fault in draw_faults(random.Random(seed), 1000, damage=True)]
    assert {fault.kind for fault in damaged} == set(get_args(FaultKind))
    assert {fault.call for fault in damaged} == {"", *FAILING_CALLS}
