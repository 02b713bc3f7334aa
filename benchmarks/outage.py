"""Table `outage`: interval zero in an outage that refuses or hangs, and the return to the primary.

Each round a fresh paired client sends to entities of its own while the primary is healthy; then the fault is brought
about, every entity's first send is diverted, and more follow. What is counted: sends that raised (none must), and how
long the first diverted send of each entity and those after it took. The return: 100 senders of one entity keep
sending; the primary comes back; from the first good ping on no send may still begin on its way to the backlog, and
beside it stands how long it took until each sender's first message was confirmed by the primary.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from azure.servicebus import ServiceBusClient as SyncSdkClient
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncSdkClient

import pairbus
import pairbus.aio
from benchmarks.amqp_driver import create_queues
from benchmarks.bystander import summary
from benchmarks.figures import Column, Goal, Row, Table
from benchmarks.meter import Meter
from benchmarks.rounds import Key, Metrics, Outcome, Progress, Step, run_rounds
from benchmarks.servers import PairbusServer
from benchmarks.settings import Settings, body
from pairbus import EntityState, Event, Observer, StateChanged
from pairbus.testing import fault

NAME = "outage"
FAULTS = {"refused": "unreachable", "black hole": "black-hole"}
APIS = ("sync", "async")
RAISED, FIRST, AFTER, RETURN = "sends in an outage", "first diverted send", "those after it", "after a good ping"
KINDS = BARE, PAIRED = "bare SDK", "paired"
#: The sync SDK hangs on a black hole for as long as it lasts: nothing to count there.
COMPARED = (("refused", "sync"), ("refused", "async"), ("black hole", "async"))
COMPARED_SENDS = 3
SEND_TIMEOUT_S = 4.0
PATIENCE_S = 60.0
RETURN_GOAL_MS = 50.0
#: What the first diverted send of ten entities at once may take, by fault and patience.
FIRST_GOALS_MS = {("refused", "half"): 150.0, ("black hole", "adaptive"): 600.0, ("black hole", "half"): 2100.0}
#: Adaptive patience knows the entity after 20 answers.
HEALTHY_SENDS = 24
COLUMNS = (
    Column("confirmed", "confirmed", "share"),
    Column("p50", "p50", "ms"),
    Column("p99", "p99", "ms"),
    Column("client_us", "client CPU", "us"),
    Column("route", "last of all routes changed after", "ms"),
    Column("first_p50", "first confirmed, p50", "ms"),
    Column("first_most", "first confirmed, last sender", "ms"),
)


class Senders:
    """A client of either API, bare or paired, behind one async face (sync calls run on threads), with its senders."""

    def __init__(self, api: str, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads) if api == "sync" else None
        self.senders: list[Any] = []
        self.raised = 0
        self.client: Any

    async def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self._pool is None:
            return await function(*args, **options)
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(function, *args, **options))

    async def send_all(self, payload: bytes, **options: Any) -> list[float]:
        """Send a message with each sender at once; return the times that it took, failed or not."""

        async def timed(sender: Any) -> float:
            began = time.perf_counter()
            try:
                await self.call(sender.send_messages, ServiceBusMessage(payload), **options)
            except Exception:
                self.raised += 1
            return (time.perf_counter() - began) * 1000

        return await asyncio.gather(*map(timed, self.senders))

    async def close(self) -> None:
        await self.call(self.client.close)
        if self._pool is not None:
            self._pool.shutdown()


@asynccontextmanager
async def bare(api: str, primary: PairbusServer, entities: Sequence[str]) -> AsyncIterator[Senders]:
    made = Senders(api, len(entities))
    kind: Any = SyncSdkClient if api == "sync" else AsyncSdkClient
    made.client = kind.from_connection_string(primary.connection_string)
    made.senders = [made.client.get_queue_sender(entity) for entity in entities]
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def paired(
    api: str, primary: PairbusServer, secondary: PairbusServer, entities: Sequence[str], **more: Any
) -> AsyncIterator[Senders]:
    made = Senders(api, len(entities))
    kind: Any = pairbus.ServiceBusClient if api == "sync" else pairbus.aio.ServiceBusClient
    options = {
        "primary_name": "bench",
        "failover_interval": 0,
        "send_timeout": SEND_TIMEOUT_S,
        "ping_primary_interval": 1,
        "backlog_queue_count": 4,
        **more,
    }
    texts = primary.connection_string, secondary.connection_string
    made.client = await made.call(kind.paired, *texts, ca_file=secondary.ca_file, **options)
    made.senders = [made.client.get_queue_sender(entity) for entity in entities]
    try:
        yield made
    finally:
        await made.close()


def diverted(latencies: Sequence[float], raised: int) -> dict[str, float]:
    found = summary(list(latencies))
    return {"confirmed": 1 - raised / len(latencies), "p50": found["p50"], "p99": found["p99"]}


def who_of(name: str, patience: str, api: str) -> str:
    return f"{name}, {api}" if patience == "half" else f"{name}, {patience}, {api}"


def _outage_step(
    case: tuple[str, str], api: str, primary: PairbusServer, secondary: PairbusServer, entities: list[str], after: int
) -> Step:
    payload = body()
    name, patience = case

    async def run() -> Mapping[Key, Metrics]:
        watch = Diversions()
        async with paired(api, primary, secondary, entities, primary_patience=patience, observers=(watch,)) as senders:
            async with asyncio.timeout(PATIENCE_S):
                while watch.begins_anew():
                    for _ in range(HEALTHY_SENDS):
                        await senders.send_all(payload)
            if senders.raised:
                raise RuntimeError(f"{senders.raised} sends failed while all was well")
            async with fault(primary.folder / "data", FAULTS[name], namespace="bench"):
                first = diverted(await senders.send_all(payload), senders.raised)
                before, rest = senders.raised, list[float]()
                with Meter() as meter:
                    for _ in range(after):
                        rest += await senders.send_all(payload)
        who = who_of(name, patience, api)
        cpu = meter.per_message(len(rest))["client_us"]
        return {
            (FIRST, who): first,
            (AFTER, who): {**diverted(rest, senders.raised - before), "client_us": cpu},
        }

    return Step(f"{name} · {patience} · {api}", run)


def _bare_step(
    name: str, api: str, primary: PairbusServer, secondary: PairbusServer, entities: list[str], count: int
) -> Step:
    """The same senders without pairing, and with it, in an outage of the same length: who raises."""
    payload = body()

    async def run() -> Mapping[Key, Metrics]:
        found: dict[Key, Metrics] = {}
        for kind in KINDS:
            opened = bare(api, primary, entities) if kind == BARE else paired(api, primary, secondary, entities)
            async with opened as senders:
                await senders.send_all(payload, timeout=SEND_TIMEOUT_S)
                if senders.raised:
                    raise RuntimeError(f"{senders.raised} sends failed while all was well")
                took: list[float] = []
                async with fault(primary.folder / "data", FAULTS[name], namespace="bench"):
                    for _ in range(count):
                        took += await senders.send_all(payload, timeout=SEND_TIMEOUT_S)
            found[(RAISED, f"{kind}, {name}, {api}")] = diverted(took, senders.raised)
        return found

    return Step(f"bare and paired · {name} · {api}", run)


class Diversions(Observer):
    """Whether a message was diverted while all was well: by a false alarm, or since opening a link took too long on a
    busy machine. Then an entity has no open link, or too few answers, and does not know how patient to be."""

    wants_diversions = True

    def __init__(self) -> None:
        self._met = True

    def begins_anew(self) -> bool:
        met, self._met = self._met, False
        return met

    def sent_to_backlog(self, *_send: Any) -> None:
        self._met = True


class Returning(Observer):
    """When the good ping came, and for each sender the last start towards the backlog and its first confirm after."""

    wants_sends = True

    def __init__(self) -> None:
        self.ping_at: float | None = None
        self.changed_at: float | None = None
        self.last_diverted = 0.0
        self.confirmed: dict[str, float] = {}

    def pinged(self, entity: str, outcome: str, ms: float) -> None:
        if outcome == "ok" and self.ping_at is None:
            self.ping_at = time.perf_counter()

    def announced(self, event: Event) -> None:
        if isinstance(event, StateChanged) and event.state is EntityState.HEALTHY:
            self.changed_at = time.perf_counter()

    def sent(
        self, entity: str, route: str, queue: int | None, messages: Sequence[Any], outcome: str, ms: float
    ) -> None:
        now = time.perf_counter()
        if route == "backlog":
            self.last_diverted = max(self.last_diverted, now - ms / 1000)
        elif outcome == "ok" and self.ping_at is not None:
            sender = str(messages[0].message_id).partition("-")[0]
            self.confirmed.setdefault(sender, now)

    def metrics(self) -> dict[str, float]:
        assert self.ping_at is not None and self.changed_at is not None
        waits = [(at - self.ping_at) * 1000 for at in self.confirmed.values()]
        return {
            "route": max(0.0, self.changed_at - self.ping_at, self.last_diverted - self.ping_at) * 1000,
            "first_p50": summary(waits)["p50"],
            "first_most": max(waits),
        }


def _return_step(api: str, primary: PairbusServer, secondary: PairbusServer, count: int) -> Step:
    payload = body()

    async def run() -> Mapping[Key, Metrics]:
        watch = Returning()
        entities = ["returning"] * count
        async with paired(api, primary, secondary, entities, observers=(watch,), send_timeout=30) as senders:

            async def send(number: int, serial: object) -> None:
                message = ServiceBusMessage(payload, message_id=f"{number}-{serial}")
                await senders.call(senders.senders[number].send_messages, message)

            async def keep_sending(number: int) -> None:
                serial = 0
                while str(number) not in watch.confirmed:
                    await send(number, serial)
                    serial += 1
                    await asyncio.sleep(0.2)

            async with fault(primary.folder / "data", "unreachable", namespace="bench"):
                senders.client.force_failover("returning")
                # every sender has its link to the backlog and is used to it when the primary comes back
                await asyncio.gather(*(send(number, "first") for number in range(count)))
                tasks = [asyncio.create_task(keep_sending(number)) for number in range(count)]
                await asyncio.sleep(1)
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*tasks)
        return {(RETURN, f"{count} senders, {api}"): watch.metrics()}

    return Step(f"return · {api}", run)


def rows_from(outcome: Outcome, returning: int) -> list[Row]:
    rows = []
    for name, api in COMPARED:
        for kind in KINDS:
            if metrics := outcome.series.get((RAISED, f"{kind}, {name}, {api}")):
                goal = Goal("confirmed", at_least=1.0) if kind == PAIRED else None
                rows.append(Row(RAISED, f"{kind}, {name}, {api}", dict(metrics), goal))
    for case in (FIRST, AFTER):
        for (name, patience), most_ms in FIRST_GOALS_MS.items():
            for api in APIS:
                if metrics := outcome.series.get((case, who_of(name, patience, api))):
                    # a goal in time is none where a caller saw a failure
                    all_sent = min(metrics["confirmed"].values) >= 1.0
                    goal = Goal("p99", below=most_ms) if case == FIRST and all_sent else Goal("confirmed", at_least=1.0)
                    rows.append(Row(case, who_of(name, patience, api), dict(metrics), goal))
    for api in APIS:
        who = f"{returning} senders, {api}"
        if metrics := outcome.series.get((RETURN, who)):
            rows.append(Row(RETURN, who, dict(metrics), Goal("route", below=RETURN_GOAL_MS)))
    return rows


async def measure(settings: Settings) -> tuple[Table, list[str]]:
    table = Table(NAME, "Interval zero in an outage, and the return", COLUMNS)
    Progress(NAME).show("starting the brokers", always=True)
    logging.getLogger("pairbus.pairing").setLevel(logging.ERROR)  # every failover here is meant
    entities = [f"entity-{number}" for number in range(settings.outage_entities)]
    outcome = Outcome()
    with PairbusServer(settings.data / "primary") as primary, PairbusServer(settings.data / "secondary") as secondary:
        await create_queues(primary, [*entities, "returning"])
        steps: list[Step] = []
        if settings.wants(NAME, "divert"):
            steps += [
                _outage_step(case, api, primary, secondary, entities, settings.outage_sends)
                for case in FIRST_GOALS_MS
                for api in APIS
            ]
        if settings.wants(NAME, "bare"):
            steps += [_bare_step(name, api, primary, secondary, entities, COMPARED_SENDS) for name, api in COMPARED]
        if settings.wants(NAME, "return"):
            steps += [_return_step(api, primary, secondary, settings.returning) for api in APIS]
        outcome = await run_rounds(steps, settings.rounds, Progress(NAME), warm_up=False)
    table.rows = rows_from(outcome, settings.returning)
    table.notes += [
        f"send_timeout {SEND_TIMEOUT_S:g} s. A refused connection is tried once more on a fresh link, then the message "
        "is diverted over the link that stands ready; a black hole is waited for as long as the patience says, by "
        f"default half of the time. {len(entities)} entities at once, each with a sender of its own; then "
        f"{settings.outage_sends} more sends of each. With so few first sends in a round, p99 is the slowest.",
        f"Sends in an outage: {COMPARED_SENDS} of each entity, one after the other, time-out {SEND_TIMEOUT_S:g} s, "
        "bare and paired; what is not confirmed was raised, and how long it took is how long the bare SDK takes to "
        "tell its caller. The sync SDK is not compared on a black hole, "
        "it hangs there until the fault ends, whatever its time-out.",
        "After a good ping: from its answer to the moment when the last sender stopped beginning sends to the backlog; "
        "then each sender opens its link to the primary anew, all at once on one CPU, which is what the first "
        "confirmed send takes.",
    ]
    return table, outcome.failures
