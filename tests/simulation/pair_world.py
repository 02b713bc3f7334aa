"""What a seed decides of a world with two brokers, a paired client and a syphon: `pair.py` runs it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from pairbus.pairing.routing.budget import Retries
from pairbus.pairing.routing.coordinator import NO_RETRIES
from pairbus.pairing.routing.patience import Brownout

from .network import Doom
from .world import Trouble

PRIMARY, SECONDARY = "contoso", "fabrikam"
#: It requires sessions, and what is sent to it has none: the primary refuses it for good.
JOBS = "jobs"


@dataclass(frozen=True, slots=True)
class PairedSend:
    """Some messages for an entity, sent after a pause: one by one, or all at once."""

    after_s: float
    entity: str
    count: int
    together: bool

    def __str__(self) -> str:
        return f"+{self.after_s:g} s send {self.count} to {self.entity}{' at once' if self.together else ''}"


@dataclass(frozen=True, slots=True)
class ControlChange:
    """An operator changes the control file."""

    at: float
    pins: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"at {self.at:g} s it says {dict(self.pins)}"


@dataclass(frozen=True, slots=True)
class PairWorld:
    """What a seed decides of two brokers, a paired client and a syphon."""

    seed: int
    failover_interval: float
    ping_interval: float
    probe: str
    while_suspect: str
    segment_bytes: int
    sends: tuple[PairedSend, ...]
    troubles: tuple[tuple[str, Trouble], ...]  # of the primary, the secondary, or the syphon
    dooms: tuple[tuple[str, int, Doom], ...]
    draw: float = 0.0  # what the client draws for its phase and its share of the ramp
    return_ramp: float = 0.0
    controls: tuple[ControlChange, ...] = ()
    patience: str | float = "half"
    brownout: Brownout | None = None
    warm: int | None = None  # the backlog queue to which a link stands ready
    given_up: tuple[tuple[str, float], ...] = ()  # calls, by message, whose caller waits only so long
    while_throttled: str = "wait"
    retries: Retries = NO_RETRIES  # those of the SDK, which are tried after an answer, and where both brokers refuse

    def describe(self) -> list[str]:
        fleet = [f"a fleet: draws {self.draw:g}, return ramp {self.return_ramp:g} s"] if self.draw else []
        return [
            f"seed {self.seed}: a pair, failover after {self.failover_interval:g} s, {self.probe} every "
            f"{self.ping_interval:g} s, while suspect: {self.while_suspect}, "
            f"while throttled: {self.while_throttled}, segments of {self.segment_bytes} bytes",
            *fleet,
            *([f"in haste: {self.patience}, {self.brownout}, link to {self.warm}"] if self.is_hasty else []),
            *([f"it tries again: {self.retries}"] if self.retries.total else []),
            *(f"{id} is given up after {after_s:g} s" for id, after_s in self.given_up),
            *(f"control file: {change}" for change in self.controls),
            *(f"paired client: {send}" for send in self.sends),
            *(f"{which}: {trouble}" for which, trouble in self.troubles),
            *(f"{name}, connection {number}: {doom}" for name, number, doom in self.dooms),
        ]

    @property
    def is_hasty(self) -> bool:
        return (self.patience, self.brownout, self.warm) != ("half", None, None)

    @property
    def size(self) -> int:
        return len(self.given_up) + len(self.sends) + len(self.troubles) + len(self.dooms) + len(self.controls)

    def parts(self) -> list[tuple[str, int, int]]:
        counts = {"send": len(self.sends), "trouble": len(self.troubles), "doom": len(self.dooms)}
        counts["control"], counts["given up"] = len(self.controls), len(self.given_up)
        return [(kind, index, 0) for kind, count in counts.items() for index in range(count)]

    def without(self, left_out: set[tuple[str, int, int]]) -> PairWorld:
        def kept(kind: str, items: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(item for index, item in enumerate(items) if (kind, index, 0) not in left_out)

        return replace(
            self,
            sends=kept("send", self.sends),
            troubles=kept("trouble", self.troubles),
            dooms=kept("doom", self.dooms),
            controls=kept("control", self.controls),
            given_up=kept("given up", self.given_up),
        )


def draw_pair(seed: int) -> PairWorld:
    """Return the world of a seed."""
    rng = random.Random(f"{seed} pair")
    sends = tuple(
        PairedSend(
            rng.choice((0.0, 0.1, 0.5, 2.0, 5.0)),
            rng.choice(("once", "orders", "orders", "orders", JOBS)),
            rng.choice((1, 3, 8)),
            rng.random() < 0.5,
        )
        for _ in range(rng.choice((2, 4, 8)))
    )
    troubles = []
    if rng.random() < 0.5:  # an outage at the beginning, so that there is something to bring home
        kind = rng.choice(("kill", "power", "cut-off"))
        troubles.append((PRIMARY, Trouble(0.0, kind, rng.choice((3.0, 6.0, 12.0)))))
    for which in rng.choice(((), (PRIMARY,), (PRIMARY,), (SECONDARY,), (PRIMARY, "syphon"), (PRIMARY, SECONDARY))):
        for _ in range(rng.choice((1, 1, 2))):
            kind = "kill" if which == "syphon" else rng.choice(("kill", "power", "stop", "cut-off"))
            at = rng.choice((0.5, 1.0, 4.0, 6.0, 12.0)) + rng.choice((0.001, 0.01, 0.0317, 0.1, 0.2, 0.5, 1.0))
            troubles.append((which, Trouble(at, kind, rng.choice((0.0, 1.0, 6.0, 25.0)), rng.random() < 0.5)))
    dooms = []
    if rng.random() < 0.5:
        for name in ("paired client", "syphon 1", "syphon 1"):
            for number in range(1, 6):
                if rng.random() < 0.4:
                    doom = rng.choice(("reset", "reset", "silence", "stall"))
                    after = rng.choice((rng.randrange(600, 3000), rng.randrange(1200, 6000)))
                    dooms.append((name, number, Doom(doom, rng.random() < 0.5, after, 6.0 if doom == "stall" else 0.0)))
    while_throttled, throttles = _draw_throttling(seed)
    haste = _draw_haste(seed)
    if haste[0] == "adaptive":  # first it has to learn
        sends = (*_draw_lessons(seed), *sends)
    retries, refusals = _draw_refusals(seed)
    return PairWorld(
        seed,
        rng.choice((0.0, 1.0, 5.0)),
        rng.choice((0.5, 2.0)),
        rng.choice(("ping", "ping", "trial")),
        rng.choice(("raise", "divert")),
        rng.choice((4096, 262144)),
        sends,
        tuple(sorted((*troubles, *throttles, *refusals), key=lambda each: each[1].at)),
        tuple(dooms),
        *_draw_fleet(seed),
        *haste,
        while_throttled,
        retries,
    )


def _draw_haste(seed: int) -> tuple[str | float, Brownout | None, int | None, tuple[tuple[str, float], ...]]:
    """Return what makes the client of some worlds a hasty one; by dice of its own, as for a fleet."""
    rng = random.Random(f"{seed} haste")
    if rng.random() < 0.6:
        return "half", None, None, ()
    slower_than_s = random.Random(f"{seed} slow").choice((1.0, 0.004))
    return (
        rng.choice(("half", 0.5, 1.5, "adaptive")),
        rng.choice((None, None, Brownout(0.4, 2, slower_than_s))),
        rng.choice((None, 0, 1)),
        tuple((f"m{number}", rng.choice((0.01, 0.3, 1.0, 3.0, 6.0))) for number in range(1, 20) if rng.random() < 0.2),
    )


def _draw_throttling(seed: int) -> tuple[str, tuple[tuple[str, Trouble], ...]]:
    """Return what the client of some worlds does while the primary is throttled, and when that is; by dice of its own,
    as for a fleet."""
    rng = random.Random(f"{seed} throttling")
    if rng.random() < 0.6:
        return "wait", ()
    times = rng.sample((0.0, 1.0, 3.0, 9.0, 15.0), rng.choice((1, 1, 2)))
    throttles = tuple((PRIMARY, Trouble(at, "throttle", rng.choice((0.5, 4.0, 12.0)))) for at in times)
    return rng.choice(("wait", "divert", "divert")), throttles


def _draw_refusals(seed: int) -> tuple[Retries, tuple[tuple[str, Trouble], ...]]:
    """Return how often the client of some worlds tries again, and when both brokers are away; by dice of its own."""
    rng = random.Random(f"{seed} refusals")
    if rng.random() < 0.6:
        return NO_RETRIES, ()
    retries = rng.choice((Retries(1, 0.4), Retries(2, 0.4), Retries(2, 1.0, is_fixed=True)))
    at, seconds = rng.choice((0.0, 0.3, 2.0, 6.0)), rng.choice((0.5, 2.0, 6.0))
    both = tuple((which, Trouble(at, "kill", seconds)) for which in (PRIMARY, SECONDARY))
    return retries, both if rng.random() < 0.6 else ()


def _draw_fleet(seed: int) -> tuple[float, float, tuple[ControlChange, ...]]:
    """Return what makes the client of some worlds one of a fleet; by dice of its own, so that the rest is as it was."""
    rng = random.Random(f"{seed} fleet")
    if rng.random() < 0.6:
        return 0.0, 0.0, ()
    changes = []
    for at in sorted(rng.sample((0.0, 0.3, 1.0, 3.0, 5.0, 8.0, 13.0), rng.choice((0, 0, 1, 2, 3)))):
        names = rng.sample(("orders", "ONCE", "*"), rng.choice((0, 1, 1, 2)))
        pins = tuple((name, rng.choice(("failed-over", "healthy", "auto"))) for name in names)
        changes.append(ControlChange(at, pins))
    return rng.choice((0.25, 0.5, 0.75)), rng.choice((0.0, 2.0, 8.0)), tuple(changes)


def _draw_lessons(seed: int) -> tuple[PairedSend, ...]:
    """Return the sends, more than twenty, from which a client learns how long the primary takes."""
    rng = random.Random(f"{seed} lessons")
    return tuple(PairedSend(rng.choice((0.0, 0.1, 0.5)), "orders", 8, False) for _ in range(rng.choice((3, 4))))
