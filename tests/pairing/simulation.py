"""Whole worlds on a simulated clock: clients, senders, outages, lost and late answers, dying syphons. A seed, a world.

    python -m tests.pairing.simulation --seed 4711          replays one, with its trace
    python -m tests.pairing.simulation --seeds 1000         runs many, stops at the first breach

The decisions are the real ones; brokers, network and clocks are models (`simulated_brokers`, `simulated_client`), and
`audit` says what must hold. Everything random comes from the seed, so a failing seed fails again.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pairbus.pairing.options import Settings
from pairbus.pairing.routing.verdicts import AS_DESCRIBED, DEFAULT

from .audit import HALT_S, Audit, Breach
from .simulated_brokers import LOCK_S, Fault, Namespace, Schedule, backlog_path
from .simulated_client import Call, SimulatedClient
from .simulated_syphon import SimulatedSyphon

WEATHER_S = 90.0
CALM_S = 20.0  # the time that a send gets afterwards
PRIMARY_KINDS = (
    "refuse",
    "black-hole",
    "lost-answer",
    "late",
    "busy",
    "internal",
    "full",
    "gone",
    "disabled",
    "denied",
)
SECONDARY_KINDS = ("refuse", "black-hole", "lost-answer", "late", "busy", "internal", "full")
Event = Callable[[], None]


@dataclass(slots=True)
class World:
    """Everything that the seed decides before time begins. Times come from few values, so that they meet."""

    seed: int
    settings: Settings
    entities: list[str]
    clients: int
    senders: int  # of each entity in each client
    queues: int
    syphons: int
    pace: tuple[float, ...]
    timeouts: tuple[float | None, ...]
    primary: list[Fault] = field(default_factory=list)
    secondary: list[Fault] = field(default_factory=list)
    unrest: float = 0.0  # how often processes freeze and die, and callers give up

    def describe(self) -> list[str]:
        defaults = Settings()
        changed = [
            f"{name}={getattr(self.settings, name)!r}"
            for name in Settings.__slots__
            if getattr(self.settings, name) != getattr(defaults, name)
        ]
        return [
            f"seed {self.seed}: {self.clients} clients, {len(self.entities)} entities, {self.senders} senders each, "
            f"{self.queues} backlog queues, {self.syphons} syphons, unrest {self.unrest}",
            f"options: {', '.join(changed) or 'defaults'}",
            *(f"primary: {fault}" for fault in self.primary),
            *(f"secondary: {fault}" for fault in self.secondary),
        ]


def world_of(seed: int) -> World:
    rng = random.Random(seed)
    probe = rng.choice(("ping", "ping", "trial"))
    settings = Settings(
        failover_interval=rng.choice((0.0, 0.0, 1.0, 5.0, 10.0, 20.0)),
        ping_primary_interval=rng.choice((1.0, 2.0, 5.0, 10.0)),
        send_timeout=rng.choice((2.0, 5.0, 10.0, 30.0, 60.0)),
        backlog_retry_interval=rng.choice((0.5, 5.0, 10.0, 30.0)),
        while_suspect=rng.choice(("raise", "raise", "divert")),  # type: ignore[arg-type]
        when_unreachable=rng.choice(("divert", "divert", "raise")),  # type: ignore[arg-type]
        probe=probe,  # type: ignore[arg-type]
        pings_to_return=1 if probe == "trial" else rng.choice((1, 1, 2, 3)),
        busy_failover_after=rng.choice((None, None, 0.0, 5.0, 5.0, 10.0)),
        classifier=rng.choice((DEFAULT, DEFAULT, DEFAULT, AS_DESCRIBED)),
    )
    world = World(
        seed,
        settings,
        entities=["orders", "news", "bills", "stock"][: rng.choice((1, 2, 3, 4))],
        clients=rng.choice((1, 1, 2, 3)),
        senders=rng.choice((1, 2, 3)),
        queues=rng.choice((1, 2, 3, 5)),
        syphons=rng.choice((1, 1, 2)),
        pace=rng.choice(((1.0, 2.0), (0.2, 1.0, 5.0), (0.05, 0.5, 3.0), (5.0, 15.0))),
        timeouts=rng.choice(((None,), (None, 1.0, 5.0), (0.2, 2.0, 20.0), (12.0, 25.0, None))),
        unrest=rng.choice((0.0, 0.02, 0.1, 0.3)),
    )
    world.primary = _weather(rng, PRIMARY_KINDS, world.entities, rng.choice((1, 2, 3, 5)))
    if rng.random() < 0.6:
        paths = [backlog_path(queue) for queue in range(world.queues)]
        world.secondary = _weather(rng, SECONDARY_KINDS, paths, rng.choice((1, 2, 4)))
    return world


def _weather(rng: random.Random, kinds: Sequence[str], paths: list[str], count: int) -> list[Fault]:
    faults = []
    for _ in range(count):
        kind = rng.choice(kinds)
        start = rng.choice((0.0, 1.0, 5.0, 10.0, 20.0, 40.0, 60.0)) + rng.choice((0.0, 0.0, 0.5, 3.0))
        end = min(WEATHER_S, start + rng.choice((0.5, 1.0, 5.0, 10.0, 20.0, 45.0)))
        faults.append(
            Fault(
                kind,
                start,
                end,
                path=rng.choice((None, *paths)),
                share=rng.choice((1.0, 1.0, 1.0, 0.5, 0.1)),
                delay=rng.choice((0.5, 2.0, 8.0, 40.0)) if kind == "late" else 0.0,
            )
        )
    return sorted(faults, key=lambda fault: fault.start)


class Simulation:
    def __init__(self, world: World) -> None:
        self.world = world
        # dice of their own for everyone: what one does differently must not change the luck of the others
        self.random = self._dice("application")
        self.schedule = Schedule()
        self.primary = Namespace("contoso", self.schedule, self._dice("primary"), world.primary)
        self.secondary = Namespace("contoso2", self.schedule, self._dice("secondary"), world.secondary)
        self.primary.add(world.entities)
        paths = [backlog_path(queue) for queue in range(world.queues)]
        self.secondary.add(paths)
        self.audit = Audit(self.schedule, self.primary, self.secondary)
        queues = list(range(world.queues))
        self.clients = [
            SimulatedClient(
                f"client {number}",
                self.schedule,
                self._dice(f"client {number}"),
                world.settings,
                self.primary,
                self.secondary,
                queues,
                self.audit,
            )
            for number in range(1, world.clients + 1)
        ]
        self.syphons = [
            SimulatedSyphon(
                f"syphon {number}",
                self.schedule,
                self._dice(f"syphon {number}"),
                self.primary,
                self.secondary,
                paths,
                self.audit,
            )
            for number in range(1, world.syphons + 1)
        ]
        self._calls = 0
        self._calm = False

    def _dice(self, whose: str) -> random.Random:
        return random.Random(f"{self.world.seed} {whose}")

    def run(self) -> Counter[str]:
        """What happened, counted; raises a Breach."""
        try:
            self._run()
        except Breach:
            raise
        except Exception as error:  # what the decisions raise is as bad
            self.audit.note("".join(traceback.format_exception(error)))
            raise Breach(f"{type(error).__name__}: {error}") from error
        return self.audit.counts

    def _run(self) -> None:
        for client in self.clients:
            for entity in self.world.entities:
                for number in range(self.world.senders):
                    self._keep_sending(client, entity, f"{entity} sender {number + 1}")
        if self.world.unrest:
            self.schedule.after(1.0, self._trouble)
        self.schedule.run_until(WEATHER_S)
        self._calm = True
        self.audit.note("the weather is fine from here on")
        for client in self.clients:
            client.let_go()
        settings = self.world.settings
        # What was begun in the storm ends; then the pings that it takes to come home; then the locks of dead syphons.
        settled = (
            max(settings.send_timeout, *(timeout or 0 for timeout in self.world.timeouts), 40.0)
            + HALT_S
            + (settings.pings_to_return + 1) * (settings.ping_primary_interval + self.clients[0].ping_timeout)
            + settings.failover_interval
        )
        self.schedule.run_until(WEATHER_S + settled)
        if (
            settings.probe == "trial"
        ):  # the primary is looked for by sending: one message for each entity, and all is well
            for client in self.clients:
                for entity in self.world.entities:
                    self._send_calmly(client, entity, f"{entity} sender 1", "trial", lambda error: None)
            self.schedule.run_until(self.schedule.now + 2 * CALM_S)
        self.audit.all_healthy(self.clients)
        self._finale()
        waiting = sum(len(copies) for copies in self.secondary.stored.values())
        # A syphon with little room takes up to half a second for a message.
        self.schedule.run_until(self.schedule.now + settings.send_timeout + 6 * LOCK_S + HALT_S + 0.5 * waiting)
        self.audit.finish(self.clients, self.world.entities)

    # -- the application

    def _keep_sending(self, client: SimulatedClient, entity: str, sender: str) -> None:
        def again() -> None:
            if self._calm:
                return
            self._send(client, entity, sender, f"m{self._calls + 1}")
            self.schedule.after(self.random.choice(self.world.pace), again)

        self.schedule.after(self.random.choice((0.01, 0.3, 1.0)), again)

    def _send(self, client: SimulatedClient, entity: str, sender: str, mid: str, tries: int = 3) -> None:
        self._calls += 1

        def done(error: BaseException | None) -> None:
            # an application that tries again does it with the same message, and so with the same id (P20)
            if error is not None and tries > 1 and self.random.random() < 0.5:
                self.schedule.after(
                    self.random.choice((0.1, 1.0, 5.0)), lambda: self._send(client, entity, sender, mid, tries - 1)
                )

        call = Call(self._calls, client, entity, sender, mid, self.random.choice(self.world.timeouts), done)
        client.send(call)
        if not self._calm and self.random.random() < 2 * self.world.unrest:
            self.schedule.after(self.random.choice((0.0, 0.01, 0.5, 3.0)), lambda: client.cancel(call))

    def _trouble(self) -> None:
        if self._calm:
            return
        for client in self.clients:
            if self.random.random() < self.world.unrest:
                client.freeze(self.random.choice((0.5, 3.0, 15.0)))
            if self.random.random() < self.world.unrest / 8:
                client.kill()
            if self.random.random() < self.world.unrest:
                client.operate(
                    self.random.choice(self.world.entities),
                    healthy=self.random.random() < 0.5,
                    hold=self.random.random() < 0.3,
                )
        for syphon in self.syphons:
            if self.random.random() < self.world.unrest * 2:
                self.random.choice((syphon.kill, syphon.stop))()
                self.schedule.after(self.random.choice((0.5, 5.0)), syphon.start)
        self.schedule.after(1.0, self._trouble)

    def _finale(self) -> None:
        """With everything up, every sender sends once more: all of it must get through."""
        self.audit.note("finale")
        for client in self.clients:
            for entity in self.world.entities:
                for number in range(self.world.senders):
                    self._send_calmly(client, entity, f"{entity} sender {number + 1}", "finale", self._must_succeed)

    def _send_calmly(
        self, client: SimulatedClient, entity: str, sender: str, what: str, done: Callable[[BaseException | None], None]
    ) -> None:
        self._calls += 1
        client.send(Call(self._calls, client, entity, sender, f"{what}-{self._calls}", CALM_S, done))

    def _must_succeed(self, error: BaseException | None) -> None:
        self.audit.check(error is None, f"P21: a send fails in fine weather: {error!r}")


def simulate(seed: int) -> Counter[str]:
    return Simulation(world_of(seed)).run()


def replay(seed: int, write: Callable[[str], object] = print) -> bool:
    """The world and what happened in it, line by line. False: something did not hold."""
    world = world_of(seed)
    for line in world.describe():
        write(line)
    simulation = Simulation(world)
    breach = None
    try:
        counts = simulation.run()
    except Breach as error:
        breach = error
    for when, text in simulation.audit.trace:
        write(f"{when:9.3f}  {text}")
    if breach is not None:
        write(f"BREACH of seed {seed}: {breach}")
        return False
    write("held: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pairing.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="replay this one, with its trace")
    parser.add_argument("--seeds", type=int, default=200, help="how many to run")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return 0 if replay(options.seed) else 1
    total: Counter[str] = Counter()
    started = time.monotonic()
    for seed in range(options.start, options.start + options.seeds):
        try:
            total += simulate(seed)
        except Breach as breach:
            print(f"BREACH: {breach}\nreplay: python -m tests.pairing.simulation --seed {seed}")
            return 1
    print(f"{options.seeds} seeds held in {time.monotonic() - started:.1f} s:")
    for what, count in total.most_common():
        print(f"{count:9,d}  {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
