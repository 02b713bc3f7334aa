"""Plans a drill: its entities, the traffic, the fault, and how long each phase lasts.

It decides all of that from the few options of the command. It imports little, since the command's help is made from it.
`rehearsal.py` carries the plan out, `processes.py` starts the processes, and `verdict.py` judges the result.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pairbus.broker.operations.nodes import Nodes
from pairbus.errors import PairbusError

PRIMARY: Final = "contoso"
SECONDARY: Final = "backup"
SUBSCRIPTION: Final = "all"
#: Traffic before the fault, and after it has ended.
HEALTHY_S: Final = 12.0
AFTER_S: Final = 10.0
MESSAGES: Final = 2_400
OUTAGE_S: Final = 20.0
ENTITIES: Final = 4
MESSAGES_MAX: Final = 1_000_000
OUTAGE_S_MAX: Final = 3_600.0
QUEUES: Final = ("orders", "invoices", "shipments", "payments", "returns", "refunds", "stock", "prices", "offers")
TOPIC: Final = "news"
BODY_BYTES: Final = (200, 2_000)
#: Past this rate an entity's messages go in lists: one by one, the SDK itself would be the limit.
SINGLE_PER_S_MAX: Final = 50.0

Engine = Literal["spark", "in-process"]


class InvalidDrill(PairbusError, ValueError):
    """Raised for a drill that can't be carried out as requested."""


@dataclass(frozen=True, slots=True)
class DrillFault:
    """A fault that a drill can cause: `settings` go to the broker's control socket, `pairing` to the clients."""

    begins: str
    settings: dict[str, float | str] = field(default_factory=dict)
    pairing: dict[str, float] = field(default_factory=dict)
    #: How long after the primary's return a ping may take to find it, beside its interval.
    notice_s: float = 2.0
    #: The broker's name for it, where that is another.
    kind: str | None = None
    ends: str = "works again"
    #: The longest that it lasts: its time is told to the broker, which ends it by itself.
    seconds_max: float | None = None
    #: Whether the primary has a standby folder, so that nothing has to take the detour.
    has_standby: bool = False


#: How long a send may take; the primary gets half of it.
SEND_TIMEOUT_S: Final = 8.0
#: The key of the sending application, where a fault is for that one alone.
SENDER_KEY: Final = "sender"
_CRASHES: Final[dict[str, Any]] = {
    # Late, but far from too late for a caller.
    "settings": {"entity": QUEUES[0], "delay": 0.2},
    "ends": "serves all of its entities again",
    "seconds_max": 300.0,
}
_BUSY_IS_FAILURE: Final = {"busy_failover_after": 0.0}
DRILL_FAULTS: Final[dict[str, DrillFault]] = {
    "unreachable": DrillFault("refuses connections"),
    "black-hole": DrillFault("takes connections and says nothing"),
    "no-send": DrillFault("refuses every send with an internal error"),
    "hang": DrillFault("takes messages, and neither stores nor answers them"),
    # Busy is no failure, unless it lasts; and it pauses pings, too, for ten seconds.
    "throttle": DrillFault("refuses everything as server busy", {"rate": 0.0}, _BUSY_IS_FAILURE, 12.0),
    "dependency": DrillFault(
        "refuses every send as server busy, since its storage is throttled; receivers are served",
        {"rate": 0.0, "by": "dependency"},
        _BUSY_IS_FAILURE,
        12.0,
        kind="throttle",
    ),
    "cut-off": DrillFault(
        "is out of reach for the sender, and serves everyone else",
        {"client": SENDER_KEY},
        kind="unreachable",
        ends="is in the sender's reach again",
    ),
    "storage-stall": DrillFault(
        "has storage that does not answer: nothing can be stored, so that sends and settlements are refused",
        ends="can store again",
    ),
    "stall-with-standby": DrillFault(
        "has storage that does not answer, and goes on in its standby folder: after two seconds sends and settlements "
        "are stored there",
        kind="storage-stall",
        ends="has its storage back",
        has_standby=True,
    ),
    "stall-late": DrillFault(
        "has storage that does not answer, and goes on in its standby folder; what it takes there appears late",
        {"late": 5.0},
        kind="storage-stall",
        ends="has its storage back",
        has_standby=True,
    ),
    "latency": DrillFault(
        f"answers {SEND_TIMEOUT_S:g} s late, later than a caller can wait", {"delay": SEND_TIMEOUT_S}
    ),
    "lost-answer": DrillFault("stores what is sent, and cuts the connection in place of an answer"),
    "crash-entity": DrillFault(
        f"has an inconsistent entity, {QUEUES[0]}: slow for half of the time, then down; it restarts from the journal",
        **_CRASHES,
    ),
    "crash-node": DrillFault(
        f"has a failing node, that of {QUEUES[0]}: slow for half of the time, then down; its entities restart from "
        "the journal on other nodes, while those of other nodes are served",
        **_CRASHES,
    ),
    "kill": DrillFault("is killed (kill -9)", ends="runs again, on the same data"),
}
#: Faults of the broker that a drill can't use.
NOT_SENDS: Final = ("no-receive", "no-manage")


@dataclass(frozen=True, slots=True)
class Entity:
    """A queue or topic; `source` is where its messages are received from."""

    name: str
    is_topic: bool = False

    @property
    def source(self) -> str:
        return f"{self.name}/Subscriptions/{SUBSCRIPTION}" if self.is_topic else self.name


@dataclass(frozen=True, slots=True)
class DrillPlan:
    messages: int = MESSAGES
    outage_s: float = OUTAGE_S
    entity_count: int = ENTITIES
    fault: str = "unreachable"
    engine: Engine = "spark"
    seed: int = 1
    healthy_s: float = HEALTHY_S
    after_s: float = AFTER_S
    backlog_queues: int = 3
    ping_s: float = 1.0

    def __post_init__(self) -> None:
        if self.fault in NOT_SENDS:
            raise InvalidDrill(
                f"the fault {self.fault} leaves sends alone, so nothing would fail over; take one of {_kinds()}"
            )
        if self.fault not in DRILL_FAULTS:
            raise InvalidDrill(f"there is no fault {self.fault!r} for a drill; the kinds are {_kinds()}")
        most = len(QUEUES) + 1
        if not 1 <= self.entity_count <= most:
            raise InvalidDrill(f"{self.entity_count} entities are out of bounds: 1 to {most}")
        if not self.entity_count <= self.messages <= MESSAGES_MAX:
            raise InvalidDrill(
                f"{self.messages} messages are out of bounds: at least one for each of the {self.entity_count} "
                f"entities, at most {MESSAGES_MAX:,}"
            )
        if not 1 <= self.outage_s <= OUTAGE_S_MAX:
            raise InvalidDrill(f"an outage of {self.outage_s:g} s is out of bounds: 1 to {OUTAGE_S_MAX:g} seconds")
        most_s = self.drill_fault.seconds_max
        if most_s is not None and self.outage_s > most_s:
            raise InvalidDrill(f"{self.fault} lasts {most_s:g} seconds at most, not {self.outage_s:g}")

    def __repr__(self) -> str:
        return f"<DrillPlan {self.messages} messages, {self.entity_count} entities, {self.fault} {self.outage_s:g} s>"

    @property
    def drill_fault(self) -> DrillFault:
        return DRILL_FAULTS[self.fault]

    @property
    def entities(self) -> tuple[Entity, ...]:
        """The queues and, if there is more than one entity, a topic."""
        queues = [Entity(name) for name in QUEUES[: max(1, self.entity_count - 1)]]
        return (*queues, Entity(TOPIC, is_topic=True)) if self.entity_count > 1 else tuple(queues)

    @property
    def detour_s(self) -> float:
        """For how long all messages would have to take the detour, to be as many as those that do: a crash hits some
        of the entities, and these are down for half of the time."""
        if self.drill_fault.has_standby:
            return 0.0
        names = [each.name for each in self.entities]
        if self.fault == "crash-entity":
            return self.outage_s / 2 / len(names)
        if self.fault == "crash-node":
            nodes = Nodes()
            return self.outage_s / 2 * len(nodes.on(nodes.node_of(QUEUES[0]), names)) / len(names)
        return self.outage_s

    @property
    def traffic_s(self) -> float:
        return self.healthy_s + self.outage_s + self.after_s

    @property
    def rate_per_s(self) -> float:
        return self.messages / self.traffic_s

    def share(self, index: int) -> int:
        """Return how many messages go to the entity with this index; the first ones get the remainder."""
        each, over = divmod(self.messages, self.entity_count)
        return each + (1 if index < over else 0)

    @property
    def list_size(self) -> int:
        per_entity = self.rate_per_s / self.entity_count
        return max(1, round(per_entity / (SINGLE_PER_S_MAX / 2))) if per_entity > SINGLE_PER_S_MAX else 1

    @property
    def pairing(self) -> dict[str, Any]:
        """The clients' options, with short intervals so that a drill takes minutes."""
        return {
            "primary_name": PRIMARY,
            "backlog_queue_count": self.backlog_queues,
            "failover_interval": 0.0,
            "ping_primary_interval": self.ping_s,
            "send_timeout": SEND_TIMEOUT_S,
            # A machine that is busy with the drill itself may be late to open a link to the secondary.
            "backlog_retry_interval": 1.0,
            **self.drill_fault.pairing,
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "messages": self.messages,
            "entities": [each.name for each in self.entities],
            "fault": self.fault,
            "outage_s": self.outage_s,
            "healthy_s": self.healthy_s,
            "after_s": self.after_s,
            "rate_per_s": round(self.rate_per_s, 1),
            "engine": self.engine,
            "seed": self.seed,
            "backlog_queues": self.backlog_queues,
            "pairing": {name: value for name, value in self.pairing.items() if name != "primary_name"},
        }


def _kinds() -> str:
    return ", ".join(DRILL_FAULTS)


def listed(names: list[str]) -> str:
    """Return the names as `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
