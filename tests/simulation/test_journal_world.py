from __future__ import annotations

import pytest

from pairbus.journal import JournalError, Options

from .disk import DiskFault, FaultKind
from .journal_world import STALLS_FROM, Step, Story, Violation, World, draw, run_seed
from .sabotage import sabotages
from .shrink import shrink

SMALL = Options(segment_bytes=2048, reserve_bytes=1024, allocate_bytes=256)


@pytest.mark.parametrize("first", range(0, 600, 50))
def test_worlds_hold(first: int) -> None:
    for seed in range(first, first + 50):
        run_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 9000, 500))
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
@pytest.mark.parametrize("first", range(STALLS_FROM + 1000, STALLS_FROM + 4000, 500))
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


@pytest.mark.parametrize("name", ["confirm_before_the_sync", "damage_taken_for_a_torn_tail"])
def test_a_story_that_fails_is_made_small(name: str) -> None:
    sabotage = sabotages()[name]
    with sabotage.put_in():
        small = shrink(draw(sabotage.seed), Story.fails)
        assert small.size <= 30
        with pytest.raises((Violation, JournalError)):
            small.run()
