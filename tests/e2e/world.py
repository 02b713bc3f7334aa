"""Two namespaces, paired clients of both APIs behind one async face, and the account of every message.

    async with world.pair(failover_interval=0) as pair:
        async with world.fault("unreachable"):
            await pair.deliver(queue, world.message())       # must be confirmed, and in time
    home = await world.restore_message()                          # syphon, then: nothing lost

Names are fresh in every test: `primary_name` gives each its own backlog queues, so that tests share a broker and
nothing else. The account knows what each caller was told; what is where is peeked with the wire client, which takes
nothing away and gives exact bytes. Every send through a `Pair` is held to its time-out here, in one place.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import inspect
import itertools
import sys
import termios
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import azure.servicebus as sync_sdk
import azure.servicebus.aio as async_sdk
import pytest
from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.management import ServiceBusAdministrationClient

import pairbus
import pairbus.aio
import pairbus.aio.syphon
import pairbus.sync.syphon
from pairbus.broker import Broker, NamespaceServer
from pairbus.broker.control.control_socket import request
from pairbus.syphon.endpoint import Endpoint
from pairbus.syphon.engine import SyphonEngine
from pairbus.syphon.settings import SyphonSettings
from pairbus.testing import fault
from pairbus.wire import WireClient

from .account import Account, Found, Outcome, Tally, peek

Api = Literal["sync", "aio"]
APIS: tuple[Api, ...] = ("sync", "aio")
#: A primary and a secondary each, so that several scenarios can run at once; and a primary that shares a secondary.
LANES = 6
PRIMARIES = tuple(f"contoso{lane}" for lane in range(LANES))
SECONDARIES = tuple(f"backup{lane}" for lane in range(LANES))
#: A second primary, of each lane too: whoever leaves ends all faults of its namespaces.
OTHERS = tuple(f"fabrikam{lane}" for lane in range(LANES))

#: How far past its time a caller may be on a busy machine.
GRACE_S = 1.0
#: Longest wait for what ought to happen by itself within a few seconds.
PATIENCE_S = 15.0
QUICK: dict[str, Any] = {
    "backlog_queue_count": 2,
    "failover_interval": 0,
    "ping_primary_interval": 1,
    "send_timeout": 10,
    "backlog_retry_interval": 1,
}
#: Where half of the time is lost in a black hole, or in the SDK's retries.
SHORT: dict[str, Any] = {"send_timeout": 8}  # less than a halt (P24)
#: Without the SDK's retries, where those are not the point.
AT_ONCE = {"retry_total": 0}

_numbers = itertools.count(1)


class Face:
    """An object of the SDK or of ours, sync or async: every call is awaited, sync ones run on a thread."""

    def __init__(self, target: Any, pool: ThreadPoolExecutor | None) -> None:
        self.target = target
        self._pool = pool

    def __repr__(self) -> str:
        return f"<Face {self.target!r}>"

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.target, name)
        return partial(self.call, found) if callable(found) else found

    async def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self._pool is not None:
            return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *args, **options))
        made = function(*args, **options)
        return await made if inspect.isawaitable(made) else made

    def wrap(self, target: Any) -> Face:
        return Face(target, self._pool)

    async def __aenter__(self) -> Self:
        await self.call(self.target.__enter__ if self._pool is not None else self.target.__aenter__)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.call(self.target.__exit__ if self._pool is not None else self.target.__aexit__, *exc)


class Pair:
    """A paired client, its senders by entity, the events that it told, in order."""

    def __init__(self, world: World, client: Face, send_timeout: float = QUICK["send_timeout"]) -> None:
        self.world = world
        self.client = client
        self.send_timeout = send_timeout
        self.events: list[Any] = []
        self._senders: dict[str, Face] = {}
        client.target.subscribe(self.events.append)

    def __repr__(self) -> str:
        return f"<Pair {self.world.api} {self.client.target!r}: {len(self.events)} events>"

    # -- sending

    async def sender(self, entity: str, *, fresh: bool = False) -> Face:
        """One for an entity, opened by its first send; or a `fresh` one."""
        if entity not in self._senders or fresh:
            make = "get_topic_sender" if entity in self.world.subscriptions else "get_queue_sender"
            made = self.client.wrap(await getattr(self.client, make)(entity))
            # The SDK's clients close only those of their senders that somebody still holds.
            self.world.held.append(made)
            if fresh:
                return made
            self._senders[entity] = made
        return self._senders[entity]

    async def send(
        self, entity: str, *messages: Any, sender: Face | None = None, timeout: float | None = None
    ) -> Outcome:
        """One message, or several as a list; the outcome is entered into the account, and in time or else."""
        chosen = sender or await self.sender(entity)
        ids = tuple(str(message.message_id) for message in messages)
        return await self.attempt(entity, ids, chosen, messages[0] if len(messages) == 1 else list(messages), timeout)

    async def attempt(
        self, entity: str, ids: Sequence[str], sender: Face, argument: Any, timeout: float | None = None
    ) -> Outcome:
        """`send_messages(argument)`, which has the messages `ids` in it."""
        options = {} if timeout is None else {"timeout": timeout}
        begun = time.monotonic()
        error: BaseException | None = None
        try:
            await sender.send_messages(argument, **options)
        except Exception as raised:
            error = raised
        outcome = Outcome(entity, tuple(ids), time.monotonic() - begun, error)
        self.world.account.enter(outcome)
        allowed = self.send_timeout if timeout is None else timeout
        assert outcome.elapsed_s <= allowed + GRACE_S, f"past its time: {outcome}"
        return outcome

    async def deliver(self, entity: str, *messages: Any, **options: Any) -> Outcome:
        """A send whose caller must see success."""
        outcome = await self.send(entity, *messages, **options)
        if outcome.error is not None:
            raise outcome.error
        return outcome

    async def refuse(
        self, entity: str, *messages: Any, error: type[BaseException], match: str | None = None, **options: Any
    ) -> BaseException:
        """A send whose caller must see that error."""
        outcome = await self.send(entity, *messages, **options)
        assert outcome.error is not None, f"reported as sent: {outcome}"
        with pytest.raises(error, match=match) as caught:
            raise outcome.error
        return caught.value

    # -- state and events

    def state(self, entity: str) -> str:
        return str(self.client.target.state(entity).name)

    async def until_state(self, entity: str, state: str, within: float = PATIENCE_S) -> float:
        """Until it is so, and the events have told it: they follow the state, on whatever thread has the time."""

        def reached() -> bool:
            return self.state(entity) == state and self.changes(entity)[-1:] in ([], [state])

        return await until(reached, within, lambda: f"{entity} is {self.state(entity)}")

    def named(self, *names: str) -> list[Any]:
        """The events of those classes, in order."""
        return [event for event in self.events if type(event).__name__ in names]

    async def until_event(self, name: str, count: int = 1, within: float = PATIENCE_S) -> list[Any]:
        await until(lambda: len(self.named(name)) >= count, within, lambda: f"no {name} among {self.events}")
        return self.named(name)

    def changes(self, entity: str) -> list[str]:
        """The states that an entity went through."""
        return [event.state.name for event in self.named("StateChanged") if event.entity == entity]


class World:
    def __init__(self, broker: Broker, api: Api, lane: int, folder: Path) -> None:
        self.broker = broker
        self.api = api
        self.lane = lane
        #: A NamespaceServer; a test may put another one here, or a BrokerProcess to be killed.
        self.primary: Any = broker.namespaces[PRIMARIES[lane]]
        self.secondary = broker.namespaces[SECONDARIES[lane]]
        self.number = next(_numbers)
        self.primary_name = f"p{self.number}"
        #: For files of the test's own.
        self.folder = folder / self.primary_name
        self.folder.mkdir()
        self.account = Account()
        self.queues: list[str] = []
        #: topic → its subscriptions
        self.subscriptions: dict[str, list[str]] = {}
        self._pool = ThreadPoolExecutor(64, f"world-{self.number}")
        self.held: list[Face] = []
        self._ends = contextlib.AsyncExitStack()
        self._messages = itertools.count(1)

    def __repr__(self) -> str:
        return f"<World {self.number} {self.api}: {self.primary.name} and {self.secondary.name}>"

    async def __aenter__(self) -> Self:
        self._ends.callback(self._pool.shutdown, wait=False)
        self._ends.callback(self.clear)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._ends.aclose()

    async def nobody_left(self) -> None:
        """Whoever was closed has closed its connections, and whatever it threw away: the lane is ours alone."""
        await self._ends.aclose()
        servers = [each for each in (self.primary, self.secondary) if isinstance(each, NamespaceServer)]

        def left() -> list[object]:
            return [[each, each.names, list(each._served)] for server in servers for each in list(server.connections)]

        try:
            await until(lambda: not left(), 30, lambda: f"left open: {left()}")
        finally:  # the next one in this lane is to be blamed for its own only
            for server in servers:
                for connection in list(server.connections):
                    server.loop.call_soon_threadsafe(connection.abort)

    def clear(self) -> None:
        for name in {self.primary.name, self.secondary.name} & self.broker.namespaces.keys():
            request(self.broker.data, {"command": "clear", "namespace": name})

    @property
    def is_sync(self) -> bool:
        return self.api == "sync"

    def face(self, target: Any) -> Face:
        return Face(target, self._pool if self.is_sync else None)

    # -- entities and messages

    async def queue(self, **properties: Any) -> str:
        name = f"q{self.number}-{len(self.queues)}"
        self.queues.append(name)
        await self.manage("create_queue", name, **properties)
        return name

    async def topic(self, *subscriptions: str, **properties: Any) -> str:
        name = f"t{self.number}-{len(self.subscriptions)}"
        self.subscriptions[name] = list(subscriptions)
        await self.manage("create_topic", name)
        for subscription in subscriptions:
            await self.manage("create_subscription", name, subscription, **properties)
        return name

    async def backlog_queues(self, count: int = 2) -> None:
        """Made before pairing does, with locks that run out soon: they are the syphon's back-off (P40)."""
        properties = {"lock_duration": timedelta(seconds=5), "max_delivery_count": 2**31 - 1}
        for index in range(count):
            await self.manage("create_queue", self.backlog_path(index), at=self.secondary, **properties)

    async def manage(self, operation: str, *args: Any, at: Any = None, **options: Any) -> Any:
        """A call of the SDK's administration client, of the primary unless told otherwise. On a thread: the loop serves
        other worlds, too."""
        namespace = at or self.primary

        def call() -> Any:
            with ServiceBusAdministrationClient.from_connection_string(
                namespace.connection_string,
                transport=RequestsTransport(connection_verify=namespace.ca_file),
                retry_total=0,
            ) as admin:
                return getattr(admin, operation)(*args, **options)

        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def message(self, body: Any = None, **properties: Any) -> ServiceBusMessage:
        message_id = properties.pop("message_id", None) or f"{self.primary_name}-m{next(self._messages)}"
        if body is None:
            body = f"body of {message_id}"
        if isinstance(body, str | bytes):
            self.account.bodies[message_id] = body.encode() if isinstance(body, str) else body
        return ServiceBusMessage(body, message_id=message_id, **properties)

    def messages(self, count: int, **properties: Any) -> list[ServiceBusMessage]:
        return [self.message(**properties) for _ in range(count)]

    def fault(self, kind: str, *, entity: str | None = None, namespace: str | None = None, **options: Any) -> fault:
        """On the primary unless told otherwise."""
        chosen = namespace or self.primary.name
        data = self.broker if chosen in self.broker.namespaces else self.primary.data
        return fault(data, kind, entity=entity, namespace=chosen, **options)

    def key(self, namespace: NamespaceServer, name: str, *rights: str) -> str:
        """A connection string with a key of that name, which has these rights from now on."""
        wanted = {"command": "rule", "namespace": namespace.name, "name": name, "rights": list(rights)}
        granted = request(self.broker.data, wanted)
        return (
            f"Endpoint=sb://{namespace.host}:{namespace.port};SharedAccessKeyName={name};"
            f"SharedAccessKey={granted['primary_key']};UseDevelopmentEmulator=true;"
        )

    def pings(self, entity: str) -> int:
        """That the primary has taken."""
        found = self.primary.namespace
        return int((found.queues.get(entity) or found.topics[entity]).pings)

    # -- clients

    @property
    def ours(self) -> Any:
        """The module of ours for this API."""
        return pairbus if self.is_sync else pairbus.aio

    @contextlib.asynccontextmanager
    async def pair(
        self,
        *,
        primary: str | None = None,
        secondary: str | None = None,
        sdk: dict[str, Any] | None = None,
        **options: Any,
    ) -> AsyncIterator[Pair]:
        """`ServiceBusClient.paired`, with times kept short; `sdk` are options of the SDK's own clients."""
        chosen = {**QUICK, "primary_name": self.primary_name, **options}
        made = await self.face(None).call(
            self.ours.ServiceBusClient.paired,
            primary or self.primary.connection_string,
            secondary or self.secondary.connection_string,
            primary_ca_file=self.primary.ca_file,
            secondary_ca_file=self.secondary.ca_file,
            client_options=sdk,
            **chosen,
        )
        client = await self.face(made).__aenter__()
        try:
            yield Pair(self, client, chosen["send_timeout"])
        finally:
            # It takes the SDK a second. Only who waits for the syphon to let go needs to wait for it here.
            closing = asyncio.ensure_future(client.close())
            self._ends.push_async_callback(asyncio.wait, [closing])
            if chosen.get("enable_syphon"):
                await closing

    def client(self, connection_string: str | None = None, **options: Any) -> Face:
        """Ours, of the primary, not paired."""
        text = connection_string or self.primary.connection_string
        return self.face(self.ours.ServiceBusClient.from_connection_string(text, **options))

    def bare(self, connection_string: str | None = None, **options: Any) -> Face:
        """The SDK's own client, of the primary."""
        module = sync_sdk if self.is_sync else async_sdk
        text = connection_string or self.primary.connection_string
        return self.face(module.ServiceBusClient.from_connection_string(text, **options))

    def admin(self, connection_string: str | None = None) -> Any:
        """The SDK's administration client of the secondary, as `SendAvailabilityPairedNamespaceOptions` takes it."""
        text = connection_string or self.secondary.connection_string
        ca = self.secondary.ca_file
        if self.is_sync:
            transport: Any = RequestsTransport(connection_verify=ca)
            return ServiceBusAdministrationClient.from_connection_string(text, transport=transport, retry_total=0)
        transport = AioHttpTransport(connection_verify=ca)
        return AsyncAdministrationClient.from_connection_string(text, transport=transport, retry_total=0)

    def options(self, admin: Any, secondary: Any, **options: Any) -> Any:
        chosen = {**QUICK, "primary_name": self.primary_name, **options}
        return self.ours.SendAvailabilityPairedNamespaceOptions(admin, secondary, **chosen)

    @contextlib.asynccontextmanager
    async def wire(self, namespace: NamespaceServer | Any = None) -> AsyncIterator[WireClient]:
        chosen = namespace or self.primary
        async with WireClient.from_connection_string(chosen.connection_string) as client:
            yield client

    # -- what is where

    def backlog_path(self, index: int) -> str:
        return f"{self.primary_name}/x-servicebus-transfer/{index}"

    async def at_home(self, *entities: str) -> list[Found]:
        """All messages in the primary entities: those named, or all that this world has made."""
        wanted: list[str] = []
        for entity in entities or (*self.queues, *self.subscriptions):
            subscriptions = self.subscriptions.get(entity)
            wanted += [entity] if subscriptions is None else [f"{entity}/Subscriptions/{s}" for s in subscriptions]
        async with self.wire(self.primary) as client:
            return [found for place in wanted for found in await peek(client, place)]

    async def in_backlog(self, *indexes: int) -> list[Found]:
        """All messages that wait in the backlog queues."""
        async with self.wire(self.secondary) as client:
            found = [found for i in indexes or range(16) for found in await peek(client, self.backlog_path(i))]
        for each in found:
            assert isinstance(each.path, str), f"no destination: {each}"
        return found

    async def dead_letters(self, index: int) -> list[Found]:
        """Of a backlog queue."""
        async with self.wire(self.secondary) as client:
            return await peek(client, f"{self.backlog_path(index)}/$DeadLetterQueue")

    async def tally(self) -> Tally:
        return Tally(tuple(await self.at_home()), tuple(await self.in_backlog()))

    async def nothing_lost(self, *, home: bool = False) -> Tally:
        """Whatever a caller was told is sent is in its entity, or, unless it must be `home`, waits in the backlog for
        that entity; and each with the body that it had."""
        tally = await self.tally()
        account = self.account
        places: dict[str, set[str]] = {}
        for found in tally.home:
            places.setdefault(found.message_id, set()).add(found.place.split("/Subscriptions/")[0])
        if not home:
            for found in tally.waiting:
                places.setdefault(found.message_id, set()).add(str(found.path))
        lost = {each for each in account.confirmed if account.entities[each] not in places.get(each, ())}
        assert not lost, (
            f"{len(lost)} of {len(account.confirmed)} confirmed and nowhere to be found: {sorted(lost)[:5]}"
        )
        astray = {each: at for each, at in places.items() if at - {account.entities.get(each)}}
        assert not astray, f"where they were not sent to: {astray}"
        for found in (*tally.home, *tally.waiting):
            assert found.body == account.bodies.get(found.message_id, found.body), found.message_id
        return tally

    async def restore_message(self) -> Tally:
        """The backlog through the syphon; then nothing may be lost, and nothing may wait."""
        await self.syphon()
        tally = await self.nothing_lost(home=True)
        assert not tally.waiting
        return tally

    async def until_drained(self, within: float = 60.0) -> None:
        """Until somebody's syphon has emptied the backlog, and all that was confirmed is home."""
        begun = time.monotonic()
        while True:
            tally = await self.tally()
            if not tally.waiting and self.account.confirmed <= set(tally.home_ids):
                return
            assert time.monotonic() - begun < within, f"{len(tally.waiting)} still wait"
            await asyncio.sleep(0.1)

    async def until_confirmed(self, more: int) -> None:
        """Until so many more messages have been confirmed to their senders."""
        wanted = len(self.account.confirmed) + more
        await until(lambda: len(self.account.confirmed) >= wanted)

    async def until_unanswered(self) -> None:
        """Until the primary, in a black hole or a hang, has something of a client's that it does not answer."""
        await until(lambda: any(each.hung or unread_bytes(each) for each in list(self.primary.connections)))

    async def until_home(self, entity: str, count: int, within: float = PATIENCE_S) -> None:
        begun = time.monotonic()
        while len(await self.at_home(entity)) < count:
            assert time.monotonic() - begun < within, f"{entity} has not {count} yet"
            await asyncio.sleep(0.1)

    async def syphon(self, **options: Any) -> None:
        """One-shot drain of all backlog queues with the in-process engine."""
        waiting = [(path, index) for index in range(16) if (path := self.backlog_path(index)) in self.backlog_paths]
        primary, secondary = (
            Endpoint.from_connection_string(each.connection_string) for each in (self.primary, self.secondary)
        )
        outcome = await SyphonEngine(SyphonSettings(primary, secondary, waiting, drain=True, **options)).run()
        assert outcome.unavailable == []

    @property
    def backlog_paths(self) -> set[str]:
        """Of the queues that there are."""
        return {queue.name for queue in list(self.secondary.namespace.queues.values())}


def unread_bytes(connection: Any) -> int:
    """What has come for a connection of the broker that does not read."""
    sock = connection._transport.get_extra_info("socket")
    return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)


async def until(
    condition: Callable[[], bool], within: float = PATIENCE_S, what: Callable[[], str] = lambda: "it did not happen"
) -> float:
    """Waits for a condition; the seconds that it took."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < within, f"after {within} s: {what()}"
        await asyncio.sleep(0.01)
    return time.monotonic() - begun
