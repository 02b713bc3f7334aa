"""Whole simulated worlds hold, and the simulation would notice if they did not: each sabotage below is found.

`make test` runs some hundred seeds, `make soak` as many as fit into its time. A failing seed is in the message, with
the command that replays it.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest

from pairbus.pairing.routing import budget
from pairbus.pairing.routing.busy_pause import BusyPause
from pairbus.pairing.routing.coordinator import Coordinator
from pairbus.pairing.routing.dispatch import SENT, Dispatch, TryPrimary
from pairbus.pairing.routing.failover import Failover
from pairbus.pairing.routing.rotation import Rotation
from pairbus.pairing.routing.verdicts import DEFAULT, Table, Verdict

from .audit import Breach
from .simulation import Simulation, replay, simulate, world_of

SEEDS = 120


def run(seed: int) -> Counter[str]:
    try:
        return simulate(seed)
    except Breach as breach:
        raise AssertionError(f"{breach}\nreplay it: python -m tests.pairing.simulation --seed {seed}") from None


def simulate_many(seeds: int) -> None:
    for seed in range(seeds):
        simulate(seed)


def test_p14_p39_hundreds_of_worlds_hold() -> None:
    total: Counter[str] = Counter()
    for seed in range(SEEDS):
        total += run(seed)
    # and they were eventful: a simulation in which nothing happens proves nothing
    for what in ("duplicates", "late answers", "pings", "ejections", "forgotten", "dead-lettered"):
        assert total[what] > 30, (what, total)
    for change in ("healthy → failed over", "suspect → failed over", "failed over → unreachable", "suspect → healthy"):
        assert total[change] > 10, (change, total)


def test_a_seed_is_one_world() -> None:
    def told(seed: int) -> list[str]:
        lines: list[str] = []
        assert replay(seed, lines.append)
        return lines

    assert told(7) == told(7)
    assert told(7) != told(8)
    assert told(7)[0].startswith("seed 7: ")
    assert told(7)[-1].startswith("held: ")


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_thousands_of_worlds_hold() -> None:
    end = time.monotonic() + float(os.environ.get("SOAK_MINUTES") or 10) * 60 / 5
    seed = random.SystemRandom().randrange(1_000_000_000)
    worlds = 0
    while worlds < 1000 or time.monotonic() < end:
        run(seed + worlds)
        worlds += 1
    print(f"{worlds:,} worlds from seed {seed} on")


# -- sabotage: what breaks, and the words of the breach that must name it


class Sabotage(NamedTuple):
    """A function of the routing that does something wrong; `do` gets the real one before its arguments."""

    owner: Any
    name: str
    breach: str
    do: Callable[..., Any]

    def apply(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = getattr(self.owner, self.name)
        if isinstance(real, property):
            monkeypatch.setattr(self.owner, self.name, property(partial(self.do, real.fget)))
        else:
            monkeypatch.setattr(self.owner, self.name, lambda *args, **more: self.do(real, *args, **more))


SABOTAGES: dict[str, Sabotage] = {}


def sabotage(owner: Any, name: str, breach: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(do: Callable[..., Any]) -> Callable[..., Any]:
        SABOTAGES[do.__name__] = Sabotage(owner, name, breach, do)
        return do

    return register


@sabotage(Coordinator, "tick", "P16|P21|P31|RuntimeError: time stands still")
def timer_never_fires(real: Any, *args: Any) -> None:
    pass


@sabotage(Dispatch, "primary_failed", "P22")
def lost_sends_are_reported_as_sent(real: Any, self: Dispatch, now: float, error: BaseException) -> None:
    real(self, now, error)
    if type(error).__name__ == "OperationTimeoutError":
        self._outcome = SENT


@sabotage(Dispatch, "primary_sent", "P20|P22|P14")
def a_confirmed_message_goes_on(real: Any, self: Dispatch, now: float) -> None:
    real(self, now)
    if self._tried == ():
        self._outcome = None
        self._tried = (-1,)


@sabotage(Coordinator, "halted_until", "P24")
def busy_does_not_pause(real: Any, *args: Any) -> float:
    return 0.0


@sabotage(BusyPause, "busy", "P24")
def the_pause_is_short(real: Any, self: BusyPause, now: float, *, sending: bool) -> None:
    real(self, now, sending=sending)
    self.until = now + 9.0


@sabotage(Table, "__call__", "P23|P24")
def busy_is_a_failure(real: Any, self: Table, error: BaseException) -> Verdict:
    found = real(self, error)
    return Verdict.QUALIFIES if found is Verdict.BUSY and self is DEFAULT else found


@sabotage(Table, "__call__", "P23")
def refusals_are_failures(real: Any, self: Table, error: BaseException) -> Verdict:
    gone = type(error).__name__ == "MessagingEntityNotFoundError"
    return Verdict.QUALIFIES if gone and self is DEFAULT else real(self, error)


@sabotage(budget, "share", "P19")
def the_primary_takes_all_the_time(real: Any, remaining: float, another: bool) -> float:
    return remaining


@sabotage(Rotation, "pick", "P13")
def an_ejected_queue_is_tried_at_once(
    real: Any, self: Rotation, sender: Any, failover: int, now: float, *args: Any, **more: Any
) -> Any:
    return real(self, sender, failover, now + 1000, *args, **more)


@sabotage(Rotation, "pick", "P13")
def a_trial_is_not_alone(real: Any, self: Rotation, *args: Any, **more: Any) -> Any:
    for out in self._out.values():
        out.trying = False
    return real(self, *args, **more)


@sabotage(Rotation, "pick", "P12")
def senders_wander(real: Any, self: Rotation, *args: Any, **more: Any) -> Any:
    self._kept.clear()
    return real(self, *args, **more)


@sabotage(Failover, "expire", "P16")
def it_fails_over_too_early(real: Any, self: Failover, now: float) -> Any:
    return real(self, now + 0.5)


@sabotage(Coordinator, "primary_failed", "P15|P16")
def one_entity_takes_the_others_along(real: Any, self: Coordinator, failover: Failover, now: float, *args: Any) -> None:
    real(self, failover, now, *args)
    for other in self._entities.values():
        self._note(other, other.primary_failed(now, other.epoch))


@sabotage(Coordinator, "primary_sent", "P21|P23")
def a_late_success_ends_the_failover(real: Any, self: Coordinator, failover: Failover, now: float, *args: Any) -> None:
    real(self, failover, now, *args)
    if failover.is_diverting:
        self._note(failover, failover.marked_healthy(now))


@sabotage(Failover, "ping_succeeded", "P35")
def one_ping_is_always_enough(real: Any, self: Failover, now: float) -> Any:
    self.pings_to_return = 1
    return real(self, now)


@sabotage(Coordinator, "ping_succeeded", "P21|P23|P34")
def good_pings_are_ignored(real: Any, self: Coordinator, entity: str, now: float) -> None:
    self.ping_failed(entity, now, TimeoutError(), False)


@sabotage(Failover, "deadline", "P33")
def pings_do_not_wait_for_an_answer(real: Any, self: Failover) -> Any:
    probing, self._probing = self._probing, False
    found = real(self)
    self._probing = probing
    return found


@sabotage(Failover, "__init__", "P31")
def pings_come_too_often(real: Any, self: Failover, entity: str, **more: Any) -> None:
    real(self, entity, **{**more, "ping_interval": more["ping_interval"] / 2})


@sabotage(Dispatch, "_fail", "P22")
def the_last_error_is_swallowed(real: Any, *args: Any) -> Any:
    return SENT


@sabotage(Coordinator, "_note", "P16|P23")
def events_are_dropped(real: Any, self: Coordinator, failover: Failover, commands: Any) -> None:
    real(self, failover, [each for each in commands if "SUSPECT" not in repr(each)])


@sabotage(Dispatch, "step", "P19")
def attempts_pass_the_caller_s_end(real: Any, self: Dispatch, now: float) -> Any:
    found = real(self, now)
    return TryPrimary(found.timeout_s * 2.5) if isinstance(found, TryPrimary) else found


@sabotage(Rotation, "failed", "P13")
def nothing_is_ejected(real: Any, *args: Any) -> list[Any]:
    return []


@sabotage(Failover, "primary_failed", "P16")
def a_stale_failure_counts(real: Any, self: Failover, now: float, epoch: int, **more: Any) -> Any:
    return real(self, now, self.epoch, **more)


@sabotage(Dispatch, "abandon", "P21|P13|P31")
def a_cancelled_trial_is_never_freed(real: Any, *args: Any) -> None:
    pass


@pytest.mark.parametrize("name", SABOTAGES)
def test_the_simulation_notices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    SABOTAGES[name].apply(monkeypatch)
    with pytest.raises(Breach, match=f"^({SABOTAGES[name].breach})"):
        simulate_many(SEEDS)


def test_a_breach_ends_with_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    SABOTAGES["lost_sends_are_reported_as_sent"].apply(monkeypatch)
    for seed in range(SEEDS):
        lines: list[str] = []
        if not replay(seed, lines.append):
            break
    assert lines[-1].startswith(f"BREACH of seed {seed}: P22")
    assert any("TryPrimary" in line for line in lines)
    assert Simulation(world_of(seed)).world.seed == seed
