"""What a broker's machine and disk do to it, as rules: written, answered, compacted, failing, killed, cut off."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from pairbus.journal import JournalError
from tests.simulation.disk import SimulatedDisk

from .namespace_rig import Rig


def thorough(examples: int, steps: int) -> settings:
    """Settings for machines whose steps are slow and draw much."""
    allowed = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    return settings(max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=allowed)


class Machine(RuleBasedStateMachine):
    """The rest is what clients do, and what must be there after a crash."""

    rig: Rig
    compaction: asyncio.Task[int | None] | None = None
    has_failed = False  # the disk: what it took and could not sync may wait to be written elsewhere

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.stop_compaction()
            self.rig.__exit__()

    @rule()
    def write(self) -> None:
        self.rig.turn()

    @rule()
    def answer(self) -> None:
        self.rig.answer()

    @rule()
    def compact(self) -> None:
        """Begin, or go on a little."""
        if self.compaction is None:
            self.compaction = self.rig.loop.create_task(self.rig.journal.compact(self.rig.namespace.live_records))
        self.rig.loop.run_until_complete(asyncio.sleep(0))
        if self.compaction.done():
            with contextlib.suppress(JournalError):
                self.compaction.result()
            self.compaction = None

    @rule(segments=st.integers(1, 4))
    def compact_whole(self, segments: int) -> None:
        for _ in range(200):
            self.compact()
            self.rig.turn()
            self.rig.answer()
            if self.compaction is None:
                segments -= 1
                if not segments:
                    break

    @rule(
        calls=st.integers(1, 4),
        names=st.sampled_from([("fdatasync",), ("pwrite",), ("create", "rename"), ("fdatasync", "create", "rename")]),
    )
    def disk_fails(self, calls: int, names: tuple[str, ...]) -> None:
        self.rig.files.faults.clear()
        self.rig.files.fail(*names, times=calls)
        self.has_failed = True

    def stop_compaction(self) -> None:
        if self.compaction is not None:
            self.compaction.cancel()
            with contextlib.suppress(asyncio.CancelledError, JournalError):
                self.rig.loop.run_until_complete(self.compaction)
            self.compaction = None

    @rule()
    def kill(self) -> None:
        self.crash(lambda files: files.kill(), power=False)

    @rule(everything=st.booleans())
    def power_cut(self, everything: bool) -> None:
        self.crash(lambda files: files.power_cut(everything=everything), power=True)

    @rule(seed=st.integers(0, 2**16))
    def torn_power_cut(self, seed: int) -> None:
        self.crash(lambda files: files.power_cut(random.Random(seed)), power=True)

    def crash(self, left: Callable[[SimulatedDisk], SimulatedDisk], power: bool) -> None:
        raise NotImplementedError
