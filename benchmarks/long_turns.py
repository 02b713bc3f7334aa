"""Table `bystander`: what one client can make everybody else wait for.

Each case is a fresh broker and something of which there is much: messages that expire together or become due together,
locks that run out together, a purge, peeks and lists that look through everything, an entity that is restarted, a batch
or a transaction to many rules. A bystander in a process of its own sends, receives and settles one message at a time,
first alone, then while that is done. The loop's longest turn is the broker's own figure, from its start to the end of
the case.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleAction, SqlRuleFilter

from benchmarks.amqp_driver import CALL_S, create_queues, create_topic, subscription_path
from benchmarks.bystander import Bystander
from benchmarks.figures import Column, Goal, Row, Table
from benchmarks.rounds import Key, Metrics, Outcome, Progress, Step, run_rounds
from benchmarks.servers import COMMAND, PairbusServer
from benchmarks.settings import Settings
from pairbus.wire import Receiver, WireClient

NAME = "bystander"
TURN_MS_GOAL = 20.0
ADDED_MS_GOAL = 50.0
COLUMNS = (
    Column("turn", "longest turn", "ms"),
    Column("long_turns", "turns over 20 ms", "count"),
    Column("p50", "bystander p50", "ms"),
    Column("p999", "bystander p99.9", "ms"),
    Column("alone", "alone p99.9", "ms"),
    Column("added", "p99.9 above alone", "ms"),
    Column("rounds_seen", "its rounds", "count"),
)
BESIDE = "bystander"
QUEUE = "deep"
_BATCH = 200
_WINDOW = 20
_LOCKED_EACH = 5000  # what the broker lets one link hold
#: A case that takes longer is left out, and named.
_CASE_S_MAX = 120.0

Load = Callable[[WireClient], Awaitable[None]]


def message(ttl_ms: int | None = None, due_ms: int | None = None, session: str | None = None) -> bytes:
    """A small message as AMQP 1.0 writes it."""
    ttl = b"" if ttl_ms is None else b"\x40\x70" + ttl_ms.to_bytes(4)
    header = b"\x00\x53\x70\xc0" + bytes((len(ttl) + 2, 3 if ttl else 1)) + b"\x41" + ttl
    annotations = b""
    if due_ms is not None:
        name = b"x-opt-scheduled-enqueue-time"
        entry = b"\xa3" + bytes((len(name),)) + name + b"\x83" + due_ms.to_bytes(8)
        annotations = b"\x00\x53\x72\xc1" + bytes((len(entry) + 1, 2)) + entry
    fields = b"\xa1\x01m"
    if session is not None:
        fields += b"\x40" * 9 + b"\xa1" + bytes((len(session),)) + session.encode()
    count = 1 if session is None else 11
    properties = b"\x00\x53\x73\xc0" + bytes((len(fields) + 1, count)) + fields
    return header + annotations + properties + b"\x00\x53\x75\xa0\x01x"


class Case:
    """Something of which there is much."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.count = settings.beside
        self.server = PairbusServer(settings.data / type(self).__name__)

    @property
    def who(self) -> str:
        return f"{self.count:,} messages"

    async def prepare(self, client: WireClient) -> None:
        await self.create()
        await self.fill(client, lambda n: message())

    async def act(self, client: WireClient) -> None:
        raise NotImplementedError

    async def create(self, **properties: Any) -> None:
        await asyncio.to_thread(lambda: asyncio.run(create_queues(self.server, [QUEUE], **properties)))

    async def fill(self, client: WireClient, make: Callable[[int], bytes]) -> None:
        sender = await client.sender(QUEUE)
        sender.window = _WINDOW
        confirms: list[asyncio.Future[None]] = []
        for at in range(0, self.count, _BATCH):
            while sender.room <= 0:
                await sender.ready()
            payloads = [make(n) for n in range(at, min(at + _BATCH, self.count))]
            confirms += [confirm for _, confirm in sender.send_batch_nowait(payloads)]
        for confirm in confirms:
            await confirm


class TimedCase(Case):
    """All of it comes at one instant, which the bystander's watch begins with."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.at = 0.0

    def begin(self) -> None:
        self.at = time.time() + self.settings.crowd_s * 2 + self.count / 10_000

    async def act(self, client: WireClient) -> None:
        await asyncio.sleep(max(0.0, self.at - time.time()) + self.settings.crowd_s / 2)


class Expiry(TimedCase):
    async def prepare(self, client: WireClient) -> None:
        await self.create(dead_lettering_on_message_expiration=True)
        self.begin()
        await self.fill(client, lambda n: message(ttl_ms=max(1, int((self.at - time.time()) * 1000))))


class Due(TimedCase):
    async def prepare(self, client: WireClient) -> None:
        await self.create()
        self.begin()
        await self.fill(client, lambda n: message(due_ms=int(self.at * 1000)))


class Locks(TimedCase):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.count = min(self.count, 100_000)

    @property
    def who(self) -> str:
        return f"{self.count:,} locks"

    async def prepare(self, client: WireClient) -> None:
        await self.create(max_delivery_count=1)
        await self.fill(client, lambda n: message())
        with _admin(self.server) as admin:
            queue = admin.get_queue(QUEUE)
            queue.lock_duration = "PT10S"
            admin.update_queue(queue)
        left = self.count
        receivers: list[Receiver] = []
        while left > 0:
            receivers.append(await client.receiver(QUEUE))
            taken = await receivers[-1].receive(min(left, _LOCKED_EACH - 500), 5.0)
            left -= len(taken)
        self.at = time.time() + 10


class Purge(Case):
    async def act(self, client: WireClient) -> None:
        body = {"message-count": 4000, "enqueued-time-utc": int(time.time() * 1000) + 60_000}
        for _ in range(self.count // 4000 + 1):
            await client.request(QUEUE, "com.microsoft:batch-delete-messages", body)


class Peek(Case):
    async def prepare(self, client: WireClient) -> None:
        await self.create(requires_session=True)
        await self.fill(client, lambda n: message(session=f"s{n % 100}"))

    async def act(self, client: WireClient) -> None:
        body = {"from-sequence-number": 1, "message-count": 100, "session-id": "nobody's"}
        ends = time.time() + self.settings.crowd_s
        while time.time() < ends:
            await client.request(QUEUE, "com.microsoft:peek-message", body)


class Sessions(Case):
    @property
    def who(self) -> str:
        return f"{self.count:,} sessions"

    async def prepare(self, client: WireClient) -> None:
        await self.create(requires_session=True)
        await self.fill(client, lambda n: message(session=str(n)))

    async def act(self, client: WireClient) -> None:
        ends = time.time() + self.settings.crowd_s
        while time.time() < ends:
            body = {"last-updated-time": 253402300800000, "skip": self.count - 10, "top": 100}
            await client.request(QUEUE, "com.microsoft:get-message-sessions", body)


class Restart(Case):
    async def act(self, client: WireClient) -> None:
        command = [str(COMMAND), "fault", "--data", str(self.server.folder / "data"), "bench", "crash-entity"]
        await asyncio.to_thread(subprocess.run, [*command, "--entity", QUEUE], check=True, capture_output=True)
        await asyncio.sleep(self.settings.crowd_s + 4)


class ManyRules(Case):
    """A topic whose one subscription has SQL rules with actions."""

    @property
    def who(self) -> str:
        return f"{self.settings.beside_rules} rules with actions"

    async def prepare(self, client: WireClient) -> None:
        await create_topic(self.server, QUEUE, ["all"])
        with _admin(self.server) as admin:
            for n in range(self.settings.beside_rules):
                rule = {"filter": SqlRuleFilter("1 = 1"), "action": SqlRuleAction(f"SET p{n} = 'x'")}
                await asyncio.to_thread(partial(admin.create_rule, QUEUE, "all", f"r{n}", **rule))


class Publishing(ManyRules):
    async def act(self, client: WireClient) -> None:
        sender = await client.sender(QUEUE)
        await sender.send_batch([message() for _ in range(100)], timeout=CALL_S)


class Transacting(ManyRules):
    async def act(self, client: WireClient) -> None:
        sender = await client.sender(QUEUE)
        async with await client.transaction(QUEUE) as transaction:
            for error in await sender.send_many([message()] * 100, transaction=transaction):
                if error is not None:
                    raise error


class RuleAdded(ManyRules):
    async def act(self, client: WireClient) -> None:
        path = subscription_path(QUEUE, "all")
        described = {"sql-filter": {"expression": "1 = 1"}}
        ends = time.time() + self.settings.crowd_s
        while time.time() < ends:
            await client.request(path, "com.microsoft:add-rule", {"rule-name": "new", "rule-description": described})
            await client.request(path, "com.microsoft:remove-rule", {"rule-name": "new"})


class Listing(Case):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.config = settings.data / f"{type(self).__name__}.toml"
        queues = (f'[[namespaces.bench.queues]]\nname = "q{n}"\n' for n in range(1, settings.beside_entities))
        self.config.write_text("".join(queues))
        self.server = PairbusServer(settings.data / type(self).__name__, "--config", str(self.config))

    @property
    def who(self) -> str:
        return f"{self.settings.beside_entities:,} queues"  # with the bystander's

    async def prepare(self, client: WireClient) -> None:
        return

    async def act(self, client: WireClient) -> None:
        with _admin(self.server) as admin:
            await asyncio.to_thread(lambda: sum(1 for _ in admin.list_queues_runtime_properties()))


CASES: dict[str, type[Case]] = {
    "expire into the dead-letter queue": Expiry,
    "become due together": Due,
    "locks run out together": Locks,
    "purge": Purge,
    "peek for a session": Peek,
    "list sessions": Sessions,
    "restart an entity": Restart,
    "publish a batch of 100": Publishing,
    "a transaction of 100": Transacting,
    "add and remove a rule": RuleAdded,
    "list queues": Listing,
}


def _admin(server: PairbusServer) -> ServiceBusAdministrationClient:
    verify = {"connection_verify": server.ca_file} if server.ca_file else {}
    return ServiceBusAdministrationClient.from_connection_string(server.connection_string, **verify)


def _page(server: PairbusServer) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=CALL_S) as answer:
        return str(answer.read().decode())


def turns_in(page: str) -> dict[str, float]:
    """Return the loop's longest turn, in ms, and how many were too long, as `/metrics` says them."""
    values = dict(line.split() for line in page.splitlines() if line.startswith("pairbus_loop_"))
    return {
        "turn": float(values["pairbus_loop_turn_seconds_max"]) * 1000,
        "long_turns": float(values["pairbus_loop_long_turns_total"]),
    }


def _step(name: str, kind: type[Case], settings: Settings) -> Step:
    async def run() -> Mapping[Key, Metrics]:
        case = kind(settings)
        async with asyncio.timeout(_CASE_S_MAX):
            return await measured(case)

    async def measured(case: Case) -> Mapping[Key, Metrics]:
        with case.server:
            await asyncio.to_thread(lambda: asyncio.run(create_queues(case.server, [BESIDE])))
            client = WireClient.from_connection_string(case.server.connection_string, timeout=CALL_S)
            with Bystander(case.server.connection_string, BESIDE) as bystander:
                alone = await bystander.latency_ms(settings.crowd_s)
                await case.prepare(client)
                acting = asyncio.ensure_future(case.act(client))
                seen = await bystander.latency_ms(settings.crowd_s)
                while not acting.done():
                    more = await bystander.latency_ms(settings.crowd_s)
                    worse = max(seen, more, key=lambda each: each["p999"])
                    seen = {**worse, "count": seen["count"] + more["count"]}
                await acting
                found = turns_in(await asyncio.to_thread(_page, case.server))
            await client.close()
        figures = {"p50": seen["p50"], "p999": seen["p999"], "alone": alone["p999"], "rounds_seen": seen["count"]}
        return {(name, case.who): {**found, **figures, "added": seen["p999"] - alone["p999"]}}

    return Step(name, run)


def rows_from(outcome: Outcome) -> list[Row]:
    return [
        row
        for (case, who), metrics in outcome.series.items()
        for row in (
            Row(case, who, {**metrics}, Goal("turn", below=TURN_MS_GOAL)),
            Row(f"{case}, beside", who, {"added": metrics["added"]}, Goal("added", below=ADDED_MS_GOAL)),
        )
    ]


async def measure(settings: Settings) -> tuple[Table, list[str]]:
    table = Table(NAME, "What others wait for", COLUMNS)
    steps = [
        _step(name, kind, settings) for name, kind in CASES.items() if settings.wants(NAME, name.replace(" ", "-"))
    ]
    outcome = await run_rounds(steps, settings.rounds, Progress(NAME), warm_up=False)
    table.rows = rows_from(outcome)
    table.notes += [
        "The longest turn is what the broker measures itself (`/metrics`), from its start to the end of the case: what "
        "was prepared is in it. On two cores broker, client and bystander compete for the same CPU.",
        "p99.9 is that of the worst stretch of "
        f"{settings.crowd_s:g} s while the case went on; above alone is its distance from the same before it began.",
    ]
    return table, outcome.failures
