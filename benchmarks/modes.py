"""Table `modes`: what durability and the ledger cost, as ratios to the default."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from benchmarks.amqp_driver import AmqpDriver, create_queues
from benchmarks.brokers import CASES, Contender, steps_for
from benchmarks.figures import Column, Row, Table
from benchmarks.rounds import Progress, run_rounds
from benchmarks.servers import PairbusServer
from benchmarks.settings import Settings

NAME = "modes"
DEFAULT = "default"
MODES = (
    (DEFAULT, (), "sends synced before the confirm, settlements within 100 ms: a power cut may redeliver"),
    ("strict", ("--durability", "strict"), "settlements synced before their answer too"),
    ("none", ("--durability", "none"), "nothing synced: a power cut may lose what the kernel had not written"),
    ("default + ledger", ("--ledger",), "as default, an event per message to the ledger"),
)
COLUMNS = (
    Column("rate", "messages", "rate"),
    Column("ratio", "÷ default", "ratio"),
    Column("server_us", "server CPU", "us"),
    Column("cpu_ratio", "CPU ÷ default", "ratio"),
    Column("others", "others' CPU", "share"),
)


async def measure(settings: Settings) -> tuple[Table, list[str]]:
    table = Table(NAME, "Durability modes and the ledger", COLUMNS)
    progress = Progress(NAME)
    progress.show("starting the brokers", always=True)
    contenders: list[Contender] = []
    with ExitStack() as stack:
        try:
            for who, options, durability in MODES:
                server = PairbusServer(settings.data / ("mode-" + who.replace(" + ", "-")), *options)
                stack.enter_context(server)
                await create_queues(server, ["bench"])
                contenders.append(Contender(who, durability, server, await AmqpDriver.to_pairbus(server, "bench")))
            outcome = await run_rounds(steps_for(contenders, settings, NAME), settings.rounds, progress)
        finally:
            for contender in contenders:
                await contender.driver.close()
            await asyncio.sleep(0)
    for case in CASES:
        for who, _, durability in MODES:
            metrics = dict(outcome.series.get((case, who), {}))
            default = outcome.series.get((case, DEFAULT), {})
            if not metrics:
                continue
            if default and who != DEFAULT:
                metrics["ratio"] = metrics["rate"].over(default["rate"])
                metrics["cpu_ratio"] = metrics["server_us"].over(default["server_us"])
            table.rows.append(Row(case, who, metrics, label=durability))
    return table, outcome.failures
