"""Table `fanout`: what a topic costs more than a queue, from one subscription to ten.

One broker with a plain queue and a topic for each number of subscriptions, every subscription with its `$Default` rule,
so that everyone gets a copy; what is published is received from all subscriptions at once before the next is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from benchmarks.amqp_driver import AmqpDriver, create_queues, create_topic, subscription_path
from benchmarks.figures import Column, Row, Table
from benchmarks.meter import Meter
from benchmarks.rounds import Key, Metrics, Outcome, Progress, Step, run_rounds
from benchmarks.servers import PairbusServer
from benchmarks.settings import WINDOW, Settings, body

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
    Column("others", "others' CPU", "share"),
)
PUBLISH, RECEIVE = "publish, 1,000 in flight", "receive + settle all copies"


class Outlet:
    """A queue (no subscriptions) or a topic: where to send, and from where the copies come."""

    def __init__(self, subscriptions: int | None) -> None:
        self.topic = subscriptions is not None
        self.copies = subscriptions or 1
        self.path = f"topic-{subscriptions}" if self.topic else "queue"
        self.names = [f"s{n}" for n in range(1, self.copies + 1)]
        self.sources = [subscription_path(self.path, name) for name in self.names] if self.topic else [self.path]
        self.who = f"topic, {self.copies} subscription{'s' * (self.copies > 1)}" if self.topic else QUEUE

    async def create(self, server: PairbusServer) -> None:
        await (create_topic(server, self.path, self.names) if self.topic else create_queues(server, [self.path]))

    def metrics(self, meter: Meter, published: int) -> dict[str, float]:
        found = meter.per_message(published)
        if self.topic:
            found["copy_rate"] = found["rate"] * self.copies
            found["copy_us"] = found["server_us"] / self.copies
        return found


def _step(outlet: Outlet, server: PairbusServer, sender: AmqpDriver, settings: Settings) -> Step:
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
    progress = Progress(NAME)
    progress.show("starting the broker", always=True)
    outlets = [Outlet(None), *(Outlet(copies) for copies in settings.fanout)]
    senders: list[AmqpDriver] = []
    with PairbusServer(settings.data / "fanout") as server:
        try:
            for outlet in outlets:
                await outlet.create(server)
                senders.append(await AmqpDriver.to_pairbus(server, outlet.path, receive=False))
            steps = [_step(outlet, server, sender, settings) for outlet, sender in zip(outlets, senders, strict=True)]
            outcome = await run_rounds(steps, settings.rounds, progress)
        finally:
            for sender in senders:
                await sender.close()
    table.rows = rows_from(outcome, (PUBLISH, RECEIVE), [outlet.who for outlet in outlets])
    table.notes += [
        f"1 KB messages, confirmed when all copies are synced; {settings.published:,} a round. Every subscription has "
        "the rule it is born with and gets a copy of each. A message is one publish, whatever becomes of it.",
        "receive + settle: every subscription on a connection of its own, all at once; its messages count as received "
        "when all their copies are.",
    ]
    return table, outcome.failures
