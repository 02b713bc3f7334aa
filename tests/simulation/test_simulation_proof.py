"""Worlds hold, are the same whenever and wherever they run, and shrink when they fail."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from pairbus.journal.log import Log

from . import __main__ as command_line
from . import combined, crashes, partitioned, stalls
from .__main__ import main, run_many
from .features import EVERY, FIRST, FIRST_CLOSED
from .run import Violation
from .shrink import shrink
from .world import Step, World, draw
from .worlds import run_of, world_of

#: A pair of brokers is one world in ten; two have what changes and moves messages, two nodes that
#: fail, one has partitions, and one both; in two the storage stalls.
SEEDS = (
    *range(4, 10), FIRST, FIRST + EVERY, crashes.FIRST, crashes.FIRST + crashes.EVERY, partitioned.FIRST, 700_874,
    stalls.FIRST, stalls.FIRST + stalls.EVERY,
)  # fmt: skip
DIGESTS = (
    "from tests.simulation.worlds import run_of, world_of\n"
    f"for seed in {list(SEEDS)}: print(run_of(world_of(seed)).run())"
)


def digests(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        [sys.executable, "-c", DIGESTS], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_a_seed_is_the_same_world_in_every_process() -> None:
    first = digests("1")
    assert len(set(first.split())) == len(SEEDS)
    assert digests("2") == first


def test_the_command_runs_worlds_on_several_cores() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "10", "--start", "0", "--jobs", "2"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (said.returncode, said.stdout[:22]) == (0, "10 seeds from 0 held, ")


@pytest.mark.parametrize(
    "seed", [3197, 409469, 410975, 411414, 411753, 413500, 422748, 423942, 4011434, 4020101, 5006495]
)
def test_worlds_that_once_objected_hold(seed: int) -> None:
    """Defects of the broker were 409469 (a refused record that may turn up after a restart), 411753 (time stood still
    after a message was dead-lettered late), 413500 (a header of which a part was written) and 422748 (a writer that
    spun on a full disk)."""
    run_of(world_of(seed)).run()


@pytest.mark.slow
def test_worlds_go_on_when_processes_are_replaced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "_CHUNK", 2)
    monkeypatch.setattr(command_line, "_CHUNKS_PER_PROCESS", 1)
    assert run_many(0, 9, jobs=2) == 0
    assert capsys.readouterr().out.startswith("9 seeds from 0 held, ")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_three_hundred_worlds_hold() -> None:
    assert main(["--seeds", "300", "--start", "1000", "--jobs", "2"]) == 0


def runs_of(first: int, count: int, every: int) -> Iterator[Any]:
    """Yield the runs of worlds of one kind, which hold."""
    for seed in range(first, first + count * every, every):
        run = run_of(world_of(seed))
        try:
            run.run()
        except Violation as violation:
            raise AssertionError(f"{violation}\nreplay it: make simulate SEED={seed}") from None
        yield run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_worlds_of_actions_forwarding_and_transactions_hold() -> None:
    """And much happens in them, since a simulation in which nothing happens proves nothing."""
    happened: Counter[str] = Counter()
    for run in itertools.chain(runs_of(FIRST, 40, EVERY), runs_of(FIRST_CLOSED, 15, EVERY)):
        for verb, *fields in run.trace.events:
            if verb == "locked":
                happened[fields[0].home] += 1
                happened["dead " + fields[0].home] += fields[0].state == "dead"
            elif verb in ("sent", "settled"):
                happened[fields[1]] += 1
        happened["committed"] += sum(
            1 in each.said and 0 not in each.said for each in run.checker.transactions.values()
        )
    wanted = (
        "entry", "dead entry", "dead far", "feed/changed:even", "feed/changed:red", "feed/away:odd", "committed",
        "refused", "unknown", "dead closed:orders",
    )  # fmt: skip
    assert [what for what in wanted if happened[what] < 5] == [], happened


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_p49_worlds_in_which_nodes_fail_hold() -> None:
    """And many of them do, while the disk fails or stalls, or the broker is killed, too."""
    happened: Counter[str] = Counter()
    for run in itertools.chain(runs_of(crashes.FIRST, 40, crashes.EVERY), runs_of(combined.FIRST, 12, combined.EVERY)):
        happened["crashes"] += run.crashes
        happened["kills"] += any(trouble.kind == "kill" for trouble in run.world.troubles)
        happened["disk"] += bool(run.world.disk)
    assert happened["crashes"] >= 40 and min(happened.values()) >= 3, happened


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_worlds_of_partitioned_entities_hold() -> None:
    """Their messages go to many partitions, and some of those are down when something is sent to them."""
    happened: Counter[object] = Counter()
    every = partitioned.EVERY
    for run in itertools.chain(runs_of(partitioned.FIRST, 40, every), runs_of(partitioned.FIRST_OF_CHURN, 9, every)):
        for verb, *fields in run.trace.events:
            if verb == "locked":
                happened[fields[0].sequence >> 48] += 1
            elif verb in ("sent", "settled"):
                happened[fields[1]] += 1
    assert len([each for each in happened if isinstance(each, int)]) > 10, happened
    assert min(happened["confirmed"], happened["refused"], happened["unknown"]) >= 5, happened


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_p48_worlds_in_which_the_storage_stalls_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The standby folder takes over in many of them, the journal returns to its own, and the power is cut meanwhile."""
    happened: Counter[str] = Counter()
    choose = Log._choose_folder

    def choose_and_count(log: Log) -> None:
        before = log.folder
        choose(log)
        happened["takes over"] += log.folder != log.home
        happened["returns"] += before != log.folder == log.home

    monkeypatch.setattr(Log, "_choose_folder", choose_and_count)
    for run in runs_of(stalls.FIRST, 80, stalls.EVERY):
        happened["crashes"] += run.crashes
        happened["refused"] += run.machine.refused_for_stalls
        happened["power cuts"] += sum(event[0] == "power_cut" for event in run.trace.events)
        happened["late"] += any(trouble.late for trouble in run.world.troubles)
    assert happened["takes over"] >= 20 and len(happened) == 6 and min(happened.values()) >= 5, happened


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_worlds_that_nobody_has_seen_hold() -> None:
    assert main(["--seeds", "20000"]) == 0


def test_a_world_shrinks_to_what_it_fails_for() -> None:
    def has_a_batch(world: World) -> bool:
        return any(step.action == "batch" for client in world.clients for step in client.steps)

    world = next(world for world in map(draw, range(100)) if has_a_batch(world) and world.size > 10)
    small = shrink(world, has_a_batch)
    (client,) = [client for client in small.clients if client.steps]
    assert [step.action for step in client.steps] == ["batch"]
    assert (small.troubles, small.dooms, small.disk) == ((), (), ())


def test_what_fails_says_what_was_drawn(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(world_of(1))
    monkeypatch.setattr(type(run), "_judge", lambda self: (_ for _ in ()).throw(Violation("a message is lost")))
    assert main(["--seed", "1"]) == 1
    said = capsys.readouterr().out
    assert "VIOLATION of seed 1:\na message is lost" in said
    assert all(line in said for line in world_of(1).describe())


def test_a_step_says_what_it_does() -> None:
    assert str(Step(0.5, "send", "orders", (("count", 2),))) == "+0.5 s send orders count=2"
