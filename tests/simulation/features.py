"""Worlds of what changes and moves messages by itself: SQL rules with actions, forwarding, transactions.

entity   what is sent there
orders   stays there
entry    is forwarded to `arrived`, and its dead letters from there to `complaints`
far      is forwarded from queue to queue until it was forwarded too often, and is dead-lettered then
feed     gets a copy in `feed/plain`; copies by the rules of `feed/changed`; one by the rule of `feed/away`, which
         is forwarded to `outbox`
closed   is disabled: what transactions send there goes to the transfer dead-letter queue of their via; only from seed
         600,005 on

For the checker the queues on the way of a message are one home, so that it is never in two of them or in none; and each
rule with an action has a home of its own. Which entity a message was sent to, and which rules it matches, its id says.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from dataclasses import replace
from typing import Any, Final

from pairbus.amqp.message import Properties, encode_message, read_application_properties, read_properties
from pairbus.amqp.types import Timestamp
from pairbus.broker.config.plan import EntityPlan, NamespacePlan, SubscriptionPlan, TopicPlan
from pairbus.broker.model.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.model.rule_description import RuleDescription, SqlAction, SqlFilter
from pairbus.wire import ReceivedMessage, Receiver, Sender, WireClient, WireError
from pairbus.wire.transactions import Transaction, via_of

from .broker import PORT
from .checker import Checker
from .disk import draw_faults
from .history import ABANDON, CONFIRMED, DEAD, DEFERRED, GONE, LOST, REFUSED, SCHEDULED, Look
from .loop import EPOCH
from .run import NAMESPACE, Run
from .workload import _DUE, DEAD_LETTERS, Drainer, SimulatedClient, body_of, outcome_of, path_of
from .world import DELIVERIES_MAX, LEAVING, LOCK_S, Client, Step, World, _doom, _pause, _trouble

#: The first seed, and then every eighth: no other world has one of them.
FIRST: Final = 400_005
EVERY: Final = 8
#: From this one on transactions also send to `closed`.
FIRST_CLOSED: Final = 600_005
CLOSED: Final = "closed"
TRANSFER: Final = "/$Transfer"
ENTITIES: Final = ("orders", "entry", "feed", "far")
#: From which queues the messages of an entity can be received, and in which else they may be.
RECEIVED_AT: Final = {
    "orders": ("orders",),
    "entry": ("arrived", "complaints"),
    "feed": ("feed/plain", "feed/changed", "outbox"),
    "far": (),
    CLOSED: (),
}
_FAR: Final = ("far", "far2", "far3", "far4", "far5", "far6")
ON_THE_WAY: Final = {"orders": (), "entry": ("entry",), "feed": ("feed/away",), "far": _FAR, CLOSED: ()}
#: Where what is received has the number that it was sent with, so that it can be deferred.
_DEFERRABLE: Final = ("orders", "feed/plain")
_COLOURS: Final = ("red", "green", "blue")
#: Rules that messages match or not by the rest of their number when it is divided by this.
_KINDS: Final = 6
_SETTLED_TO: Final = {"complete": GONE, "abandon": ABANDON, "defer": DEFERRED, "dead-letter": DEAD}
#: A transaction has two minutes from its first operation on.
_TOO_LONG_S: Final = 125.0


def is_of_features(seed: int) -> bool:
    return seed >= FIRST and (seed - FIRST) % EVERY == 0


class FeatureWorld(World):
    """A world of its own kind, of the same parts."""

    __slots__ = ()


# -- what is drawn


def draw_features(seed: int) -> FeatureWorld:
    """Return the world of a seed."""
    rng = random.Random(seed)
    entities = tuple(rng.sample(ENTITIES, rng.choice((1, 2, 2, 3))))
    clients = tuple(
        Client(f"client {number}", _steps(rng, entities)) for number in range(1, rng.choice((1, 2, 2, 3)) + 1)
    )
    troubles = sorted(
        (_trouble(rng) for _ in range(rng.choice((0, 1, 1, 2, 4)))), key=lambda each: (each.answers or 99, each.at)
    )
    dooms = []
    if rng.random() < 0.4:
        dooms = [(each.name, number, _doom(rng)) for each in clients for number in range(1, 6) if rng.random() < 0.3]
    if seed >= FIRST_CLOSED:
        clients, entities = _with_closed(rng, clients), (*entities, CLOSED)
    return FeatureWorld(
        seed,
        entities,
        rng.choice(("default", "default", "default", "strict", "none")),
        rng.choice((2048, 2048, 4096, 16384, 262144)),
        clients,
        tuple(troubles),
        tuple(dooms),
        tuple(draw_faults(rng, 300)) if rng.random() < 0.3 else (),
    )


def _with_closed(rng: random.Random, clients: tuple[Client, ...]) -> tuple[Client, ...]:
    """Let some transactions send to an entity that is disabled, too."""

    def changed(step: Step) -> Step:
        options = dict(step.options)
        if step.action != "transact" or rng.random() < 0.3:
            return step
        more = ((CLOSED, rng.choice((1, 1, 3))),)
        options["sends"] = more + options["sends"] if rng.random() < 0.5 else options["sends"] + more
        return replace(step, options=tuple(options.items()))

    return tuple(replace(client, steps=tuple(map(changed, client.steps))) for client in clients)


def vias_of(world: World) -> list[str]:
    """Return the entities through which transactions of a world go."""
    places = [place for entity in world.entities for place in RECEIVED_AT[entity]]
    return sorted({via_of(path_of(place)) for place in places})


def _steps(rng: random.Random, entities: tuple[str, ...]) -> tuple[Step, ...]:
    places = [place for entity in entities for place in RECEIVED_AT[entity]]
    steps = []
    for _ in range(rng.choice((2, 4, 6, 10))):
        kind = rng.random()
        if kind < 0.4 or not places:
            steps.append(_send(rng, rng.choice(entities)))
        elif kind < 0.7:
            steps.append(_transact(rng, entities, rng.choice(places)))
        elif kind < 0.75:
            steps.append(Step(_pause(rng), "leave", "", (("how", rng.choice(LEAVING)),)))
        elif kind < 0.8:
            steps.append(Step(_pause(rng), "peek", rng.choice(places)))
        else:
            steps.append(_receive(rng, rng.choice(places)))
    return tuple(steps)


def _send(rng: random.Random, entity: str) -> Step:
    options: dict[str, Any] = {"count": rng.choice((1, 2, 5, 10))}
    action = rng.choice(("send", "send", "batch", "batch", "schedule"))
    if action == "schedule" or rng.random() < 0.1:
        options["due_in"] = rng.choice((0.5, 2.0, 10.0))
    if action == "send" and rng.random() < 0.4:
        options["pipelined"] = True
    return Step(_pause(rng), action, entity, tuple(options.items()))


def _outcomes(rng: random.Random, place: str) -> tuple[str, ...]:
    if place == "complaints":
        return ("complete",)
    known = ("complete", "complete", "abandon", "dead-letter", *(("defer",) if place in _DEFERRABLE else ()))
    return tuple(rng.choice(known) for _ in range(3))


def _receive(rng: random.Random, place: str) -> Step:
    options = {
        "count": rng.choice((1, 2, 5, 10)),
        "wait": rng.choice((0.1, 1.0, 3.0)),
        "hold": rng.choice((0.0, 0.0, 0.1, 4.0, 7.0)),
        "outcomes": _outcomes(rng, place),
    }
    if place != "complaints" and rng.random() < 0.3:
        place += DEAD_LETTERS
        options["outcomes"] = ("complete",)
    return Step(_pause(rng), "receive", place, tuple(options.items()))


def _transact(rng: random.Random, entities: tuple[str, ...], place: str) -> Step:
    end = rng.choice(
        ("commit",) * 5 + ("commit-and-leave", "commit-and-leave", "roll-back", "roll-back", "forget", "leave")
    )
    is_late = rng.random() < 0.05
    options = {
        "count": 0 if is_late else rng.choice((0, 1, 2, 5)),
        "sends": tuple((rng.choice(entities), rng.choice((1, 1, 3))) for _ in range(rng.choice((0, 1, 1, 2, 3)))),
        "outcomes": _outcomes(rng, place),
        "hold": _TOO_LONG_S if is_late else rng.choice((0.0, 0.0, 0.0, 0.1, 2.0, 6.0)),
        "end": end,
    }
    if "leave" in end:
        options["how"] = rng.choice(LEAVING)
    return Step(_pause(rng), "transact", place, tuple(options.items()))


# -- what the broker is told, and what its rules make of a message


def plan_of_features(world: World) -> NamespacePlan:
    """Return the entities of a world as a broker's configuration."""
    common: dict[str, Any] = {"lock_duration": LOCK_S, "max_delivery_count": DELIVERIES_MAX}
    far = [QueueDescription(name=name, forward_to=to, **common) for name, to in itertools.pairwise(_FAR)]
    queues = {
        "orders": [QueueDescription(name="orders", **common)],
        "entry": [
            QueueDescription(name="complaints", lock_duration=LOCK_S, max_delivery_count=1000),
            QueueDescription(name="arrived", forward_dead_lettered_to="complaints", **common),
            QueueDescription(name="entry", forward_to="arrived", **common),
        ],
        "feed": [QueueDescription(name="outbox", **common)],
        "far": [QueueDescription(name=_FAR[-1], **common), *reversed(far)],
        CLOSED: [QueueDescription(name=CLOSED, status="SendDisabled")],
    }
    rules = {
        "plain": (),
        "changed": (
            _rule("even", "n % 2 = 0", "SET doubled = n * 2; REMOVE colour"),
            _rule("red", "colour = 'red'", "SET colour = 'was ' + colour; SET sys.Label = 'changed'"),
            _rule("cool", "colour IN ('green', 'blue')"),
            _rule("some", "n > 0 AND missing IS NULL AND colour LIKE 'b%'"),
        ),
        "away": (_rule("odd", "NOT n % 2 = 0", "SET away = colour"),),
    }
    subscriptions = [
        SubscriptionPlan(
            entity=EntityPlan(
                description=SubscriptionDescription(
                    topic="feed", name=name, forward_to="outbox" if name == "away" else None, **common
                )
            ),
            rules=each,
        )
        for name, each in rules.items()
    ]
    feed = TopicPlan(entity=EntityPlan(description=TopicDescription(name="feed")), subscriptions=tuple(subscriptions))
    return NamespacePlan(
        name=NAMESPACE,
        ports=(PORT,),
        queues=tuple(EntityPlan(description=each) for entity in world.entities for each in queues[entity]),
        topics=(feed,) if "feed" in world.entities else (),
    )


def _rule(name: str, filter: str, action: str | None = None) -> RuleDescription:
    return RuleDescription(name=name, filter=SqlFilter(filter), action=None if action is None else SqlAction(action))


def number_of(id: str) -> int:
    return int(id.partition("-")[2])


def entity_of(id: str) -> str:
    return next(entity for entity in (*ENTITIES, CLOSED) if entity.startswith(id[:2]))


def homes_of(entity: str, number: int) -> list[str]:
    """Return the homes that get a message with this number."""
    if entity != "feed":
        return [entity]
    colour, is_even = _COLOURS[number % 3], number % 2 == 0
    homes = ["feed/plain", "feed/changed:even" if is_even else "feed/away:odd"]
    return [*homes, "feed/changed:red" if colour == "red" else "feed/changed"]


def properties_of(home: str, number: int) -> tuple[dict[str, Any], str | None]:
    """Return the application properties of a message in a home, and its label."""
    colour = _COLOURS[number % 3]
    sent = {"n": number, "colour": colour}
    if home == "feed/changed:even":
        return {"n": number, "doubled": 2 * number, "RuleName": "even"}, None
    if home == "feed/changed:red":
        return {"n": number, "colour": "was red", "RuleName": "red"}, "changed"
    if home == "feed/away:odd":
        return {**sent, "away": colour, "RuleName": "odd"}, None
    return sent, None


# -- clients


class FeatureClient(SimulatedClient):
    """A client that also knows transactions, and what is forwarded and changed."""

    def _begin(
        self, entity: str, count: int, *, due_in: float | None = None, together: str | None = None, **options: Any
    ) -> tuple[int, list[bytes]]:
        payloads, sending = self._encoded(entity, count, due_in)
        return self._trace.send(**sending, at=self._now, together=together), payloads

    def _encoded(self, entity: str, count: int, due_in: float | None = None) -> tuple[list[bytes], dict[str, Any]]:
        """Return new messages, which match the same rules, and what is to be written down of them."""
        kind = self._rng.randrange(_KINDS)
        numbers = [next(self._numbers) * _KINDS + kind for _ in range(count)]
        ids = [f"{entity[:2]}{self.name[-1]}-{number}" for number in numbers]
        self._ids += ids
        due_ms = 0 if due_in is None else int((self.clock() + due_in) * 1000)
        payloads = [
            encode_message(
                message_annotations={_DUE: Timestamp(due_ms)} if due_ms else None,
                properties=Properties(message_id=id),
                application_properties=properties_of(entity, number)[0],
                body=body_of(id),
            )
            for id, number in zip(ids, numbers, strict=True)
        ]
        due = due_ms / 1000 - EPOCH if due_ms else 0.0
        homes = homes_of(entity, numbers[0])
        return payloads, {"ids": ids, "homes": homes, "due": due, "elsewhere": entity == "feed" and due_ms > 0}

    def _look(self, home: str, payload: ReceivedMessage, state: str | None = None, since: float | None = None) -> Look:
        look = super()._look(home, payload, state, since)
        entity, place = entity_of(look.id), look.home
        raw, sections = payload.payload, payload.sections
        said = read_application_properties(raw, sections)
        rule = said.get("RuleName")
        if entity == "feed":
            logical = (place if place.startswith("feed/") else "feed/away") + (f":{rule}" if rule else "")
        elif entity == CLOSED:
            logical = f"{CLOSED}:{place.removesuffix(TRANSFER)}"
        else:
            logical = entity
        reasons = ("DeadLetterReason", "DeadLetterErrorDescription")
        kept = {name: value for name, value in said.items() if name not in reasons}
        expected = properties_of(logical, number_of(look.id))
        first = payload.annotations.get("x-opt-enqueue-sequence-number")
        if first is None:
            first = look.sequence
        elif look.state == SCHEDULED:
            first = 0  # The clock was set back while it was forwarded: its number is that of another queue.
        return look._replace(
            home=logical,
            state=DEAD if place == "complaints" else look.state,
            sequence=first,
            # what is forwarded begins anew with its count
            deliveries=DELIVERIES_MAX if place == "complaints" else look.deliveries,
            intact=look.intact and (kept, read_properties(raw, sections).subject) == expected,
        )

    # -- transactions

    async def _do_transact(
        self,
        place: str,
        count: int,
        sends: tuple[tuple[str, int], ...],
        outcomes: tuple[str, ...],
        hold: float,
        end: str,
        how: str = "",
    ) -> None:
        """Receive, settle and send in one transaction, and end that in one of the ways."""
        wire, via = self._connected(), via_of(path_of(place))
        receiver, held = await self._receive_some(place, count)
        transaction = await wire.transaction(via)
        # Nothing of it is written down before the commit: until then nobody may see anything of it.
        sendings: list[dict[str, Any]] = []
        settlings: list[dict[str, Any]] = []
        is_complete = False
        try:
            for (look, message), outcome in zip(held, itertools.cycle(outcomes)):
                settlings.append(await self._settle_within(transaction, receiver, look, message, outcome))
            for entity, number in sends:
                payloads, sending = self._encoded(entity, number)
                if entity == CLOSED:
                    sending["homes"] = [f"{CLOSED}:{via}"]
                sendings.append(sending)
                sender = await self._sender_within(wire, entity, via)
                for payload in payloads:
                    await sender.send(payload, transaction=transaction)
                await sender.close()
            await asyncio.sleep(hold)
            is_complete = True
        except WireError as error:
            self._trace.note(f"{self.name}: in a transaction: {error}")
        if is_complete and end.startswith("commit"):
            await self._commit(transaction, sendings, settlings, hold, how)
            return
        for sending in sendings:
            self._trace.sent(self._trace.send(**sending, at=self._now), REFUSED, at=self._now)
        if end == "leave":
            await self._do_leave("", how)
        elif end != "forget":
            with contextlib.suppress(WireError):
                await transaction.roll_back()
                for look, message in held:  # they are locked as before
                    await self._settle(place, receiver, look, message, "complete")

    async def _sender_within(self, wire: WireClient, entity: str, via: str) -> Sender:
        """Return a sender for a transaction that goes through an entity."""
        return await wire.sender(entity, via=None if entity == via else via)

    async def _receive_some(self, place: str, count: int) -> tuple[Receiver, list[tuple[Look, ReceivedMessage]]]:
        receiver = await self._receiver(place, "lock", 0)
        messages = await receiver.receive(count, 0.5) if count else []
        held = [
            (self._look(place, message, DEAD if place == "complaints" else "active"), message) for message in messages
        ]
        for look, message in held:
            until = (message.locked_until or 0.0) - EPOCH
            self._trace.locked(look, str(message.lock_token), self._name(receiver), until)
        if not receiver.is_open:
            self._trace.left(self._name(receiver))
        return receiver, held

    async def _settle_within(
        self, transaction: Transaction, receiver: Receiver, look: Look, message: ReceivedMessage, outcome: str
    ) -> dict[str, Any]:
        """Settle a message in a transaction, and return what is to be written down of it."""
        reason = f"transaction of {look.id}" if outcome == "dead-letter" else None
        if reason is not None:
            await receiver.dead_letter(message, reason=reason, transaction=transaction)
        else:
            await getattr(receiver, outcome)(message, transaction=transaction)
        return {
            "home": look.home,
            "id": look.id,
            "to": _SETTLED_TO[outcome],
            "reason": reason,
            "deliveries": look.deliveries,
            "token": str(message.lock_token),
            "synced": True,
        }

    async def _commit(
        self,
        transaction: Transaction,
        sendings: list[dict[str, Any]],
        settlings: list[dict[str, Any]],
        hold: float,
        how: str,
    ) -> None:
        """Commit a transaction, and `how` leave at once, if so; write down what comes of it."""
        together = f"transaction {next(self._numbers)} of {self.name}"
        sent = [self._trace.send(**each, at=self._now, together=together) for each in sendings]
        settled = [self._trace.settle(**each, at=self._now, together=together) for each in settlings]
        outcome = CONFIRMED
        commit = asyncio.ensure_future(transaction.commit())
        try:
            if how:
                await asyncio.sleep(self._rng.choice((0.0, 0.001, 0.01)))
                await self._do_leave("", how)
            await commit
        except WireError as error:
            self._trace.note(f"{self.name}: {together}: {error}")
            outcome = outcome_of(error)
        for ticket in settled:
            self._trace.settled(ticket, outcome, at=self._now)
        for ticket in sent:
            self._trace.sent(ticket, REFUSED if outcome == LOST else outcome, at=self._now)
        if outcome == CONFIRMED and sendings and hold >= _TOO_LONG_S:
            self._loop.problems.append(f"{together} was committed {hold:g} s after its first operation")


class FeatureDrainer(FeatureClient, Drainer):
    """Looks at all queues on the way of messages, and receives from those that don't forward."""

    def _places(self, world: World) -> list[str]:
        places = [place for entity in world.entities for place in (*ON_THE_WAY[entity], *RECEIVED_AT[entity])]
        return places + ([via + TRANSFER for via in vias_of(world)] if CLOSED in world.entities else [])

    async def _peek(self, home: str) -> list[Look]:
        return [] if home.endswith(TRANSFER) else await super()._peek(home)  # there are dead letters alone

    async def _drain(self, home: str) -> None:
        if home.startswith(CLOSED):
            with contextlib.suppress(WireError):
                path = home.partition(":")[2] + TRANSFER + DEAD_LETTERS
                await self._do_receive(path, count=50, outcomes=("complete",), wait=0.5)
            return
        entity = home.partition("/")[0]
        places = [*RECEIVED_AT[entity], *(place + DEAD_LETTERS for place in self._homes if place in ON_THE_WAY[entity])]
        places += [place + DEAD_LETTERS for place in RECEIVED_AT[entity] if place != "arrived"]
        for place in places:
            with contextlib.suppress(WireError):
                await self._do_receive(place, count=50, outcomes=("complete",), wait=0.5)


class FeatureRun(Run):
    """A world of features while it runs."""

    _client = FeatureClient
    _drainer = FeatureDrainer
    _rest_s = 3.0

    def _plan(self) -> NamespacePlan:
        return plan_of_features(self.world)

    def _homes_of(self, names: list[str]) -> tuple[list[str], bool]:
        # all homes of the entities on whose way one of these is
        failed = [
            entity
            for entity in self.world.entities
            if any(place.partition("/")[0] in names for place in (entity, *RECEIVED_AT[entity], *ON_THE_WAY[entity]))
        ]
        return sorted({home for entity in failed for kind in range(_KINDS) for home in homes_of(entity, kind)}), False

    def _new_checker(self) -> Checker:
        homes = {home for entity in self.world.entities for kind in range(_KINDS) for home in homes_of(entity, kind)}
        closed = {f"{CLOSED}:{via}" for via in vias_of(self.world)}
        homes |= closed
        return Checker(
            max_delivery_count=dict.fromkeys(sorted(homes), DELIVERIES_MAX),
            lock_s=dict.fromkeys(sorted(homes), LOCK_S),
            exact=True,
            late_s=self.world.late_s,
            notice_s=self.world.notice_s,
            fails=bool(self.world.disk or self.world.stall_s),
            undeliverable={"far": "MaxTransferHopCountExceeded"} | dict.fromkeys(closed, "MessagingEntityDisabled"),
        )
