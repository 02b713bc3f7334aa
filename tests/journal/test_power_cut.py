"""Any traffic, any faults, any number of crashes: what was confirmed is there, what is gone stays gone."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pairbus.journal import JournalError, Options
from tests.journal.rig import Rig
from tests.simulation.disk import DiskFault, MachineStopped, SimulatedDisk

CALLS = ("pwrite", "fdatasync", "truncate", "create", "fsync_dir", "fallocate", "unlink", "rename", "open")

STEPS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from([0, 1, 40, 300, 1500])),
    st.tuples(st.just("lazy"), st.sampled_from([0, 1, 40, 300])),
    st.tuples(st.just("turn"), st.sampled_from([0.0, 0.05, 0.1, 0.5])),
    st.tuples(st.just("fail"), st.tuples(st.sampled_from(CALLS), st.sampled_from([1, 2, 5]))),
    st.tuples(st.just("heal"), st.none()),
    st.tuples(st.just("lands"), st.booleans()),
    st.tuples(st.just("disk"), st.sampled_from([0, 100, 700, 3000, None])),
    st.tuples(st.just("die"), st.integers(1, 12)),
    st.tuples(
        st.just("crash"), st.tuples(st.sampled_from(["kill", "nothing", "everything", "some"]), st.integers(0, 99))
    ),
    st.tuples(st.just("close"), st.none()),
)


class World:
    def __init__(self, durability: str, write_here: bool = False) -> None:
        self.write_here = write_here
        self.options = Options(
            segment_bytes=2048,
            reserve_bytes=1024,
            allocate_bytes=256,
            durability=durability,  # type: ignore[arg-type]
        )
        self.durability = durability
        self.count = 0
        self.order: list[bytes] = []  # as asked
        self.confirmed: set[bytes] = set()
        self.confirmed_if_killed: set[bytes] = set()
        self.gone: set[bytes] = set()
        self.unknown: set[bytes] = set()
        self.lands_all_the_same = False
        self.rig = Rig(SimulatedDisk(), self.options, write_here).open()

    def run(self, steps: list[tuple[str, object]]) -> None:
        for name, value in steps:
            if self.rig.files.is_dead and name != "crash":
                continue
            getattr(self, name)(value)
        self.crash(("nothing", 0))
        self.crash(("kill", 0))

    def append(self, size: int, lazy: bool) -> None:
        payload = b"%06d" % self.count + b"." * size
        self.count += 1
        self.order.append(payload)

        def done(error: JournalError | None, segment: int, offset: int) -> None:
            if error is None:
                self.confirmed_if_killed.add(payload)
                if self.durability == "strict" or (self.durability == "default" and not lazy):
                    self.confirmed.add(payload)
            elif error.unknown:
                self.unknown.add(payload)
            else:
                self.gone.add(payload)

        with contextlib.suppress(MachineStopped):
            self.rig.journal.append(1, payload, done, lazy=lazy)

    def send(self, size: int) -> None:
        self.append(size, False)

    def lazy(self, size: int) -> None:
        self.append(size, True)

    def turn(self, after: float) -> None:
        self.rig.turn(after)

    def fail(self, what: tuple[str, int]) -> None:
        kind = "done_error" if self.lands_all_the_same else "error"
        self.rig.files.faults.append(DiskFault(kind, what[0], count=what[1]))

    def heal(self, _: None) -> None:
        self.rig.files.faults.clear()

    def lands(self, value: bool) -> None:
        self.lands_all_the_same = value

    def disk(self, extra: int | None) -> None:
        self.rig.files.capacity = None if extra is None else self.rig.files.used() + extra

    def die(self, calls: int) -> None:
        self.rig.files.dies_at = self.rig.files.calls + calls

    def close(self, _: None) -> None:
        try:
            self.rig.journal.close()
        except JournalError:
            # What was answered lazily and could not be written again is lost with this clean stop, and was said.
            self.confirmed_if_killed = set(self.confirmed)
        self.crash(("kill", 0))

    def crash(self, how: tuple[str, int]) -> None:
        kind, seed = how
        files = self.rig.files
        had_trouble = any("failed" in note for note in self.rig.journal.notes) if self.rig.journal else True
        if kind == "kill":
            after = files.kill()
        elif kind == "some":
            after = files.power_cut(random.Random(seed))
        else:
            after = files.power_cut(everything=kind == "everything")
        promise = self.confirmed_if_killed if kind == "kill" and not had_trouble else self.confirmed
        after.capacity = None
        self.rig = Rig(after, self.options, self.write_here).open()
        found = self.rig.replayed()
        assert found == [payload for payload in self.order if payload in set(found)], "order, or a repeat"
        assert promise <= set(found), f"lost {sorted(promise - set(found))}"
        assert not self.gone & set(found), f"came back {sorted(self.gone & set(found))}"
        # All that was replayed has been made durable by the start; all that was not is gone for good.
        self.confirmed = set(found)
        self.confirmed_if_killed = set(found)
        self.gone = set(self.order) - set(found)


@pytest.mark.parametrize(
    ("durability", "write_here"), [("default", False), ("default", True), ("strict", False), ("none", False)]
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEPS, max_size=40))
def test_what_was_confirmed_survives(durability: str, write_here: bool, steps: list[tuple[str, object]]) -> None:
    World(durability, write_here).run(steps)


@pytest.mark.parametrize("write_here", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_stopped_at_every_call_of_one_story(seed: int, write_here: bool) -> None:
    """The same story, with a failed sync and a full disk in it, stopped at its n-th call, n counting up."""
    story: list[tuple[str, object]] = [
        ("send", 40), ("turn", 0.0), ("lazy", 40), ("turn", 0.0), ("fail", ("fdatasync", 1)), ("send", 300),
        ("lazy", 1), ("turn", 0.0), ("send", 1500), ("turn", 0.0), ("lazy", 1), ("turn", 0.1), ("disk", 100),
        ("send", 300), ("lazy", 40), ("turn", 0.0), ("turn", 0.1), ("disk", None), ("turn", 0.5), ("send", 40),
        ("turn", 0.0),
    ]  # fmt: skip
    for how in ("nothing", "everything", "some", "kill"):
        world = World("default", write_here)
        world.die(seed + 1)
        world.run([*story, ("crash", (how, seed)), ("send", 40), ("turn", 0.0)])


def test_stopped_at_every_call_of_a_start() -> None:
    rig = Rig().open()
    for i in range(30):
        rig.append(b"%d" % i * 100)
        rig.turn()
    rig.append(b"lazy", lazy=True)
    rig.turn()
    expected = [rig.asked[lsn][1] for lsn in sorted(rig.asked)][:-1]
    for calls in range(1, 60):
        disk = rig.files.power_cut(everything=True)
        disk.dies_at = disk.calls + calls
        try:
            Rig(disk).open()
            assert calls > 10
            break
        except MachineStopped:
            pass
        for after in (disk.power_cut(), disk.power_cut(everything=True), disk.power_cut(random.Random(calls))):
            assert Rig(after).open().replayed()[: len(expected)] == expected
    else:
        pytest.fail("a start takes more calls than that")
