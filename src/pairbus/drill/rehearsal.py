"""Carries out a drill's plan, from starting the first process to ending the last.

    brokers ▶ receivers, senders (healthy traffic) ▶ fault ▶ failover, backlog ▶ fault ends ▶ return ▶ syphon drains
    ▶ everything received ▶ what is left is counted ▶ ledgers in one folder

It owns processes, timers and folders, and passes every fact to `timeline.py`. `verdict.py` judges the ledgers.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pairbus.broker.control.control_socket import request
from pairbus.syphon.daemon_thread import in_daemon_thread

from . import broker_config
from .plan import PRIMARY, SECONDARY, SENDER_KEY, SUBSCRIPTION, DrillPlan, listed
from .processes import Application, BrokerProcess, Child, DrillFailed, end_all
from .syphon import DrillSyphon, Spark
from .timeline import Timeline, TimelineEntry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: After its return the primary's entities are looked for by pings; longer than so many intervals is a failure.
RETURN_S: Final = 60.0
#: Everything was sent and carried home; nothing was received for so long: then nothing more will come.
QUIET_S: Final = 12.0
#: Everything was received; nothing was settled for so long.
SETTLING_S: Final = 2.0
SETTLED_S: Final = 120.0
LOOK_S: Final = 0.1
#: Hooks for tests: called with the rehearsal when the primary is about to return.
Hook = Callable[["Rehearsal"], Any]


@dataclass(eq=False)
class Rehearsal:
    """One drill: call `run` once. `tell` gets each line of the timeline as it happens."""

    plan: DrillPlan
    spark: Spark
    folder: Path
    tell: Callable[[TimelineEntry], None]
    _: KW_ONLY
    #: What Spark may do while the primary is away and it has nothing else to do; given the ledgers so far.
    in_the_quiet: Callable[[SparkSession, Path], object] | None = None
    in_outage: Hook | None = None
    #: How long the syphon took, from its start to an empty backlog.
    drain_s: float | None = None
    children: list[Child] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    primary: BrokerProcess = field(init=False)
    secondary: BrokerProcess = field(init=False)

    def __post_init__(self) -> None:
        self.timeline = Timeline(self.plan, time.time())

    def __repr__(self) -> str:
        return f"<Rehearsal {self.timeline!r}>"

    @property
    def ledgers(self) -> Path:
        return self.folder / "ledger"

    async def run(self) -> None:
        """Run the drill. Afterwards every ledger is closed and in `ledgers`, and no process is left."""
        with tempfile.TemporaryDirectory(prefix="pairbus-drill-") as data:
            try:
                await self._rehearse(Path(data))
            finally:
                await end_all(self.children)
                for task in self.tasks:
                    task.cancel()
                await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _rehearse(self, data: Path) -> None:
        await self._start_brokers(data)
        receiver, sender = await self._start_applications()
        sending = self._begin(sender.finished())
        syphoning = DrillSyphon(
            self.plan, self.spark, self.primary.ready.connection_string, self.secondary.ready.connection_string,
            self.ledgers / "syphon",
        )  # fmt: skip
        warming = self._begin(self._warm_up(syphoning))
        await self._pause(self.plan.healthy_s, sending)
        # On a slow machine it may still be warming up, and must not touch the backlog while the primary is away: what
        # it locks then it leaves to its lock's end.
        await _ended(warming)
        await self._outage(sending)
        await sender.enough()
        await self._healthy_again()
        self._say("syphon", f"{self.plan.engine} drains the backlog, {self.timeline.tally.depth:,} messages")
        began = time.time()
        await syphoning.drain(self._moved)
        self.drain_s = time.time() - began
        await sending
        await sender.stop()
        if self.timeline.tally.depth:
            await syphoning.drain(self._moved)
            self.drain_s = time.time() - began
        self._say("syphon", f"{self.timeline.tally.moved:,} messages carried home in {self.drain_s:.1f} s")
        await self._all_received()
        await receiver.stop()
        await self._collect_ledgers()

    async def _warm_up(self, syphoning: DrillSyphon) -> None:
        self._say("syphon", "Spark starts, while traffic runs")
        await self.spark.ready()
        await syphoning.warm_up()
        self._say("syphon", "Spark is warm")

    # -- brokers and applications

    async def _start_brokers(self, data: Path) -> None:
        for path in (self.ledgers, self.folder / "log"):
            path.mkdir(parents=True)
        self.primary = self._broker(PRIMARY, data, broker_config.primary_config(self.plan, data / "standby"))
        self.secondary = self._broker(SECONDARY, data, broker_config.secondary_config(self.plan))
        await asyncio.gather(self.primary.serve(), self.secondary.serve())
        ports = f"{PRIMARY} on port {self.primary.ready.port}, {SECONDARY} on port {self.secondary.ready.port}"
        self._say("start", f"two brokers, a process each: {ports}")

    def _broker(self, name: str, data: Path, config: str) -> BrokerProcess:
        made = BrokerProcess(name, data, config, self.folder / "log" / f"broker-{name}.log")
        self.children.append(made)
        return made

    async def _start_applications(self) -> tuple[Application, Application]:
        made = []
        for role in ("receiver", "sender"):
            application = Application(role, self.folder / "log" / f"{role}.log", self._heard)
            self.children.append(application)
            made.append(application)
        receiver, sender = made
        root = self.primary.ready.connection_string
        await asyncio.gather(
            receiver.begin(self._settings("receiver", root)),
            sender.begin(self._settings("sender", await self._sender_string(root))),
        )
        self._say("traffic", f"{self.plan.rate_per_s:,.0f} messages a second; everything works")
        return receiver, sender

    async def _sender_string(self, root: str) -> str:
        """Return the sender's connection string for the primary, with its own key where the fault needs that."""
        if self.plan.drill_fault.settings.get("client") != SENDER_KEY:
            return root
        wanted = {"command": "rule", "namespace": PRIMARY, "name": SENDER_KEY, "rights": ["Send", "Listen"]}
        key = (await self._ask(self.primary, wanted))["primary_key"]
        named = {"SharedAccessKeyName": SENDER_KEY, "SharedAccessKey": key}
        parts = (part.partition("=") for part in root.split(";"))
        return ";".join(f"{name}{equals}{named.get(name, value)}" for name, equals, value in parts)

    def _settings(self, role: str, primary: str) -> dict[str, Any]:
        entities = [
            {
                "name": each.name,
                "is_topic": each.is_topic,
                "subscription": SUBSCRIPTION,
                "messages": self.plan.share(index),
                "seconds": self.plan.traffic_s,
                "list_size": self.plan.list_size,
            }
            for index, each in enumerate(self.plan.entities)
        ]
        return {
            "primary": primary,
            "secondary": self.secondary.ready.connection_string,
            "ledger": str(self.ledgers / role),
            "entities": entities,
            "seed": self.plan.seed,
            "after_s": self.plan.after_s,
            "pairing": self.plan.pairing,
            # The SDK's own retries would only delay the failover, and the drill's receiver makes its receivers anew.
            "client_options": {"retry_total": 0},
        }

    # -- the phases

    async def _outage(self, sending: asyncio.Future[None]) -> None:
        async with self._fault():
            self._tell_all(self.timeline.outage_began(time.time()))
            quiet = self._begin(self._quiet())
            await self._pause(self.plan.outage_s, sending)
            quiet.cancel()
            hook = self.in_outage
            if hook is not None:
                await in_daemon_thread(lambda: hook(self))
        self._tell_all(self.timeline.outage_ended(time.time()))

    async def _quiet(self) -> None:
        work = self.in_the_quiet
        if work is not None:
            await self.spark.run_optional(lambda session: work(session, self.ledgers))

    @asynccontextmanager
    async def _fault(self) -> AsyncIterator[None]:
        if self.plan.fault == "kill":
            self.primary.kill()
            await self.primary.ended()
            yield
            await self.primary.serve()
            return
        fault = self.plan.drill_fault
        target = {"namespace": PRIMARY, "kind": fault.kind or self.plan.fault}
        lasts = {} if fault.seconds_max is None else {"for": self.plan.outage_s}
        answer = await self._ask(self.primary, {"command": "fault", **target, **fault.settings, **lasts})
        yield
        cleared = await self._ask(self.primary, {"command": "clear", **target})
        for each in cleared["faults"]:
            if "late_messages" in each:
                self._say(
                    "RETURN", f"{each['late_messages']:,} messages that came meanwhile appear {each['late']:g} s later"
                )
        for each in answer["faults"]:
            if "diagnostics" in each and (path := Path(each["diagnostics"])).exists():
                self._keep_diagnostics(path)

    def _keep_diagnostics(self, path: Path) -> None:
        """Copy what the primary wrote down when a node of it failed, and say it in the timeline."""
        kept = self.folder / "diagnostics.json"
        shutil.copyfile(path, kept)
        said = json.loads(kept.read_text())
        failed = listed(said["failed"])
        self._say("report", f"node {said['node']} failed, with {failed}: {said['summary']}; restarted from the journal")

    async def _healthy_again(self) -> None:
        """Wait until pings have brought every entity back."""
        deadline = time.monotonic() + RETURN_S
        while not self.timeline.is_healthy:
            if time.monotonic() > deadline:
                sick = [name for name, state in self.timeline.states.items() if state != "healthy"]
                raise DrillFailed(f"{', '.join(sick)} did not return to {PRIMARY} within {RETURN_S:g} s of its return")
            await asyncio.sleep(LOOK_S)

    async def _all_received(self) -> None:
        """Wait until all confirmed messages are received and settled, or no more come."""
        tally = self.timeline.tally
        deadline = time.monotonic() + SETTLED_S
        last, since = (0, 0), time.monotonic()
        while min(tally.received, tally.settled) < tally.confirmed and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_S)
            if (tally.received, tally.settled) != last:
                last, since = (tally.received, tally.settled), time.monotonic()
            # A completion whose answer the fault swallowed is done, and will never be counted here.
            elif time.monotonic() - since > (QUIET_S if tally.received < tally.confirmed else SETTLING_S):
                break
        self._say("receive", f"{tally.received:,} received of {tally.confirmed:,} that were confirmed to their senders")

    async def _collect_ledgers(self) -> None:
        """End the brokers, which write what they still hold to their ledgers, and copy those to the others."""
        for broker in (self.primary, self.secondary):
            await broker.terminate()
            shutil.copytree(broker.ledger, self.ledgers / f"broker-{broker.namespace}")

    # -- tasks and lines

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that ends with the drill at the latest."""
        task = asyncio.create_task(work)
        self.tasks.append(task)
        return task

    async def _pause(self, seconds: float, sending: asyncio.Future[None]) -> None:
        """Wait; a sender that fails ends the drill at once."""
        began = time.monotonic()
        await asyncio.wait({sending}, timeout=seconds)
        if sending.done():
            sending.result()
            await asyncio.sleep(max(0.0, seconds - (time.monotonic() - began)))

    async def _ask(self, broker: BrokerProcess, message: dict[str, Any]) -> dict[str, Any]:
        answer = await in_daemon_thread(lambda: request(broker.data, message))
        if not answer.get("ok"):
            raise DrillFailed(f"the {broker.name} refused a command: {answer.get('error')}")
        return answer

    def _heard(self, fact: dict[str, Any]) -> None:
        self._tell_all(self.timeline.heard(fact))

    def _moved(self, count: int) -> None:
        self._tell_all(self.timeline.moved(time.time(), count))

    def _say(self, kind: Any, text: str) -> None:
        self._tell_all(self.timeline.say(time.time(), kind, text))

    def _tell_all(self, lines: list[TimelineEntry]) -> None:
        for line in lines:
            self.tell(line)


async def _ended(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
