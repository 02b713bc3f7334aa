"""What a run writes down of its world."""

from __future__ import annotations

from .history import LAZY_S
from .run import Run
from .world import Client, Step, Trouble, World


def test_a_power_cut_may_undo_what_a_frozen_broker_answered_just_before() -> None:
    """It syncs nothing while it is frozen, however long that is."""
    steps = (
        Step(0.0, "send", "orders", (("count", 3),)),
        Step(0.0, "receive", "orders", (("count", 3), ("outcomes", ("complete",)))),
    )
    troubles = (Trouble(0.0, "freeze", 8.0, answers=6), Trouble(0.3, "freeze", 3.0), Trouble(1.0, "power", answers=6))
    run = Run(World(1, ("orders",), "default", 4096, (Client("client 1", steps),), troubles, (), ()))
    run.run()
    (settled_at,) = {fact[3] for fact in run.trace.facts if fact[0] == "settled" and fact[1] == 6}
    ((cut_at, since),) = [fact[1:] for fact in run.trace.facts if fact[0] == "power_cut"]
    assert since is not None
    assert settled_at < cut_at - 2 * LAZY_S
    assert settled_at - LAZY_S <= since < settled_at
    first = next(fact[1] for fact in run.trace.facts if fact[0] == "audited")
    assert first.looks, "nothing was undone, so nothing is shown"


def test_the_lock_of_a_session_whose_link_was_lost_at_once_is_that_of_the_next_link() -> None:
    """Wherever a kill meets the client that accepts it: a link that is there again was opened by its receive."""
    steps = (
        Step(0.0, "send", "jobs", (("count", 3),)),
        Step(0.0, "receive", "jobs", (("count", 3), ("outcomes", ("renew",)), ("state", False))),
    )
    for tenths_ms in range(0, 40, 5):
        troubles = (Trouble(tenths_ms / 10_000, "kill", answers=3),)
        run = Run(World(1, ("jobs",), "default", 4096, (Client("client 1", steps),), troubles, (), ()))
        run.run()
        untils = [fact[4] for fact in run.trace.facts if fact[0] == "accepted"]
        assert min(untils) > 0.0, f"a kill after {tenths_ms / 10} ms"
