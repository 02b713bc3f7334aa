"""A paced load on a real broker in which everything comes and goes: connections, links, sessions, queues,
subscriptions, messages, faults.

Every actor is a coroutine that is called again and again, with a pause between two rounds. What the broker confirmed is
booked, message by message, so that it can be told in the end whether all of it was received or is still there. How much
is stored stays between bounds: an actor whose queue is full sends nothing until some of it is gone.

All entities have names that begin with `churn-`, but for the strangers' queue, so that a data folder with other things
in it can be used.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from pairbus.amqp.message import Header, Properties, encode_message, read_properties, split
from pairbus.amqp.performative_types import Close, Detach, End
from pairbus.amqp.types import Array, Int, Timestamp
from pairbus.broker.control.control_socket import request as ask_control
from pairbus.broker.control.faults import CRASHES, KINDS
from pairbus.errors import PairbusError
from pairbus.sas import make_token
from pairbus.wire import (
    Login,
    ReceivedMessage,
    Receiver,
    Refused,
    SharedKey,
    SharedSignature,
    Unauthorized,
    WireClient,
    WireError,
)
from tests.broker.attack_words import QUEUE as FUZZED
from tests.broker.attack_words import Target, frame, let_in, opened, sasl
from tests.broker.attacks import ATTACKS, connected
from tests.broker.broker_process import BrokerProcess
from tests.broker.crash_load import split_of

from .churn_books import Books
from .churn_wire import CALL_S, POOL, any_link, drop, entry, http, id_of, path_of, websocket_frame

_SIZES: Final = (50, 400, 2000, 6000)
#: Messages that a queue may hold before nobody sends to it, and how many of them are deferred for long.
_DEPTH_MAX: Final = 120
_KEPT: Final = 800
_LOCK_S: Final = 3
_ROUND_S_MAX: Final = 60.0
_WINDOW_S: Final = 20
#: Attacks that are short: the rest would take all the time that a paced load has.
_STRANGERS: Final = (
    "garbage", "http_garbage", "tls_garbage", "sasl_garbage", "halves", "wounds", "huge_sizes", "deep_nesting",
    "out_of_order", "strange_messages", "strange_requests",
)  # fmt: skip
_FAULTED: Final = ("orders", "kept", "events", "due", "carts", "news")
_MANAGEMENT: Final = "com.microsoft:"
_LONG_CODE: Final = 0x81
#: Of x-opt-message-state.
_DEFERRED: Final = 1

Round = Callable[[random.Random], Awaitable[None]]


class Churn:
    """The actors and what they know. `pace`: how many times as long as usual they pause; `only`: some of them."""

    def __init__(self, broker: BrokerProcess, seed: int, pace: float = 1.0, only: Iterable[str] = ()) -> None:
        self.target = Target(broker.connection_string, broker.ca_file)
        self.books = Books()
        self.rounds: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.defects: list[str] = []
        self.pace = pace
        self.only = set(only)
        self._broker = broker
        self._seed = seed
        self._over = asyncio.Event()
        self._numbers = itertools.count(1)
        self._prefix = f"{seed}-{int(time.time())}"
        self._deferred: dict[str, int] = {}
        self._due: dict[str, int] = {}
        self._once: list[tuple[str, float]] = []
        self._lasting: dict[str, tuple[WireClient, Any]] = {}

    def __repr__(self) -> str:
        return f"<Churn: {sum(self.rounds.values())} rounds, {self.books!r}>"

    async def run(self, seconds: float) -> None:
        """Set up the entities, let the actors go on for so long, and see everyone off."""
        await self._create_entities()
        actors: dict[str, tuple[float, Round]] = {
            "send": (0.15, self._send), "receive": (0.15, self._receive), "dead letters": (1.3, self._redrain),
            "defer": (0.3, self._defer), "stock": (20.0, self._take_stock), "take": (0.45, self._take),
            "purge": (2.5, self._purge), "duplicates": (0.7, self._send_twice), "schedule": (0.7, self._schedule),
            "brief": (2.0, self._send_brief), "sessions": (0.45, self._use_session), "topic": (0.7, self._publish),
            "read topic": (0.7, self._subscribe), "guest": (1.6, self._come_and_go_as_subscription),
            "queues": (1.0, self._come_and_go_as_queue), "leave": (0.25, self._leave_somehow),
            "strangers": (0.5, self._be_strange), "fuzzed": (30.0, self._renew_fuzzed),
            "keys": (1.3, self._use_wrong_key), "expiry": (2.5, self._let_token_expire), "tls": (2.5, self._use_tls),
            "websocket": (1.3, self._use_websocket), "faults": (4.0, self._set_fault), "pages": (2.0, self._read_pages),
        }  # fmt: skip
        chosen = self.only or set(actors)
        assert chosen <= set(actors), f"the actors are {', '.join(actors)}"
        tasks = [asyncio.create_task(self._repeat(name, *actors[name])) for name in actors if name in chosen]
        try:
            done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            self._over.set()
            if not done:
                await asyncio.wait(tasks, timeout=_ROUND_S_MAX)
        finally:
            self._over.set()
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    self.defects.append(f"{type(result).__name__}: {result}")
            for client, _ in self._lasting.values():
                await client.close()
        await self.control({"command": "clear"})

    async def _repeat(self, name: str, pause_s: float, round: Round) -> None:
        rng = random.Random(f"{self._seed} {name}")
        while not self._over.is_set():
            try:
                async with asyncio.timeout(_ROUND_S_MAX):
                    await round(rng)
                self.rounds[name] += 1
            except (WireError, OSError, EOFError, TimeoutError) as error:
                self.errors[f"{name}: {type(error).__name__}"] += 1
                await self._forget(name)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), pause_s * self.pace * rng.uniform(0.5, 1.5))

    # -- clients

    def client(self, **options: Any) -> WireClient:
        backoff = lambda: itertools.repeat(0.2)  # noqa: E731
        return WireClient.from_connection_string(
            self.target.connection_string, timeout=CALL_S, connect_timeout=CALL_S, backoff=backoff, **options
        )

    @contextlib.asynccontextmanager
    async def visit(self, rng: random.Random, **options: Any) -> AsyncIterator[WireClient]:
        """A client that leaves in one of the ways that there are."""
        client = self.client(**options)
        try:
            yield client
            if rng.random() < 0.4:
                drop(client, reset=rng.random() < 0.5)
        finally:
            await client.close()

    async def lasting(self, rng: random.Random, name: str, home: str, kind: str) -> Any:
        """The link of an actor that keeps it, for some hundred rounds."""
        kept = self._lasting.get(name)
        if kept is not None and rng.random() < 0.005:
            drop(kept[0], reset=rng.random() < 0.5)
            await self._forget(name)
            kept = None
        if kept is None:
            client = self.client()
            try:
                link = await (client.sender(path_of(home)) if kind == "sender" else client.receiver(path_of(home)))
            except BaseException:
                await client.close()
                raise
            kept = self._lasting[name] = (client, link)
        return kept[1]

    async def _forget(self, name: str) -> None:
        kept = self._lasting.pop(name, None)
        if kept is not None:
            await kept[0].close()

    # -- messages

    def new_id(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"

    def message(self, rng: random.Random, id: str, ttl_s: float | None = None, **properties: Any) -> bytes:
        start = rng.randrange(1 << 15)
        return encode_message(
            None if ttl_s is None else Header(ttl=int(ttl_s * 1000)),
            properties=Properties(message_id=id, **properties),
            application_properties={"colour": rng.choice(("red", "green"))},
            body=POOL[start : start + rng.choice(_SIZES)],
        )

    async def _send_some(self, rng: random.Random, sender: Any, home: str, payloads: dict[str, bytes]) -> None:
        """Send messages in one of three ways and book them."""
        way = rng.choice(("single", "pipelined", "batch"))
        results: Sequence[WireError | None] = [None] * len(payloads)
        for id in payloads:
            self.books.sending(home, id)
        try:
            if way == "batch":
                await sender.send_batch(list(payloads.values()))
            elif way == "pipelined":
                results = await sender.send_many(list(payloads.values()))
            else:
                for payload in payloads.values():
                    await sender.send(payload)
        except WireError as error:
            for id in payloads:
                self.books.sent(home, id, error, is_part=len(payloads) > 1)
            raise
        for id, problem in zip(payloads, results, strict=True):
            self.books.sent(home, id, problem)

    async def _settle(
        self, rng: random.Random, client: WireClient | None, receiver: Receiver, home: str, is_dead: bool = False
    ) -> int:
        """Receive some messages and settle each in one of the ways that there are; return how many came."""
        messages = await receiver.receive(rng.randint(1, 30), 0.3)
        groups: dict[str, list[ReceivedMessage]] = {}
        for message in messages:
            self.books.seen(home, id_of(message.payload))
            ways = (
                ["complete"] * 12
                + ["by token"] * 2
                + ["abandon", "release", "renew", "keep"]
                + ["dead letter"] * (not is_dead)
            )
            groups.setdefault(rng.choice(ways), []).append(message)
        for way, group in groups.items():
            await self._settle_group(client, receiver, home, way, group)
        return len(messages)

    async def _settle_group(
        self, client: WireClient | None, receiver: Receiver, home: str, way: str, group: list[ReceivedMessage]
    ) -> None:
        tokens = [message.lock_token for message in group if message.lock_token is not None]
        match way:
            case "abandon":
                await receiver.abandon(group)
            case "release":
                await receiver.release(group)
            case "dead letter":
                await receiver.dead_letter(group, "Unwanted", "by chance")
            case "by token" | "renew" if client is not None:
                if way == "renew":
                    with contextlib.suppress(Refused):
                        await client.renew(receiver.entity, tokens)
                await self._removing(
                    home, group, client.settle_by_token(receiver.entity, tokens, "completed"), many=False
                )
            case "keep":
                pass  # its lock runs out
            case _:
                await self._removing(home, group, receiver.complete(group))

    async def _removing(
        self, home: str, group: list[ReceivedMessage], removal: Awaitable[None], many: bool = True
    ) -> None:
        """Wait for a removal and book its outcome. `many`: the answer tells which ones were refused."""
        try:
            await removal
        except WireError as error:
            refused = set(error.delivery_ids)
            for message in group:
                if message.delivery_id in refused or not (error.outcome_unknown or refused or len(group) > 1):
                    continue
                self.books.gone(home, id_of(message.payload), is_certain=bool(refused))
            if not isinstance(error, Refused):
                raise
            return
        for message in group:
            self.books.gone(home, id_of(message.payload))

    # -- the actors: queues

    async def _send(self, rng: random.Random) -> None:
        sender = await self.lasting(rng, "send", "orders", "sender")
        if self.books.depth["orders"] < _DEPTH_MAX:
            ids = [self.new_id() for _ in range(rng.choice((1, 1, 3, 12)))]
            await self._send_some(rng, sender, "orders", {id: self.message(rng, id) for id in ids})
        elif rng.random() < 0.3:
            with contextlib.suppress(Refused):
                await sender.send_batch([self.message(rng, "refused"), b"\x00\x53\x75no message"])
                self.defects.append("a batch with something in it that is no message was taken")

    async def _receive(self, rng: random.Random) -> None:
        receiver = await self.lasting(rng, "receive", "orders", "receiver")
        await self._settle(rng, self._lasting["receive"][0], receiver, "orders")

    async def _redrain(self, rng: random.Random) -> None:
        """Dead letters: completed, or sent again with another id."""
        others = ("kept", "events", "once", "due", "news/all", "news/too")
        async with self.visit(rng) as client:
            for home in ("orders", "brief", rng.choice(others)):
                receiver = await client.receiver(f"{path_of(home)}/$DeadLetterQueue")
                if home == "orders" and rng.random() < 0.5:
                    for message in await receiver.receive(5, 0.2):
                        id = self.new_id()
                        sender = await client.sender(path_of(home))
                        await self._send_some(rng, sender, home, {id: self.message(rng, id)})
                        await self._removing(home, [message], receiver.complete([message]))
                else:
                    await self._settle(rng, client, receiver, home, is_dead=True)

    async def _defer(self, rng: random.Random) -> None:
        """Some hundred deferred messages, removed by number in any order: what compaction has to copy."""
        path = path_of("kept")
        async with self.visit(rng) as client:
            if len(self._deferred) < _KEPT:
                ids = [self.new_id() for _ in range(min(100, _KEPT - len(self._deferred)))]
                sender = await client.sender(path)
                await self._send_some(rng, sender, "kept", {id: self.message(rng, id) for id in ids})
            receiver = await client.receiver(path)
            if messages := await receiver.receive(100, 0.2):
                for message in messages:
                    self.books.seen("kept", id_of(message.payload))
                    self._deferred[id_of(message.payload)] = message.sequence_number or 0
                await receiver.defer(messages)
            count = rng.randint(0, len(self._deferred) // 40)
            for id in rng.sample(sorted(self._deferred), count):
                if id not in self._deferred:
                    continue  # stock was taken meanwhile
                await self._by_number(client, path, id, deletes=rng.random() < 0.5)

    async def _by_number(self, client: WireClient, path: str, id: str, deletes: bool) -> None:
        wanted = {
            "sequence-numbers": Array.of(_LONG_CODE, [self._deferred[id]]),
            "receiver-settle-mode": Int(0 if deletes else 1),
        }  # fmt: skip
        try:
            _, body = await client.request(path, f"{_MANAGEMENT}receive-by-sequence-number", wanted)
            if not deletes:
                await client.settle_by_token(path, [body["messages"][0]["lock-token"]], "completed")
        except WireError as error:
            if error.outcome_unknown:
                self.books.gone("kept", id, is_certain=False)
            if not isinstance(error, Refused):
                raise
            return  # what is still there is found again by `_take_stock`
        self._deferred.pop(id, None)
        self.books.gone("kept", id)

    async def _take_stock(self, rng: random.Random) -> None:
        """Peek at all that is kept: whatever failed before, what is deferred is known again."""
        async with self.visit(rng) as client:
            known: dict[str, int] = {}
            start = 1
            while payloads := await client.peek(path_of("kept"), start, 250):
                for message in map(split_of, payloads):
                    start = 1 + (message.sequence_number or 0)
                    if message.annotations.get("x-opt-message-state") == _DEFERRED:
                        known[id_of(message.payload)] = start - 1
            self._deferred = known

    async def _take(self, rng: random.Random) -> None:
        """Receive-and-delete."""
        async with self.visit(rng) as client:
            if self.books.depth["events"] < _DEPTH_MAX:
                ids = [self.new_id() for _ in range(rng.randint(1, 20))]
                sender = await client.sender(path_of("events"))
                await self._send_some(rng, sender, "events", {id: self.message(rng, id) for id in ids})
            receiver = await client.receiver(path_of("events"), mode="delete")
            try:
                messages = await receiver.receive(rng.randint(1, 40), 0.2)
                messages += await receiver.close()
            except WireError:
                self.books.doubt("events")
                raise
            for message in messages:
                self.books.seen("events", id_of(message.payload))
                self.books.gone("events", id_of(message.payload))

    async def _purge(self, rng: random.Random) -> None:
        path = path_of("purged")
        async with self.visit(rng) as client:
            ids = [self.new_id() for _ in range(rng.randint(1, 30))]
            await self._send_some(rng, await client.sender(path), "purged", {id: self.message(rng, id) for id in ids})
            await client.peek(path, 1, 10)
            wanted = {"message-count": Int(4000), "enqueued-time-utc": Timestamp(int((time.time() + 60) * 1000))}
            try:
                _, body = await client.request(path, f"{_MANAGEMENT}batch-delete-messages", wanted)
            except WireError:
                self.books.doubt("purged")
                raise
            is_all = (body or {}).get("message-count", 0) >= self.books.depth["purged"]
            for home, id in [key for key in self.books.there if key[0] == "purged"]:
                self.books.gone(home, id, is_certain=is_all)

    async def _send_twice(self, rng: random.Random) -> None:
        """Duplicates: of this round, and of rounds before it whose messages are gone."""
        path, now = path_of("once"), time.monotonic()
        async with self.visit(rng) as client:
            sender = await client.sender(path)
            self._once = [each for each in self._once if each[1] > now - _WINDOW_S / 4]
            for id, _ in self._once[:3]:
                await sender.send(self.message(rng, id))
            ids = [self.new_id() for _ in range(rng.randint(1, 5))]
            for _ in range(2):
                await self._send_some(rng, sender, "once", {id: self.message(rng, id) for id in ids})
            await self._settle(rng, client, await client.receiver(path), "once", is_dead=True)
            self._once += [(id, now) for id in ids if ("once", id) not in self.books.there]

    async def _schedule(self, rng: random.Random) -> None:
        path = path_of("due")
        async with self.visit(rng) as client:
            ids = [self.new_id() for _ in range(rng.randint(1, 6))]
            due = Timestamp(int((time.time() + rng.choice((0.5, 2.0, 30.0))) * 1000))
            payloads = [
                encode_message(
                    message_annotations={"x-opt-scheduled-enqueue-time": due},
                    properties=Properties(message_id=id),
                    body=POOL[: rng.choice(_SIZES)],
                )
                for id in ids
            ]
            wanted = {"messages": [{"message-id": id, "message": each} for id, each in zip(ids, payloads, strict=True)]}
            for id in ids:
                self.books.sending("due", id)
            try:
                _, body = await client.request(path, f"{_MANAGEMENT}schedule-message", wanted)
            except WireError as error:
                for id in ids:
                    self.books.sent("due", id, error)
                raise
            for id, number in zip(ids, body["sequence-numbers"], strict=True):
                self.books.sent("due", id)
                self._due[id] = number
            for id in rng.sample(sorted(self._due), min(len(self._due), rng.randint(0, 6))):
                await self._cancel(client, path, id)
            while len(self._due) > 100:
                del self._due[next(iter(self._due))]
            await self._settle(rng, client, await client.receiver(path), "due", is_dead=True)

    async def _cancel(self, client: WireClient, path: str, id: str) -> None:
        wanted = {"sequence-numbers": Array.of(_LONG_CODE, [self._due.pop(id)])}
        try:
            await client.request(path, f"{_MANAGEMENT}cancel-scheduled-message", wanted)
        except Refused:
            return  # its time has come
        except WireError:
            self.books.gone("due", id, is_certain=False)
            raise
        self.books.gone("due", id)

    async def _send_brief(self, rng: random.Random) -> None:
        """Messages that become dead letters when their time is over."""
        async with self.visit(rng) as client:
            sender = await client.sender(path_of("brief"))
            ids = [self.new_id() for _ in range(rng.randint(1, 10))]
            await self._send_some(rng, sender, "brief", {id: self.message(rng, id, ttl_s=1.0) for id in ids})

    async def _use_session(self, rng: random.Random) -> None:
        path = path_of("carts")
        session = f"s{rng.randrange(40)}" if rng.random() < 0.5 else self.new_id()
        async with self.visit(rng) as client:
            if rng.random() < 0.2 and (left := await client.peek(path, 1, 1)):
                session = str(read_properties(left[0], split(left[0])).group_id)
            ids = [self.new_id() for _ in range(rng.randint(1, 8))]
            payloads = {id: self.message(rng, id, group_id=session) for id in ids}
            await self._send_some(rng, await client.sender(path), "carts", payloads)
            receiver = await client.receiver(path, session_id=session)
            named = {"session-id": session}
            if session.startswith("s"):
                state = rng.choice((None, b"", POOL[:300]))
                await client.request(path, f"{_MANAGEMENT}set-session-state", {**named, "session-state": state})
                await client.request(path, f"{_MANAGEMENT}get-session-state", named)
            await client.request(path, f"{_MANAGEMENT}renew-session-lock", named)
            while messages := await receiver.receive(20, 0.2):
                for message in messages:
                    self.books.seen("carts", id_of(message.payload))
                await self._removing("carts", messages, receiver.complete(messages))

    # -- the actors: topics and entities that come and go

    async def _publish(self, rng: random.Random) -> None:
        """Both subscriptions get all: who gets what is a matter for other tests."""
        homes = ("news/all", "news/too")
        if sum(self.books.depth[home] for home in homes) > _DEPTH_MAX:
            return
        async with self.visit(rng) as client:
            sender = await client.sender(path_of("news"))
            for _ in range(rng.randint(1, 8)):
                id, problem = self.new_id(), None
                for home in homes:
                    self.books.sending(home, id)
                try:
                    await sender.send(self.message(rng, id))
                except WireError as error:
                    problem = error
                for home in homes:
                    self.books.sent(home, id, problem)
                if problem is not None:
                    raise problem

    async def _subscribe(self, rng: random.Random) -> None:
        async with self.visit(rng) as client:
            for home in ("news/all", "news/too"):
                await self._settle(rng, client, await client.receiver(path_of(home)), home, is_dead=True)

    async def _come_and_go_as_subscription(self, rng: random.Random) -> None:
        name = f"guest-{self.new_id()}"
        at, path = f"/churn-news/Subscriptions/{name}", f"churn-news/Subscriptions/{name}"
        try:
            # whose answer may be lost: a subscription that nobody deletes would collect all that is published
            await self.http("PUT", at, entry("SubscriptionDescription", "<LockDuration>PT5S</LockDuration>"))
            async with self.visit(rng) as client:
                rule = {"correlation-filter": {"properties": {"colour": "red"}}}
                named = {"rule-name": "red"}
                await client.request(path, f"{_MANAGEMENT}add-rule", {**named, "rule-description": rule})
                await client.request(path, f"{_MANAGEMENT}enumerate-rules", {"skip": Int(0), "top": Int(10)})
                receiver = await client.receiver(path)
                if messages := await receiver.receive(5, 1.0):
                    await receiver.complete(messages)
                if rng.random() < 0.5:
                    await client.request(path, f"{_MANAGEMENT}remove-rule", named)
        finally:
            await self._delete(at)

    async def _come_and_go_as_queue(self, rng: random.Random) -> None:
        """A queue of a name that was never used before, with links that it takes away when it goes."""
        name = f"churn-{self.new_id()}"
        inside = rng.choice(("", "<RequiresDuplicateDetection>true</RequiresDuplicateDetection>"))
        try:
            await self.http("PUT", f"/{name}", entry("QueueDescription", inside))
            await self.http("GET", f"/{name}")
            async with self.visit(rng) as client:
                sender, receiver = await client.sender(name), await client.receiver(name)
                await sender.send_batch([self.message(rng, self.new_id()) for _ in range(rng.randint(2, 10))])
                if messages := await receiver.receive(3, 0.5):
                    await receiver.complete(messages[1:])
                if rng.random() < 0.5:
                    await self._delete(f"/{name}")
        finally:
            await self._delete(f"/{name}")

    async def _delete(self, at: str) -> None:
        """Delete what may be gone, however often a fault is in the way: nothing may be left behind."""
        for _ in range(40):
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                if await self.http("DELETE", at, check=False) in (200, 404):
                    return
            await asyncio.sleep(0.25)
        self.defects.append(f"{at} could not be deleted")

    async def _renew_fuzzed(self, rng: random.Random) -> None:
        """What strangers put into their queue goes with it."""
        await self._delete(f"/{FUZZED}")
        await self.http("PUT", f"/{FUZZED}", entry("QueueDescription"))

    # -- the actors: those who leave as nobody should, and those who may not come in

    async def _leave_somehow(self, rng: random.Random) -> None:
        """Links of every kind on one connection, and one of the ways to leave."""
        async with connected(self.target, rng, tls=rng.random() < 0.02) as wire:
            await wire.send(let_in(self.target))
            kinds = ("sender", "receiver", "deleter", "session", "next", "partial", "request")
            said = [any_link(rng.choice(kinds), handle, rng) for handle in range(5, 5 + rng.randint(0, 8))]
            await wire.send(b"".join(said))
            if rng.random() < 0.5:
                await asyncio.sleep(rng.choice((0.01, 0.2)))
            way = rng.choice(("detach", "not closed", "end", "close", "nonsense", "drop", "reset"))
            bytes_of = {
                "detach": frame(Detach(handle=5, closed=True).encode()), "not closed": frame(Detach(handle=5).encode()),
                "end": frame(End().encode()), "close": frame(Close().encode()), "nonsense": frame(b"\x00\x53\x10\x45"),
            }  # fmt: skip
            if way in bytes_of:
                await wire.send(bytes_of[way])
                await wire.until_cut(0.05)
            elif way == "reset":
                await wire.leave(rudely=True)

    async def _be_strange(self, rng: random.Random) -> None:
        await ATTACKS[rng.choice(_STRANGERS)](self.target, rng)

    async def _use_wrong_key(self, rng: random.Random) -> None:
        parsed = self.target.parsed
        name = parsed.key_name or ""
        wrong: Any = rng.choice(
            (SharedKey(name, "d3Jvbmc="), SharedKey("nobody", "d3Jvbmc="), Login(name, "wrong"), None)
        )
        async with self.visit(rng, credential=wrong) as client:
            try:
                await client.sender(path_of("orders"))
            except (Unauthorized, WireError):
                return
            self.defects.append(f"{wrong!r} was let in")

    async def _let_token_expire(self, rng: random.Random) -> None:
        """A token that ends while links are open; the broker grants it a few seconds more."""
        parsed = self.target.parsed
        at = f"sb://{parsed.host}:{self.target.port}/{path_of('orders')}"
        token = make_token(at, parsed.key_name or "", parsed.key or "", time.time() + 1.0)
        async with self.visit(rng, credential=SharedSignature(token)) as client:
            sender = await client.sender(path_of("orders"))
            receiver = await client.receiver(path_of("orders"))
            for _ in range(100):
                if self._over.is_set() or not (sender.is_open or receiver.is_open):
                    return
                await asyncio.sleep(0.1)
        self.defects.append("links stayed ten seconds after their token had ended")

    async def _use_tls(self, rng: random.Random) -> None:
        parsed = self.target.parsed
        async with WireClient(
            parsed.host, self.target.port, tls=True, ca_file=self.target.ca_file, timeout=CALL_S,
            credential=SharedKey(parsed.key_name or "", parsed.key or ""),
        ) as client:  # fmt: skip
            await client.peek(path_of("orders"), 1, 5)
            if rng.random() < 0.5:
                drop(client, reset=True)

    async def _use_websocket(self, rng: random.Random) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        upgrade = (
            "GET /$servicebus/websocket HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
        ).encode()
        async with connected(self.target, rng) as wire:
            await wire.send(upgrade[: rng.choice((40, len(upgrade), len(upgrade)))])
            said = rng.choice((b"", sasl(), opened(), let_in(self.target)))
            await wire.send(websocket_frame(said) if said else b"")
            await wire.until_cut(0.1)

    async def _set_fault(self, rng: random.Random) -> None:
        """A fault on an entity or the namespace for a moment; half of them are cleared before their time."""
        kind = rng.choice(sorted(KINDS))
        wanted: dict[str, Any] = {"command": "fault", "kind": kind, "for": rng.choice((0.2, 1.0))}
        if kind != "storage-stall" and (rng.random() < 0.85 or kind in CRASHES):
            wanted["entity"] = path_of(rng.choice(_FAULTED))
        if needs := KINDS[kind].needs:
            wanted[needs] = 2 if needs == "rate" else 0.1
        await self.control(wanted)
        if rng.random() < 0.5:
            await asyncio.sleep(0.1)
            await self.control({"command": "clear"})

    async def control(self, message: dict[str, Any]) -> None:
        try:
            named = {**message, "namespace": self._broker.name}
            answer = await asyncio.to_thread(ask_control, self._broker.data, named)
        except PairbusError as error:
            raise OSError(str(error)) from error
        if not answer["ok"] and "is being restarted already" not in answer["error"]:
            self.defects.append(f"{message}: {answer['error']}")

    async def _read_pages(self, rng: random.Random) -> None:
        for at in ("/health", "/$Resources/queues?$skip=0&$top=100", "/$Resources/topics", "/churn-nowhere"):
            await self.http("GET", at, check=False)

    # -- HTTP

    async def http(self, method: str, at: str, body: bytes = b"", check: bool = True) -> int:
        status, _ = await http(self.target, method, at, body)
        if check and status >= 400:
            raise ConnectionError(f"{method} {at}: {status}")  # a fault's doing
        return status

    async def _create_entities(self) -> None:
        lock = f"<LockDuration>PT{_LOCK_S}S</LockDuration>"
        count = "<MaxDeliveryCount>5</MaxDeliveryCount>"
        twice = (
            "<RequiresDuplicateDetection>true</RequiresDuplicateDetection>"
            f"<DuplicateDetectionHistoryTimeWindow>PT{_WINDOW_S}S</DuplicateDetectionHistoryTimeWindow>"
        )
        inside = {
            "orders": lock + count, "kept": lock, "events": "", "purged": "", "due": lock,
            "carts": lock + "<RequiresSession>true</RequiresSession>", "once": lock + twice, "left": lock,
            "left-carts": "<RequiresSession>true</RequiresSession>",
            "brief": "<DeadLetteringOnMessageExpiration>true</DeadLetteringOnMessageExpiration>",
        }  # fmt: skip
        made = {f"/{path_of(name)}": entry("QueueDescription", text) for name, text in inside.items()}
        made[f"/{FUZZED}"] = entry("QueueDescription")
        made["/churn-news"] = entry("TopicDescription")
        made |= {f"/churn-news/Subscriptions/{name}": entry("SubscriptionDescription", lock) for name in ("all", "too")}
        for at, body in made.items():
            status, text = await http(self.target, "PUT", at, body)
            assert status in (201, 409), (at, status, text)

    async def found(self) -> dict[tuple[str, str], int]:
        """Return all that is there, by home and id, and how often."""
        found: Counter[tuple[str, str]] = Counter()
        async with self.client() as client:
            for home in ("orders", "kept", "events", "purged", "once", "due", "brief", "carts", "news/all", "news/too"):
                for path in (path_of(home), f"{path_of(home)}/$DeadLetterQueue"):
                    start = 1
                    while payloads := await client.peek(path, start, 1000):
                        found.update((home, id_of(payload)) for payload in payloads)
                        start = 1 + (split_of(payloads[-1]).sequence_number or 0)
        return dict(found)
