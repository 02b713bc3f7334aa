"""Every way in which a link can end leaves nothing of it behind: detach, end, close, drop, time-outs, tokens, errors.

The property test speaks raw frames to the broker's own connection objects, without sockets, so that every order of
frames and turns of the loop is possible; the other tests do the same over TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.amqp.link import ReceiverLink, SenderLink
from pairbus.amqp.message import Properties, encode_message
from pairbus.amqp.performative_types import Attach, Close, Detach, End, Flow, Source, Transfer
from pairbus.amqp.performative_types import Target as TargetTerminus
from pairbus.amqp.session import Session
from pairbus.amqp.types import Symbol
from pairbus.broker import Broker, serve
from pairbus.broker.amqp.connection import AmqpConnection
from pairbus.broker.amqp.dispatcher import Dispatcher
from pairbus.broker.amqp.links import RequestNode, ResponseNode, SourceNode, TargetNode
from pairbus.broker.amqp.session_waiters import SessionWaiters
from pairbus.broker.control.faults import Fault
from pairbus.broker.model.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.model.duplicates import DuplicateHistory
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.sessions import Sessions
from pairbus.broker.model.topic import Subscription, Topic
from pairbus.broker.refusal import Refusal
from pairbus.broker.server import NamespaceServer
from pairbus.sas import make_token
from pairbus.testing import ManualClock
from pairbus.wire import ConnectionString, WireClient
from tests.waiting import soon

from .attack_words import Target, attach, begun, frame, opened, put_token, transfer
from .attacks import connected

KINDS = (AmqpConnection, Session, SenderLink, ReceiverLink, SourceNode, TargetNode, RequestNode, ResponseNode)
#: `$cbs` has a session of its own, as with the JS SDK: it stays while the others come and go.
CBS_CHANNEL = 9
CHANNELS = (0, 1, 2)
LINKS = ("receiver", "remover", "session", "next", "sender", "partial", "request", "response")
SENDS_TO_US = ("sender", "partial", "request")


def census() -> Counter[str]:
    gc.collect()
    return count_objects()


def count_objects() -> Counter[str]:
    # what the broker froze when it started is not among them
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in KINDS)


def flow(channel: int, handle: int, count: int) -> bytes:
    return frame(
        Flow(
            next_incoming_id=0, incoming_window=2**31 - 1, next_outgoing_id=0, outgoing_window=2**31 - 1,
            handle=handle, delivery_count=0, link_credit=count,
        ).encode(),
        channel=channel,
    )  # fmt: skip


def link(kind: str, channel: int, handle: int, names: Names, credit: int) -> bytes:
    """The attach of a link, and what a client would say next."""
    receives = kind not in SENDS_TO_US
    address = {
        "remover": names.removed, "session": names.sessions, "next": names.sessions,
        "request": f"{names.locked}/$management", "response": f"{names.locked}/$management",
    }.get(kind, names.locked)  # fmt: skip
    fields: dict[str, Any] = {"snd_settle_mode": 1} if kind == "remover" else {}
    attached = attach(handle, address, receives=receives, channel=channel, name=f"l{channel}-{handle}", **fields)
    if kind in ("session", "next"):
        source = Source(address=address, filter={Symbol("com.microsoft:session-filter"): None})
        if kind == "session":
            source.filter = {Symbol("com.microsoft:session-filter"): f"s{handle % 2}"}
        attached = session_attach(channel, handle, source)
    said = [attached]
    if receives and credit:
        said.append(flow(channel, handle, credit))
    if kind == "partial":
        begun_message = Transfer(handle=handle, delivery_id=handle, delivery_tag=b"t", more=True).encode()
        said.append(frame(begun_message, b"x" * 100, channel=channel))
    if kind == "request":
        # the answer waits for credit that never comes, if there is a link for it
        peek = encode_message(
            properties=Properties(message_id="p", reply_to="here"),
            application_properties={"operation": "com.microsoft:peek-message"},
            body=("value", {}),
        )
        said.append(frame(transfer(handle, handle, peek, settled=True)[8:], channel=channel))
    return b"".join(said)


def session_attach(channel: int, handle: int, source: Source) -> bytes:
    asked = Attach(
        name=f"l{channel}-{handle}", handle=handle, role=True, source=source, target=TargetTerminus(address="here")
    )
    return frame(asked.encode(), channel=channel)


class Names:
    """Of the queues of one example."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        number = next(self._numbers)
        self.locked, self.removed, self.sessions = (f"{name}-{number}" for name in ("locked", "removed", "sessions"))

    def __iter__(self) -> Iterator[str]:
        return iter((self.locked, self.removed, self.sessions))


class Pipe(asyncio.Transport):
    """Takes what the broker writes; loses the connection a turn after it was closed, as a real one."""

    def __init__(self, protocol: AmqpConnection) -> None:
        super().__init__()
        self.protocol: AmqpConnection | None = protocol
        self.written = 0
        protocol.connection_made(self)

    def feed(self, data: bytes) -> None:
        if self.protocol is not None:
            self.protocol.data_received(data)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += len(data)

    def close(self) -> None:
        if self.protocol is not None:
            protocol, self.protocol = self.protocol, None
            asyncio.get_running_loop().call_soon(protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self.protocol is None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class World:
    """A broker on a loop of its own that runs only while a test says so."""

    def __init__(self, data: Path) -> None:
        self.clock = ManualClock()
        self._runner = asyncio.Runner()
        self._serving = serve("contoso", data=data, clock=self.clock)
        self.broker: Broker = self._runner.run(self._serving.__aenter__())
        self.host: NamespaceServer = self.broker.namespaces["contoso"]

    def close(self) -> None:
        self._runner.run(self._serving.__aexit__(None, None, None))
        self._runner.close()

    def run(self, work: Awaitable[None]) -> None:
        async def wait() -> None:
            await work

        self._runner.run(wait())

    async def asked(self, begin: Callable[[Callable[[Refusal | None], None]], None]) -> None:
        answered: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        begin(answered.set_result)
        assert await answered is None

    async def create(self, names: Names) -> None:
        for name in names:
            described = QueueDescription(name=name, requires_session=name == names.sessions)
            await self.asked(lambda done, it=described: self.host.namespace.registry.create(it, self.clock(), done))

    async def delete(self, names: Names) -> None:
        for name in names:
            await self.asked(lambda done, it=name: self.host.namespace.registry.delete_queue(it, self.clock(), done))

    async def send(self, names: Names, count: int) -> None:
        for name in names:
            payloads = [
                encode_message(properties=Properties(message_id=f"m{n}", group_id=f"s{n % 2}"), body=b"x")
                for n in range(count)
            ]
            queue = self.queue(name)
            await self.asked(
                lambda done, to=queue, what=payloads: self.host.namespace.enqueue.send(to, what, self.clock(), done)
            )

    def queue(self, name: str) -> MessageQueue:
        found = self.host.namespace.resolve(name)
        assert isinstance(found, MessageQueue)
        return found

    def let_in(self) -> bytes:
        """With a token rather than a key: tokens expire."""
        parsed = ConnectionString.parse(self.host.connection_string)
        assert parsed.key_name is not None and parsed.key is not None
        token = make_token(f"sb://127.0.0.1:{self.host.port}/", parsed.key_name, parsed.key, int(self.clock()) + 3600)
        put = Transfer(handle=0, delivery_id=0, delivery_tag=b"t", settled=True).encode()
        return b"".join((
            opened(), begun(CBS_CHANNEL),
            attach(0, "$cbs", receives=False, channel=CBS_CHANNEL),
            attach(1, "$cbs", receives=True, channel=CBS_CHANNEL), flow(CBS_CHANNEL, 1, 100),
            frame(put, put_token(token), channel=CBS_CHANNEL),
        ))  # fmt: skip

    def _take(self, queue: MessageQueue, done: Callable[[Refusal | None], None]) -> None:
        self.host.namespace.receive.take(queue, 1, self.clock(), lambda _, refusal: done(refusal))

    async def tidy(self) -> None:
        """The next example, or the same one again, finds nothing of this one."""
        self.host.faults.clear()
        for connection in list(self.host.connections):
            connection.abort()
        await self.quiet()

    async def quiet(self) -> None:
        """Until nothing is due: what the journal has to sync is behind what it is given last."""
        for _ in range(3):
            for _ in range(5):
                await asyncio.sleep(0)
            probe = self.queue("probe")
            payload = encode_message(properties=Properties(message_id="p"), body=b"")
            await self.asked(partial(self.host.namespace.enqueue.send, probe, [payload], self.clock()))
            await self.asked(partial(self._take, probe))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("leaving"))
    gc.collect()
    gc.freeze()  # so that a census looks only at what an example made
    described = QueueDescription(name="probe")
    world.run(world.asked(lambda done: world.host.namespace.registry.create(described, world.clock(), done)))
    yield world
    gc.unfreeze()
    world.close()


def leave(way: str, channel: int, handle: int, pipe: Pipe, world: World, names: Names) -> bytes:
    """The frames of a way to leave that has some; otherwise it happens here."""
    connection = pipe.protocol
    match way:
        case "detach":
            return frame(Detach(handle=handle, closed=True).encode(), channel=channel)
        case "detach, not closed":
            return frame(Detach(handle=handle).encode(), channel=channel)
        case "end":
            return frame(End().encode(), channel=channel)
        case "close":
            return frame(Close().encode())
        case "nonsense":
            return frame(b"\x00\x53\x10\x45" if handle % 2 else b"\x00\x53\xff\x45", channel=channel)
        case "drop":
            pipe.close()
        case "internal error" if connection is not None:
            connection.close(Refusal("amqp:internal-error", "the broker failed"))
        case "idle connection" if connection is not None:
            connection._engine.tick(connection.loop.time() + 1000)
            assert connection._timer is not None
            connection._timer.cancel()
            connection._tick()
        case "idle link" if connection is not None:
            for each in connection.links():
                if isinstance(each.context, TargetNode | SourceNode):
                    connection._idle[each] = (each.delivery_count, float("-inf"))
            if connection._idle_timer is not None:
                connection._idle_timer.cancel()
            connection._check_idle(600.0)
        case "token expires" if connection is not None:
            world.clock.advance(4000)
            connection.expire_claims(world.clock())
            world.host.namespace.tick(world.clock())
        case "fault" if connection is not None:
            for each in connection.links():
                if isinstance(each.context, TargetNode | SourceNode):
                    connection.cut(each, Refusal("com.microsoft:server-busy", "a fault"))
    return b""


WAYS = (
    "detach", "detach, not closed", "end", "close", "nonsense", "drop", "internal error", "idle connection",
    "idle link", "token expires", "fault",
)  # fmt: skip
links = st.lists(st.tuples(st.sampled_from(LINKS), st.sampled_from(CHANNELS), st.sampled_from((0, 1, 50))), max_size=6)
ways = st.lists(
    st.tuples(st.sampled_from(WAYS), st.sampled_from(CHANNELS), st.integers(0, 5), st.booleans()), max_size=5
)


@settings(max_examples=50)
@given(
    asked=links,
    leaving=ways,
    stays=st.booleans(),
    earlier=st.integers(0, 3),
    together=st.booleans(),
    late=st.booleans(),
)
def test_a_link_that_left_in_any_way_leaves_nothing_behind(
    world: World,
    asked: list[tuple[str, int, int]],
    leaving: list[tuple[str, int, int, bool]],
    stays: bool,
    earlier: int,
    together: bool,
    late: bool,
) -> None:
    try:
        world.run(_leaves_nothing(world, asked, leaving, stays, earlier, together, late))
    finally:
        world.run(world.tidy())


async def _leaves_nothing(
    world: World,
    asked: list[tuple[str, int, int]],
    leaving: list[tuple[str, int, int, bool]],
    stays: bool,
    earlier: int,
    together: bool,
    late: bool,
) -> None:
    names = Names()
    before = census()
    await world.create(names)
    await world.send(names, earlier)
    if late:
        # every attach and every delivery comes a moment later, when the client may be gone
        world.host.faults.set(Fault("latency", delay=1e-6))
    pipe = Pipe(AmqpConnection(world.host))
    said = [world.let_in(), *(begun(channel) for channel in CHANNELS)]
    said += [link(kind, channel, handle, names, credit) for handle, (kind, channel, credit) in enumerate(asked)]
    if not together:
        pipe.feed(b"".join(said))
        said = []
        await world.quiet()
    for way, channel, handle, waits in leaving:
        said.append(leave(way, channel, handle, pipe, world, names))
        if waits:
            pipe.feed(b"".join(said))
            said = []
            await world.quiet()
    # whoever is left then ends its sessions, without a detach, or drops
    said += [frame(End().encode(), channel=channel) for channel in CHANNELS] if stays else []
    pipe.feed(b"".join(said))
    if not stays:
        pipe.close()
    await world.quiet()
    if late:
        world.host.faults.clear()
    locked = [world.queue(name).locked for name in names]
    lengths = [len(world.queue(name)) for name in names]
    await world.send(names, 3)
    await world.quiet()
    queues = [world.queue(name) for name in names]
    assert [len(queue) for queue in queues] == [length + 3 for length in lengths], "went to nobody"
    assert [queue.locked for queue in queues] == locked, "locked by nobody"
    assert locked[2] == 0, "a session's messages are free with the session"
    for queue in queues:
        assert queue.entity.links == 0
        assert queue.sessions is None or all(session.lock is None for session in queue.sessions)
        if queue in world.host._dispatchers:
            assert not world.host._dispatchers[queue]._sources
        if queue in world.host._session_waiters:
            assert not world.host._session_waiters[queue]._waiting
    connection = pipe.protocol
    kept = Counter[str]()
    if connection is not None and not connection._engine.is_closed:
        engine = connection._engine
        assert (engine.gathered_bytes, engine.link_count, connection.response_bytes) == (0, 2, 0)
        assert connection in world.host.connections
        kept = Counter(
            AmqpConnection=1, Session=1, SenderLink=1, ReceiverLink=1, RequestNode=1, ResponseNode=1
        )  # fmt: skip
        del engine
    else:
        assert not world.host.connections
    del connection
    assert census() - before == kept
    pipe.close()
    await world.quiet()
    await world.delete(names)
    assert census() - before == Counter()


# -- over TCP


@pytest.fixture
async def served(tmp_path: Path) -> Any:
    async with serve("contoso", data=tmp_path) as broker:
        yield broker.namespaces["contoso"]


async def create(host: NamespaceServer, name: str, **fields: Any) -> MessageQueue:
    created: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
    host.namespace.registry.create(QueueDescription(name=name, **fields), host.clock(), created.set_result)
    assert await created is None
    queue = host.namespace.resolve(name)
    assert isinstance(queue, MessageQueue)
    return queue


def let_in_over_tcp(host: NamespaceServer) -> bytes:
    put = Transfer(handle=0, delivery_id=0, delivery_tag=b"t", settled=True).encode()
    return b"".join((
        opened(), begun(CBS_CHANNEL), attach(0, "$cbs", receives=False, channel=CBS_CHANNEL),
        frame(put, put_token(Target(host.connection_string, host.ca_file).token()), channel=CBS_CHANNEL), begun(),
    ))  # fmt: skip


def payloads_of(count: int) -> list[bytes]:
    return [encode_message(properties=Properties(message_id=f"m{n}", group_id="s0"), body=b"x") for n in range(count)]


@pytest.mark.parametrize("mode", [0, 1], ids=["peek-lock", "receive-and-delete"])
async def test_an_end_without_a_detach_leaves_no_receiver_that_takes_messages(
    served: NamespaceServer, mode: int
) -> None:
    queue = await create(served, "q")
    rng = random.Random(1)
    async with connected(Target(served.connection_string, served.ca_file), rng) as wire:
        await wire.send(let_in_over_tcp(served) + attach(5, "q", receives=True, snd_settle_mode=mode) + flow(0, 5, 100))
        await soon(lambda: queue.entity.links == 1)
        await wire.send(frame(End().encode()))
        await soon(lambda: queue.entity.links == 0)
        async with WireClient.from_connection_string(served.connection_string) as client:
            sender = await client.sender("q")
            assert set(await sender.send_many(payloads_of(20))) == {None}
            receiver = await client.receiver("q")
            received: list[Any] = []
            async with asyncio.timeout(10):
                while len(received) < 20:
                    received += await receiver.receive(20, max_wait=5.0)
        assert len(served.connections) >= 1, "the connection itself stays"


async def test_a_session_is_free_when_its_receivers_session_ended_without_a_detach(served: NamespaceServer) -> None:
    queue = await create(served, "q", requires_session=True)
    source = Source(address="q", filter={Symbol("com.microsoft:session-filter"): "s0"})
    async with connected(Target(served.connection_string, served.ca_file), random.Random(1)) as wire:
        await wire.send(let_in_over_tcp(served) + session_attach(0, 5, source) + flow(0, 5, 10))
        await soon(lambda: queue.entity.links == 1)
        assert queue.sessions is not None and queue.sessions.accept("s0", math.inf) is None, "it is held"
        await wire.send(frame(End().encode()))
        await soon(lambda: queue.entity.links == 0)
        assert queue.sessions.accept("s0", math.inf) is not None


async def test_whoever_left_waits_for_no_cycle_collector(served: NamespaceServer) -> None:
    names = Names()
    for name in names:
        await create(served, name, requires_session=name == names.sessions)
    target = Target(served.connection_string, served.ca_file)
    before = census()
    gc.disable()
    try:
        for tls in (False, True):
            async with connected(target, random.Random(1), tls=tls) as wire:
                links = [link(kind, 0, handle, names, 50) for handle, kind in enumerate(LINKS)]
                await wire.send(let_in_over_tcp(served) + b"".join(links))
                queue = served.namespace.resolve(names.locked)
                assert isinstance(queue, MessageQueue)
                await soon(lambda queue=queue: queue.entity.links == 3)
        await soon(lambda: not served.connections)
        await soon(lambda: count_objects() == before)
    finally:
        gc.enable()


async def test_whatever_is_deleted_waits_for_no_cycle_collector(served: NamespaceServer) -> None:
    kinds = (QueueEntity, Topic, Subscription, MessageQueue, Sessions, DuplicateHistory, Dispatcher, SessionWaiters)

    def left() -> Counter[str]:
        return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in kinds)

    async def done(operation: Callable[..., None], *arguments: Any) -> None:
        answered: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        operation(*arguments, served.clock(), answered.set_result)
        assert await answered is None

    namespace = served.namespace
    target = Target(served.connection_string, served.ca_file)
    gc.collect()
    before = left()
    gc.disable()
    try:
        for keeps_links in (False, True):
            await done(namespace.registry.create, QueueDescription(name="plain"))
            await done(namespace.registry.create, QueueDescription(name="once", requires_duplicate_detection=True))
            await done(namespace.registry.create, QueueDescription(name="carts", requires_session=True))
            await done(namespace.registry.create, TopicDescription(name="news"))
            for name in ("all", "more"):
                await done(namespace.subscriptions.create, SubscriptionDescription(topic="news", name=name))
            async with connected(target, random.Random(1)) as wire:
                paths = ("plain", "once", "carts", "news", "news/Subscriptions/all", "plain/$DeadLetterQueue")
                asked = [
                    attach(handle, path, receives=receives, channel=0, name=f"l{handle}")
                    for handle, (path, receives) in enumerate(itertools.product(paths, (False, True)))
                ]
                for handle, wanted in ((20, "s0"), (21, None)):
                    filter = {Symbol("com.microsoft:session-filter"): wanted}
                    asked.append(session_attach(0, handle, Source(address="carts", filter=filter)))
                    asked.append(flow(0, handle, 5))
                await wire.send(let_in_over_tcp(served) + b"".join(asked))
                await soon(lambda: len(served._session_waiters) == 1 and len(served._dispatchers) >= 4)
                async with WireClient.from_connection_string(served.connection_string) as client:
                    for path in ("plain", "once", "carts", "news"):
                        await (await client.sender(path)).send_batch(payloads_of(5))
                if not keeps_links:
                    await wire.send(frame(Close().encode()))
                    await soon(lambda: not served.connections)
                for name in ("plain", "once", "carts"):
                    await done(namespace.registry.delete_queue, name)
                await done(namespace.subscriptions.delete, "news", "more")
                await done(namespace.registry.delete_topic, "news")
            await soon(lambda: left() == before)
    finally:
        gc.enable()


async def test_after_churn_there_are_as_many_objects_as_before(served: NamespaceServer) -> None:
    names = Names()
    for name in names:
        await create(served, name, requires_session=name == names.sessions)
    before = census()
    rng = random.Random(7)
    target = Target(served.connection_string, served.ca_file)
    for _ in range(5):
        async with contextlib.AsyncExitStack() as stack:
            wires = [await stack.enter_async_context(connected(target, rng)) for _ in range(4)]
            for wire in wires:
                for round in range(5):
                    asked = [(rng.choice(LINKS), handle) for handle in range(8)]
                    links = [link(kind, 0, handle, names, rng.choice((0, 50))) for kind, handle in asked]
                    start = let_in_over_tcp(served) if round == 0 else begun()
                    await wire.send(start + b"".join(links) + frame(End().encode()))
        await soon(lambda: not served.connections)
    assert census() - before == Counter()
