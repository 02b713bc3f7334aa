from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from pairbus.journal import Journal, JournalError, Options
from pairbus.journal import journal as journal_module
from pairbus.journal import log as log_module
from pairbus.journal import segment as segment_module
from pairbus.journal.log import Log

from .disk import DiskFault, FaultKind, SimulatedDisk
from .journal_world import STALLS_FROM, Step, Story, Violation, World, draw, run_seed
from .shrink import shrink

SMALL = Options(segment_bytes=2048, reserve_bytes=1024, allocate_bytes=256)


@pytest.mark.parametrize("first", range(0, 600, 50))
def test_worlds_hold(first: int) -> None:
    for seed in range(first, first + 50):
        run_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 21_000, 500))
def test_many_worlds_hold(first: int) -> None:
    for seed in range(first, first + 500):
        run_seed(seed)


@pytest.mark.parametrize("seed", [11455, 11675])
def test_a_segment_that_is_still_written_is_not_compacted(seed: int) -> None:
    """A full disk gets room just before the only segment is left for a new one: since it is new itself, it is not."""
    run_seed(seed)


@pytest.mark.parametrize("first", range(STALLS_FROM, STALLS_FROM + 400, 50))
def test_p48_worlds_with_folders_that_stall_hold(first: int) -> None:
    for seed in range(first, first + 50):
        run_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(STALLS_FROM + 1000, STALLS_FROM + 5000, 500))
def test_p48_many_worlds_with_folders_that_stall_hold(first: int) -> None:
    for seed in range(first, first + 500):
        run_seed(seed)


def test_a_seed_is_always_the_same_world() -> None:
    for seed in (*range(20), *range(STALLS_FROM, STALLS_FROM + 20)):
        once, again = draw(seed), draw(seed)
        assert once == again and str(once) == str(again)
        assert once.run().disk.log == again.run().disk.log


def stop(call: int) -> list[DiskFault]:
    return [DiskFault("stop", at=call)]


@pytest.mark.parametrize("write_here", [False, True])
@pytest.mark.parametrize("call", range(1, 61))
def test_stopped_at_every_call_of_one_story(call: int, write_here: bool) -> None:
    """With a failed sync and a full disk in it."""
    steps = [
        Step("put", 40), Step("turn", 0.0), Step("lazy", 40), Step("turn", 0.0),
        Step("faults", [DiskFault("error", "fdatasync")]), Step("put", 300), Step("lazy", 1), Step("turn", 0.0),
        Step("put", 1500), Step("turn", 0.0), Step("lazy_drop", 1), Step("turn", 0.1),
        Step("faults", [DiskFault("room", value=100)]), Step("put", 300), Step("lazy", 40), Step("turn", 0.0),
        Step("turn", 0.1), Step("heal"), Step("turn", 0.5), Step("compact"), Step("put", 40), Step("turn", 0.0),
    ]  # fmt: skip
    for how in ("nothing", "everything", "some", "kill"):
        World(SMALL, write_here).run([Step("faults", stop(call)), *steps, Step("crash", (how, call, [])), *steps])


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("kind", ["error", "done_error"])
def test_the_disk_fails_at_every_call_of_one_story(kind: FaultKind, count: int) -> None:
    """On a full disk with a segment that a start found without records, and with so many calls in succession."""
    steps = [
        Step("put", 40), Step("put", 40), Step("turn", 0.0),
        Step("crash", ("kill", 0, [])), Step("crash", ("kill", 0, [])),
        Step("faults", [DiskFault("room", value=0)]), Step("put", 300), Step("turn", 0.0),
    ]  # fmt: skip
    after = [
        Step("lazy", 40), Step("turn", 0.0), Step("turn", 0.5), Step("heal"), Step("turn", 0.5), Step("put", 40),
        Step("lazy_drop", 0), Step("turn", 0.1), Step("lazy_drop", 0), Step("turn", 0.1), Step("compact"),
    ]  # fmt: skip
    for call in range(1, 30):
        for how in ("nothing", "everything", "some", "kill"):
            fault = DiskFault(kind, at=call, count=count)
            World(SMALL).run([*steps, Step("faults", [fault]), *after, Step("crash", (how, call, []))])


def test_stopped_at_every_call_of_a_start() -> None:
    for call in range(1, 60):
        world = World(SMALL)
        world.run([step for _ in range(10) for step in (Step("put", 300), Step("lazy", 1), Step("turn", 0.0))])
        for how in ("kill", "everything", "some"):
            world.crash((how, call, stop(call)))
        if not any(fault.kind == "stop" for _, _, fault in world.disk.struck):
            assert call > 10
            return
    pytest.fail("a start takes more calls than that")


# -- the world finds what is wrong


def confirm_before_the_sync(log: Log) -> None:
    log.synced = log.offset
    log._lazy_since = None
    log._unsynced = []


def forget_lazy_records(log: Log, *arguments: Any, abandon: Callable[..., Any] = Log._abandon) -> list[Any]:
    return [entry for entry in abandon(log, *arguments) if not entry[5] & log_module.ANSWERED]


def claim_what_was_not_synced(
    log: Log, end: int, *, sync: bool, close: Callable[..., None] = Log._close_segment
) -> None:
    close(log, max(end, log.offset), sync=sync)


def copy_half(journal: Journal, kind: int, parts: Any, done: Any, copy: Any = Journal._append_copy) -> None:
    if journal.last_lsn % 2:
        copy(journal, kind, parts, done)
    else:
        done(None, 1, 64)


def believe_every_tail(*_: object) -> None:
    return None


sync_is_due = Log._sync_is_due


def never_call_a_sync_late(log: Log, now: float, share: float = 0.8) -> bool:
    return share < 1 and sync_is_due(log, now)


SABOTAGE: dict[str, tuple[object, str, Any]] = {
    "confirm before the sync": (Log, "_fdatasync", confirm_before_the_sync),
    "answer settlements while a sync is late": (Log, "_sync_is_due", never_call_a_sync_late),
    "forget what was answered after a failed sync": (Log, "_abandon", forget_lazy_records),
    "claim records that were not synced": (Log, "_close_segment", claim_what_was_not_synced),
    "do not sync the folder": (SimulatedDisk, "fsync_dir", lambda disk, folder: None),
    "do not look whether the folder is in place": (Log, "_check_in_place", lambda log, *_: None),
    "start on what is in the cache alone": (journal_module, "write_again", lambda *_, **__: None),
    "leave out a record in compaction": (Journal, "_append_copy", copy_half),
    "take damage for a torn tail": (segment_module, "_judge", believe_every_tail),
    "never compact": (Journal, "compaction_is_due", lambda journal: False),
    "never find room again": (Log, "_refill", lambda log: False),
}


@pytest.mark.parametrize("what", SABOTAGE)
def test_sabotage_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, wrong = SABOTAGE[what]
    monkeypatch.setattr(owner, name, wrong)
    found = itertools.islice((story for story in map(draw, range(2000)) if story.fails()), 3)
    small = min((shrink(story, Story.fails) for story in found), key=lambda story: story.size)
    assert small.size <= 30
    with pytest.raises((Violation, JournalError)):
        small.run()
