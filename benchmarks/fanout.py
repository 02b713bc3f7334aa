"""Table `fanout`: what a topic costs more than a queue, from one subscription to ten.

Publishing: one broker with a plain queue and a topic for each number of subscriptions, every subscription with its
`$Default` rule, so that everyone gets a copy; what is published is received from all subscriptions at once before the
next is measured. Rules: a topic whose subscriptions have so many rules, a hundred each, of which one matches, by an
application property. Stored: a fresh broker each time, filled, weighed in memory and on disk, killed with -9, started
again (timed to its ready line) and weighed once more: copies share the body, so ten must not weigh ten times one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import forwarding, partitioning
from benchmarks.amqp_driver import AmqpDriver, add_rules, create_queues, create_topic, subscription_path
from benchmarks.figures import Column, Row, Table
from benchmarks.meter import Meter, disk_bytes, process_tree, resident_bytes
from benchmarks.rounds import Key, Metrics, Outcome, Progress, Step, run_rounds
from benchmarks.servers import PairbusServer
from benchmarks.settings import BATCH, WINDOW, Settings, body

NAME = "fanout"
QUEUE = "plain queue"
COLUMNS = (
    Column("rate", "messages", "rate"),
    Column("ratio", "÷ queue", "ratio"),
    Column("copy_rate", "copies", "rate"),
    Column("server_us", "server CPU a message", "us"),
    Column("cpu_ratio", "CPU ÷ queue", "ratio"),
    Column("copy_us", "server CPU a copy", "us"),
    Column("client_us", "client CPU a message", "us"),
    Column("memory", "resident", "mb"),
    Column("memory_each", "resident a message", "bytes"),
    Column("memory_copy", "resident a copy", "bytes"),
    Column("disk_each", "disk a message", "bytes"),
    Column("seconds", "time", "s"),
    Column("others", "others' CPU", "share"),
)
PUBLISH, RECEIVE = "publish, 1,000 in flight", "receive + settle all copies"
RULES = "publish, by rules"
RULES_EACH = 100  # of a subscription
WANTED = "wanted"
MEMORY, RESTART, AFTER = "stored", "restart after kill -9", "memory after restart"


class Outlet:
    """A queue (no subscriptions) or a topic: where to send, and from where the copies come."""

    __slots__ = ("copies", "path", "sources", "topic", "who")

    def __init__(self, subscriptions: int | None) -> None:
        self.topic = subscriptions is not None
        self.copies = subscriptions or 1
        self.path = f"topic-{subscriptions}" if self.topic else "queue"
        self.sources = (
            [subscription_path(self.path, f"s{n}") for n in range(1, self.copies + 1)] if self.topic else [self.path]
        )
        self.who = f"topic, {self.copies} subscription{'s' * (self.copies > 1)}" if self.topic else QUEUE

    async def create(self, server: PairbusServer) -> None:
        if self.topic:
            await create_topic(server, self.path, [f"s{n}" for n in range(1, self.copies + 1)])
        else:
            await create_queues(server, [self.path])

    def metrics(self, meter: Meter, published: int) -> dict[str, float]:
        found = meter.per_message(published)
        if self.topic:
            found["copy_rate"] = found["rate"] * self.copies
            found["copy_us"] = found["server_us"] / self.copies
        return found


class RuledOutlet(Outlet):
    """A topic with so many rules of a kind; one of them, of its first subscription, matches what is published."""

    __slots__ = ("_kind", "_rules")

    def __init__(self, kind: str, rules: int) -> None:
        super().__init__(1)
        self._kind = kind
        self._rules = rules
        self.path = f"rules-{kind.lower()}-{rules}"
        self.sources = [subscription_path(self.path, "s0")]
        self.who = f"topic, {rules:,} {kind} rule{'s' * (rules > 1)}"

    async def create(self, server: PairbusServer) -> None:
        names = [f"s{n}" for n in range(-(-self._rules // RULES_EACH))]
        await create_topic(server, self.path, names)
        last = min(self._rules, RULES_EACH) - 1  # of the first subscription: all the others are judged before it
        described = [self._rule(WANTED if n == last else f"other-{n}") for n in range(self._rules)]
        adding = (
            add_rules(server, subscription_path(self.path, name), described[n * RULES_EACH : (n + 1) * RULES_EACH])
            for n, name in enumerate(names)
        )
        await asyncio.gather(*adding)

    def _rule(self, wanted: str) -> dict[str, Any]:
        if self._kind == "SQL":
            return {"sql-filter": {"expression": f"[x-ms-path] = '{wanted}'"}}
        return {"correlation-filter": {"properties": {"x-ms-path": wanted}}}

    def count(self, settings: Settings) -> int:
        """How many messages are published: SQL rules are judged one by one."""
        return settings.published // (1 + self._rules // 100 if self._kind == "SQL" else 1)


def _rules_step(outlet: RuledOutlet, server: PairbusServer, sender: AmqpDriver, settings: Settings) -> Step:
    payload, count = body(), outlet.count(settings)

    async def run() -> Mapping[Key, Metrics]:
        with Meter(server.pid) as publishing:
            await sender.send(payload, count, WINDOW, WANTED)
        reader = await AmqpDriver.to_pairbus(server, outlet.sources[0], send=False)
        try:
            await reader.receive(count, WINDOW)
        finally:
            await reader.close()
        return {(RULES, outlet.who): outlet.metrics(publishing, count)}

    return Step(f"rules · {outlet.who}", run)


def _publish_step(outlet: Outlet, server: PairbusServer, sender: AmqpDriver, settings: Settings) -> Step:
    payload, count = body(), settings.published

    async def run() -> Mapping[Key, Metrics]:
        with Meter(server.pid) as publishing:
            await sender.send(payload, count, WINDOW)
        readers = [await AmqpDriver.to_pairbus(server, path, send=False) for path in outlet.sources]
        try:
            with Meter(server.pid) as receiving:
                await asyncio.gather(*(reader.receive(count, WINDOW) for reader in readers))
        finally:
            await asyncio.gather(*(reader.close() for reader in readers))
        return {
            (PUBLISH, outlet.who): outlet.metrics(publishing, count),
            (RECEIVE, outlet.who): outlet.metrics(receiving, count),
        }

    return Step(f"publish · {outlet.who}", run)


def _stored_step(outlet: Outlet, settings: Settings) -> Step:
    payload, count = body(), settings.fanout_stored
    folder = settings.data / f"stored-{outlet.path}"

    def weigh(server: PairbusServer, empty: int) -> dict[str, float]:
        now = resident_bytes(process_tree(server.pid))
        each = max(0, now - empty) / count
        found: dict[str, float] = {"memory": now, "memory_each": each}
        return found | {"memory_copy": each / outlet.copies} if outlet.topic else found

    async def run() -> Mapping[Key, Metrics]:
        with PairbusServer(folder) as server:
            await outlet.create(server)
            empty = resident_bytes(process_tree(server.pid))
            written = disk_bytes(_journal(folder))
            driver = await AmqpDriver.to_pairbus(server, outlet.path, receive=False)
            await driver.send_batches(payload, count, BATCH, WINDOW)
            stored = weigh(server, empty)
            stored["disk_each"] = max(0, disk_bytes(_journal(folder)) - written) / count
            await driver.close()
            server.kill()
            server.start()
            after = weigh(server, empty)
            restart = {"seconds": server.ready_s}
        return {(MEMORY, outlet.who): stored, (RESTART, outlet.who): restart, (AFTER, outlet.who): after}

    return Step(f"stored · {outlet.who}", run)


def _journal(folder: Path) -> Path:
    return folder / "data"


async def _measure_publish(outlets: list[Outlet], settings: Settings) -> Outcome:
    progress = Progress(NAME)
    progress.show("starting the broker", always=True)
    senders: list[AmqpDriver] = []
    with PairbusServer(settings.data / "fanout") as server:
        try:
            steps = []
            for outlet in outlets:
                await outlet.create(server)
                senders.append(await AmqpDriver.to_pairbus(server, outlet.path, receive=False))
                steps.append(_publish_step(outlet, server, senders[-1], settings))
            return await run_rounds(steps, settings.rounds, progress)
        finally:
            for sender in senders:
                await sender.close()


async def _measure_rules(outlets: list[RuledOutlet], settings: Settings) -> Outcome:
    progress = Progress(f"{NAME}, rules")
    progress.show("making the rules", always=True)
    senders: list[AmqpDriver] = []
    with PairbusServer(settings.data / "fanout-rules") as server:
        try:
            steps = []
            for outlet in outlets:
                await outlet.create(server)
                senders.append(await AmqpDriver.to_pairbus(server, outlet.path, receive=False))
                steps.append(_rules_step(outlet, server, senders[-1], settings))
            return await run_rounds(steps, settings.rounds, progress)
        finally:
            for sender in senders:
                await sender.close()


async def _measure_stored(outlets: list[Outlet], settings: Settings) -> Outcome:
    # each step starts from nothing: there is nothing to warm up
    steps = [_stored_step(outlet, settings) for outlet in outlets]
    return await run_rounds(steps, settings.rounds, Progress(f"{NAME}, stored"), warm_up=False)


def rows_from(outcome: Outcome, cases: tuple[str, ...], who: list[str]) -> list[Row]:
    """Ratios to the plain queue, round by round."""
    rows = []
    for case in cases:
        base = outcome.series.get((case, QUEUE), {})
        for name in who:
            metrics = dict(outcome.series.get((case, name), {}))
            if not metrics:
                continue
            if name != QUEUE:
                for metric, ratio in (("rate", "ratio"), ("server_us", "cpu_ratio")):
                    if metric in metrics and metric in base:
                        metrics[ratio] = metrics[metric].over(base[metric])
            rows.append(Row(case, name, metrics))
    return rows


async def measure(settings: Settings) -> tuple[Table, list[str]]:
    table = Table(NAME, "Fan-out: a topic and its subscriptions", COLUMNS)
    nothing = Outcome()
    outlets = [Outlet(None), *(Outlet(copies) for copies in settings.fanout)]
    ends = [outlets[0], outlets[1], outlets[-1]]  # between one and the most, memory is a straight line
    publish = await _measure_publish(outlets, settings) if settings.wants(NAME, "publish") else nothing
    ruled = [RuledOutlet(kind, rules) for kind, rules in settings.rules]
    judged = await _measure_rules(ruled, settings) if settings.wants(NAME, "rules") else nothing
    stored = await _measure_stored(ends, settings) if settings.wants(NAME, "stored") else nothing
    forward = await forwarding.measure(settings) if settings.wants(NAME, forwarding.NAME) else nothing
    parted = await partitioning.measure(settings) if settings.wants(NAME, partitioning.NAME) else nothing
    who = [outlet.who for outlet in outlets]
    table.rows = rows_from(publish, (PUBLISH, RECEIVE), who) + rows_from(stored, (MEMORY, RESTART, AFTER), who)
    table.rows += rows_from(judged, (RULES,), [outlet.who for outlet in ruled])
    table.rows += rows_from(forward, (forwarding.THROUGH,), [forwarding.who(hops) for hops in forwarding.HOPS])
    table.rows += rows_from(parted, (partitioning.THROUGH,), [partitioning.PLAIN, partitioning.PARTITIONED])
    table.notes += [
        f"1 KB messages, confirmed when all copies are synced; {settings.published:,} a round. Every subscription has "
        "the rule it is born with and gets a copy of each. A message is one publish, whatever becomes of it.",
        "receive + settle: every subscription on a connection of its own, all at once; its messages count as received "
        "when all their copies are.",
        f"Rules: {RULES_EACH} a subscription, each asking for an application property; one of them matches, so that a "
        "message becomes one copy.",
        f"Stored: {settings.fanout_stored:,} messages sent in batches of {BATCH} to a fresh broker; what the empty "
        "broker has is taken off before dividing.",
        "Forwarded: sent to the first of a chain of queues, each of which forwards to the next, and received from the "
        "last meanwhile; with a hop each message is stored, synced and removed once more.",
        "Partitioned: messages without a key, which go to the sixteen partitions in turn.",
    ]
    return table, publish.failures + judged.failures + stored.failures + forward.failures + parted.failures
