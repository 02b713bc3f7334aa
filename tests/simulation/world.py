"""Everything that a seed decides before time begins: entities, clients with what they will do, and what will go wrong.

A world is data. What is left out of it changes nothing else: each client, connection and disk has dice of its own. So a
world that fails can be made small, and what is printed of it says all that happened.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from .disk import DiskFault, draw_faults
from .history import GRACE_S
from .network import Doom

#: After which nothing goes wrong any more.
STORM_S = 40.0
LOCK_S = 5.0
WINDOW_S = 60.0
BRIEF_S = 8.0
DELIVERIES_MAX = 4
SESSIONS = ("a", "b", "c")
HOMES = {
    "orders": ("orders",),
    "jobs": ("jobs",),
    "once": ("once",),
    "brief": ("brief",),
    "news": ("news/all", "news/red"),
}
#: How a client may leave: politely, or by one of the frames alone, or without a word.
LEAVING = ("close", "detach", "end", "close-frame", "abort", "detach-end", "end-detach", "vanish")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a client does, after a pause."""

    after_s: float
    action: str
    entity: str = ""
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options)
        return f"+{self.after_s:g} s {self.action} {self.entity} {options}".rstrip()


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that happens to the broker's machine."""

    at: float
    kind: str  # kill, power, stop, clock, freeze, cut-off, crash-entity, crash-node, storage-stall, stall FOLDER [CALL]
    seconds: float = 0.0
    torn: bool = False  # of a power cut: parts of what was not synced are there
    answers: int = 0  # after so many confirmations that clients got; `at` counts from then
    entity: str = ""  # of a crash
    late: float = 0.0  # of a stall: what is sent meanwhile shows so many seconds after it

    def __str__(self) -> str:
        begin = f"{self.answers} answers and " if self.answers else ""
        end = " torn" if self.torn else f" {self.entity}" if self.entity else ""
        late = f" late {self.late:g}" if self.late else ""
        return f"at {begin}{self.at:g} s {self.kind} {self.seconds:g}{end}{late}"


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class World:
    seed: int
    entities: tuple[str, ...]
    durability: str
    segment_bytes: int
    clients: tuple[Client, ...]
    troubles: tuple[Trouble, ...]
    dooms: tuple[tuple[str, int, Doom], ...]
    disk: tuple[DiskFault, ...]
    standby: bool = False  # whether the journal has a standby folder
    stall_s: float = 0.0  # after which an operation that does not return is a stall; 0: nothing stalls

    def describe(self) -> list[str]:
        """Return what was drawn, line by line."""
        return [
            f"seed {self.seed}: {', '.join(self.entities)}; durability {self.durability}, "
            f"segments of {self.segment_bytes} bytes" + self._storage,
            *(f"{client.name}: {step}" for client in self.clients for step in client.steps),
            *(f"broker: {trouble}" for trouble in self.troubles),
            *(f"{name}, connection {number}: {doom}" for name, number, doom in self.dooms),
            *(f"disk: {fault}" for fault in self.disk),
        ]

    @property
    def _storage(self) -> str:
        standby = "a standby folder" if self.standby else "no standby folder"
        return f", {standby}, stalls noticed after {self.stall_s:g} s" if self.stall_s else ""

    @property
    def late_s(self) -> float:
        """How late what is due by itself may be: it is tried again while the disk fails, and waits for a restart."""
        may_wait = self.disk or self.stall_s or any(trouble.entity for trouble in self.troubles)
        return 60.0 if may_wait else self.notice_s

    @property
    def notice_s(self) -> float:
        """How late the broker may notice something: who asks first when a frozen one wakes sees what it had no time
        for."""
        return GRACE_S + max((trouble.seconds for trouble in self.troubles if trouble.kind == "freeze"), default=0.0)

    @property
    def size(self) -> int:
        return sum(len(client.steps) for client in self.clients) + len(self.troubles) + len(self.dooms) + len(self.disk)

    def parts(self) -> list[tuple[str, int, int]]:
        """Return what can be left out: a kind, and where it stands."""
        return [
            *(("client", index, 0) for index in range(len(self.clients))),
            *(("trouble", index, 0) for index in range(len(self.troubles))),
            *(("doom", index, 0) for index in range(len(self.dooms))),
            *(("disk", index, 0) for index in range(len(self.disk))),
            *(
                ("step", which, index)
                for which, client in enumerate(self.clients)
                for index in range(len(client.steps))
            ),
        ]

    def without(self, left_out: set[tuple[str, int, int]]) -> World:
        """Return the world without some of its parts."""

        def kept(kind: str, items: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(item for index, item in enumerate(items) if (kind, index, 0) not in left_out)

        clients = tuple(
            replace(
                client,
                steps=tuple(step for index, step in enumerate(client.steps) if ("step", which, index) not in left_out),
            )
            for which, client in enumerate(self.clients)
            if ("client", which, 0) not in left_out
        )
        return replace(
            self,
            clients=clients,
            troubles=kept("trouble", self.troubles),
            dooms=kept("doom", self.dooms),
            disk=kept("disk", self.disk),
        )


def draw(seed: int) -> World:
    """Return the world of a seed. Each has a few features and a few kinds of trouble: all at once would hide each
    other."""
    rng = random.Random(seed)
    entities = tuple(rng.sample(tuple(HOMES), rng.choice((1, 1, 2, 3))))
    clients = tuple(
        Client(f"client {number}", _steps(rng, entities)) for number in range(1, rng.choice((1, 2, 2, 3)) + 1)
    )
    if rng.random() < 0.1:
        clients += (Client("stranger", tuple(_stranger(rng) for _ in range(rng.randint(1, 4)))),)
    drawn = [_trouble(rng) for _ in range(rng.choice((0, 0, 1, 1, 2, 4)))]
    troubles = tuple(sorted(drawn, key=lambda each: (each.answers or 99, each.at)))
    dooms = []
    if rng.random() < 0.5:
        for client in clients:
            for number in range(1, 6):
                if rng.random() < 0.3:
                    dooms.append((client.name, number, _doom(rng)))
    return World(
        seed,
        entities,
        rng.choice(("default", "default", "default", "strict", "none")),
        rng.choice((2048, 4096, 16384, 262144)),
        clients,
        troubles,
        tuple(dooms),
        tuple(draw_faults(rng, 300)) if rng.random() < 0.3 else (),
    )


def _pause(rng: random.Random) -> float:
    return rng.choice((0.0, 0.0, 0.01, 0.1, 0.5, 1.0, 3.0, 6.0))


def _steps(rng: random.Random, entities: tuple[str, ...]) -> tuple[Step, ...]:
    role = rng.choice(("sender", "receiver", "both", "both"))
    steps = []
    for _ in range(rng.choice((2, 4, 6, 10))):
        entity = rng.choice(entities)
        sends = role == "sender" or (role == "both" and rng.random() < 0.5)
        steps.append(_send(rng, entity) if sends else _receive(rng, entity))
    return tuple(steps)


def _send(rng: random.Random, entity: str) -> Step:
    options: dict[str, Any] = {"count": rng.choice((1, 1, 2, 5, 10))}
    action = rng.choice(("send", "send", "send", "send", "batch", "batch", "schedule", "cancel", "poison", "ping"))
    if action in ("send", "batch"):
        if rng.random() < 0.2:
            options["due_in"] = rng.choice((0.5, 2.0, 10.0))
        if rng.random() < 0.1:
            options["ttl"] = rng.choice((0.5, 3.0))
        if rng.random() < 0.05:
            options["big"] = True
        if entity == "once" and rng.random() < 0.5:
            options["again"] = True
        if rng.random() < 0.3:
            options["pipelined"] = True
    elif action == "schedule":
        options["due_in"] = rng.choice((0.5, 2.0, 10.0, 30.0))
    return Step(_pause(rng), action, entity, tuple(options.items()))


def _receive(rng: random.Random, entity: str) -> Step:
    home = rng.choice(HOMES[entity])
    kind = rng.random()
    if kind < 0.1:
        return Step(_pause(rng), "leave", "", (("how", rng.choice(LEAVING)),))
    if kind < 0.2:
        return Step(_pause(rng), "peek", home)
    if kind < 0.25:
        return Step(_pause(rng), "deferred", home)
    if kind < 0.3 and entity != "news":
        return Step(_pause(rng), "receive", f"{home}/$deadletterqueue", (("outcomes", ("complete",)), ("count", 5)))
    if kind < 0.35 and entity != "jobs":
        return Step(_pause(rng), "fail", home, (("how", rng.choice(("abandon", "abandon", "forget"))),))
    options: dict[str, Any] = {
        "count": rng.choice((1, 2, 5, 10)),
        "wait": rng.choice((0.1, 1.0, 3.0)),
        "hold": rng.choice((0.0, 0.0, 0.1, 2.0, 4.0, 7.0)),
        "outcomes": tuple(
            rng.choice(
                (
                    "complete",
                    "complete",
                    "complete",
                    "abandon",
                    "defer",
                    "dead-letter",
                    "forget",
                    "renew",
                    "token",
                    "foreign",
                    "together",
                )
            )
            for _ in range(3)
        ),
    }
    if rng.random() < 0.15:
        options["mode"] = "delete"
    if rng.random() < 0.3:
        options["credit"] = rng.choice((1, 5, 50))
    if entity == "jobs":
        options["session"] = rng.choice((*SESSIONS, None, None))
        options["state"] = rng.random() < 0.3
    return Step(_pause(rng), "receive", home, tuple(options.items()))


def _stranger(rng: random.Random) -> Step:
    kind = rng.choice(("names", "half", "garbage", "links", "pieces", "stay"))
    return Step(_pause(rng), "stranger", "", (("kind", kind), ("count", rng.choice((1, 5, 20)))))


def _trouble(rng: random.Random) -> Trouble:
    kind = rng.choice(("kill", "kill", "power", "power", "stop", "clock", "clock", "freeze", "cut-off"))
    seconds = {
        "clock": rng.choice((-3600.0, -7.0, -0.5, 0.5, 7.0, 3600.0)),
        "freeze": rng.choice((0.3, 3.0, 8.0)),
        "cut-off": rng.choice((0.3, 3.0, 15.0)),
    }.get(kind, rng.choice((0.0, 0.2, 1.0, 8.0)))
    torn = kind == "power" and rng.random() < 0.6
    if rng.random() < 0.6:  # soon after an answer there is most to lose
        soon = rng.choice((0.0, 0.0, 0.001, 0.02, 0.12, 0.3, 1.0))
        return Trouble(soon, kind, seconds, torn, answers=rng.choice((1, 2, 3, 5, 8, 13)))
    at = rng.choice((0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)) + rng.choice((0.0, 0.001, 0.01, 0.0317, 0.2))
    return Trouble(at, kind, seconds, torn)


def _doom(rng: random.Random) -> Doom:
    kind = rng.choice(("reset", "reset", "silence", "stall"))
    # the first kilobyte or two is the handshake; after that it is messages
    after = rng.choice((rng.randrange(0, 600), rng.randrange(600, 3000), rng.randrange(3000, 20000)))
    return Doom(kind, rng.random() < 0.5, after, rng.choice((0.5, 4.0, 8.0)) if kind == "stall" else 0.0)
