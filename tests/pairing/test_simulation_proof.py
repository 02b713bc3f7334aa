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
from typing import Any

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
Sabotage = Callable[[pytest.MonkeyPatch], None]


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


def _always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _timer_never_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coordinator, "tick", _always(None))


def _lost_sends_are_reported_as_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Dispatch.primary_failed

    def primary_failed(self: Dispatch, now: float, error: BaseException) -> None:
        real(self, now, error)
        if type(error).__name__ == "OperationTimeoutError":
            self._outcome = SENT

    monkeypatch.setattr(Dispatch, "primary_failed", primary_failed)


def _a_confirmed_message_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Dispatch.primary_sent

    def primary_sent(self: Dispatch, now: float) -> None:
        real(self, now)
        if not hasattr(self._coordinator.rotation, "sabotaged") and self._tried == ():
            self._outcome = None
            self._tried = (-1,)

    monkeypatch.setattr(Dispatch, "primary_sent", primary_sent)


def _busy_does_not_halt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coordinator, "halted_until", _always(0.0))


def _the_halt_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    real = BusyPause.busy

    def busy(self: BusyPause, now: float, *, sending: bool) -> None:
        real(self, now, sending=sending)
        self.until = now + 9.0

    monkeypatch.setattr(BusyPause, "busy", busy)


def _busy_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Table.__call__

    def verdict(self: Table, error: BaseException) -> Verdict:
        found = real(self, error)
        return Verdict.QUALIFIES if found is Verdict.BUSY and self is DEFAULT else found

    monkeypatch.setattr(Table, "__call__", verdict)


def _refusals_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Table.__call__

    def verdict(self: Table, error: BaseException) -> Verdict:
        found = real(self, error)
        gone = type(error).__name__ == "MessagingEntityNotFoundError"
        return Verdict.QUALIFIES if gone and self is DEFAULT else found

    monkeypatch.setattr(Table, "__call__", verdict)


def _the_primary_takes_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "share", lambda remaining, another: remaining)


def _nothing_is_ejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rotation, "failed", lambda self, pick, now, error: [])


def _an_ejected_queue_is_tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Rotation.pick

    def pick(self: Rotation, sender: Any, failover: int, now: float, tried: Any = (), **more: Any) -> Any:
        return real(self, sender, failover, now + 1000, tried, **more)

    monkeypatch.setattr(Rotation, "pick", pick)


def _a_trial_is_not_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Rotation.pick

    def pick(self: Rotation, *args: Any, **more: Any) -> Any:
        for out in self._out.values():
            out.trying = False
        return real(self, *args, **more)

    monkeypatch.setattr(Rotation, "pick", pick)


def _senders_wander(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Rotation.pick

    def pick(self: Rotation, *args: Any, **more: Any) -> Any:
        self._kept.clear()
        return real(self, *args, **more)

    monkeypatch.setattr(Rotation, "pick", pick)


def _it_fails_over_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Failover.expire
    monkeypatch.setattr(Failover, "expire", lambda self, now: real(self, now + 0.5))


def _one_entity_takes_the_others_along(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Coordinator.primary_failed

    def primary_failed(self: Coordinator, failover: Failover, now: float, *args: Any) -> None:
        real(self, failover, now, *args)
        for other in self._entities.values():
            self._note(other, other.primary_failed(now, other.epoch))

    monkeypatch.setattr(Coordinator, "primary_failed", primary_failed)


def _a_late_success_ends_the_failover(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Coordinator.primary_sent

    def primary_sent(self: Coordinator, failover: Failover, now: float, *args: Any) -> None:
        real(self, failover, now, *args)
        if failover.is_diverting:
            self._note(failover, failover.marked_healthy(now))

    monkeypatch.setattr(Coordinator, "primary_sent", primary_sent)


def _a_stale_failure_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Failover.primary_failed
    monkeypatch.setattr(
        Failover, "primary_failed", lambda self, now, epoch, **more: real(self, now, self.epoch, **more)
    )


def _one_ping_is_always_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Failover.ping_succeeded

    def ping_succeeded(self: Failover, now: float) -> Any:
        self.pings_to_return = 1
        return real(self, now)

    monkeypatch.setattr(Failover, "ping_succeeded", ping_succeeded)


def _good_pings_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Coordinator.ping_failed
    monkeypatch.setattr(
        Coordinator, "ping_succeeded", lambda self, entity, now: real(self, entity, now, TimeoutError(), False)
    )


def _pings_do_not_wait_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    real = vars(Failover)["deadline"].fget
    assert real is not None

    def deadline(self: Failover) -> Any:
        probing, self._probing = self._probing, False
        found = real(self)
        self._probing = probing
        return found

    monkeypatch.setattr(Failover, "deadline", property(deadline))


def _pings_come_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Failover.__init__

    def made(self: Failover, entity: str, **more: Any) -> None:
        real(self, entity, **{**more, "ping_interval": more["ping_interval"] / 2})

    monkeypatch.setattr(Failover, "__init__", made)


def _a_cancelled_trial_is_never_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dispatch, "abandon", _always(None))


def _the_last_error_is_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dispatch, "_backlog_unavailable", lambda self, now: self.backlog_sent)
    monkeypatch.setattr(Dispatch, "_fail", lambda self, error: SENT)


def _events_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Coordinator._note

    def note(self: Coordinator, failover: Failover, commands: Any) -> None:
        real(self, failover, [each for each in commands if "SUSPECT" not in repr(each)])

    monkeypatch.setattr(Coordinator, "_note", note)


def _attempts_pass_the_caller_s_end(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Dispatch.step

    def step(self: Dispatch, now: float) -> Any:
        found = real(self, now)
        return TryPrimary(found.timeout_s * 2.5) if isinstance(found, TryPrimary) else found

    monkeypatch.setattr(Dispatch, "step", step)


SABOTAGES: dict[Sabotage, str] = {
    _timer_never_fires: "P16|P21|P31|RuntimeError: time stands still",
    _lost_sends_are_reported_as_sent: "P22",
    _a_confirmed_message_goes_on: "P20|P22|P14",
    _busy_does_not_halt: "P24",
    _the_halt_is_short: "P24",
    _busy_is_a_failure: "P23|P24",
    _refusals_are_failures: "P23",
    _the_primary_takes_all_the_time: "P19",
    _an_ejected_queue_is_tried_at_once: "P13",
    _a_trial_is_not_alone: "P13",
    _senders_wander: "P12",
    _it_fails_over_too_early: "P16",
    _one_entity_takes_the_others_along: "P15|P16",
    _a_late_success_ends_the_failover: "P21|P23",
    _one_ping_is_always_enough: "P35",
    _good_pings_are_ignored: "P21|P23|P34",
    _pings_do_not_wait_for_an_answer: "P33",
    _pings_come_too_often: "P31",
    _the_last_error_is_swallowed: "P22",
    _events_are_dropped: "P16|P23",
    _attempts_pass_the_caller_s_end: "P19",
    _nothing_is_ejected: "P13",
    _a_stale_failure_counts: "P16",
    _a_cancelled_trial_is_never_freed: "P21|P13|P31",
}


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda each: each.__name__.strip("_"))
def test_the_simulation_notices(sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    with pytest.raises(Breach, match=f"^({SABOTAGES[sabotage]})"):
        simulate_many(SEEDS)


def test_a_breach_ends_with_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    _lost_sends_are_reported_as_sent(monkeypatch)
    for seed in range(SEEDS):
        lines: list[str] = []
        if not replay(seed, lines.append):
            break
    assert lines[-1].startswith(f"BREACH of seed {seed}: P22")
    assert any("TryPrimary" in line for line in lines)
    assert Simulation(world_of(seed)).world.seed == seed
