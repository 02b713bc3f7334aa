"""The table of combinations: fault × interval × patience × retries × time, sync and async, each with its own client.

No caller waits beyond its time by more than the machine's noise, and none sees a failure while either namespace takes
messages, where the backlog is next (P13, P17, P19). All combinations of one fault and API send at once, in one outage,
after enough healthy sends for adaptive patience to have learned; several callers share each sender.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

import pairbus
import pairbus.aio
from pairbus.broker import Broker, serve_sync
from pairbus.pairing.errors import NoTimeLeftError
from pairbus.pairing.routing.patience import ANSWERS_MIN
from pairbus.testing import fault

from ..cpu_wait import ThreadCpuWait

pytestmark = pytest.mark.slow
FAULTS = ("unreachable", "black-hole", "lost-answer")
NOISE_S = 1.0
SENDS = 2
CALLERS = 3
#: Before the fault: the first opens the link and is not measured, and adaptive patience needs twenty that are.
LESSONS = ANSWERS_MIN + 4
#: So many clients at once: each opens links of its own, and they share a machine.
AT_ONCE = 12


class Case(NamedTuple):
    interval: float
    patience: Any
    retry_total: int
    timeout: float
    while_suspect: str = "raise"

    @property
    def is_spared(self) -> bool:
        """No caller sees a failure of the primary."""
        return self.interval == 0 or self.while_suspect == "divert"


PATIENCES = ("half", 0.5, "adaptive")
CASES = [
    *(Case(*each) for each in itertools.product((0, 60), PATIENCES, (0, 3), (1.5, 3.0))),
    *(Case(*each, "divert") for each in itertools.product((60,), PATIENCES, (0, 3), (1.5, 3.0))),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with serve_sync("contoso", "backup", data=tmp_path_factory.mktemp("table")) as broker:
        server = broker.namespaces["contoso"]
        with ServiceBusAdministrationClient.from_connection_string(
            server.connection_string, connection_verify=server.ca_file
        ) as admin:
            admin.create_queue("orders")
        yield broker


def options(broker: Broker, case: Case) -> dict[str, Any]:
    backup = broker.namespaces["backup"]
    return {
        "primary": broker.namespaces["contoso"].connection_string,
        "secondary": backup.connection_string,
        "ca_file": backup.ca_file,
        "primary_name": "contoso",
        "backlog_queue_count": 2,
        "failover_interval": case.interval,
        "primary_patience": case.patience,
        "while_suspect": case.while_suspect,
        "client_options": {"retry_total": case.retry_total},
    }


def check_lessons(case: Case, client: Any) -> None:
    """Where patience is adaptive, and counts, it has been learned."""
    if case.patience == "adaptive" and case.is_spared:
        patience = client._pairing.monitor.coordinator._entities["orders"].patience
        assert patience.silence_s < math.inf, patience


def judge(case: Case, took_s: float, error: Exception | None, no_cpu_s: float) -> str:
    """`no_cpu_s`: how long the caller's own thread was ready during this call and had no CPU: nobody's failure."""
    if took_s > case.timeout + NOISE_S + no_cpu_s:
        return f"{case}: {took_s:.2f} s"
    if error is None or not case.is_spared:
        return ""
    is_noise = isinstance(error, NoTimeLeftError) and no_cpu_s > case.timeout / 4
    return "" if is_noise else f"{case}: {error!r}"


async def send_async(broker: Broker, kind: str, cases: list[Case]) -> list[str]:
    clients = [await pairbus.aio.ServiceBusClient.paired(**options(broker, case)) for case in cases]
    senders = [client.get_queue_sender("orders") for client in clients]
    found: list[str] = []

    async def send(case: Case, sender: Any) -> None:
        for _ in range(SENDS):
            began, waited, error = time.monotonic(), ThreadCpuWait(), None
            try:
                await sender.send_messages(ServiceBusMessage("x"), timeout=case.timeout)
            except Exception as raised:
                error = raised
            found.append(judge(case, time.monotonic() - began, error, waited.seconds))

    async def learn(sender: Any) -> None:
        for _ in range(LESSONS):
            await sender.send_messages(ServiceBusMessage("x"))

    try:
        await asyncio.gather(*(learn(sender) for sender in senders))
        for case, client in zip(cases, clients, strict=True):
            check_lessons(case, client)
        async with fault(broker, kind, namespace="contoso"):
            await asyncio.gather(*(send(*each) for each in [*zip(cases, senders, strict=True)] * CALLERS))
    finally:
        await asyncio.gather(*(client.close() for client in clients))
    return [each for each in found if each]


def send_sync(broker: Broker, kind: str, cases: list[Case]) -> list[str]:
    clients = [pairbus.ServiceBusClient.paired(**options(broker, case)) for case in cases]
    senders = [client.get_queue_sender("orders") for client in clients]

    def send(case: Case, sender: Any) -> list[str]:
        found = []
        for _ in range(SENDS):
            began, waited, error = time.monotonic(), ThreadCpuWait(), None
            try:
                sender.send_messages(ServiceBusMessage("x"), timeout=case.timeout)
            except Exception as raised:
                error = raised
            found.append(judge(case, time.monotonic() - began, error, waited.seconds))
        return found

    def learn(sender: Any) -> None:
        for _ in range(LESSONS):
            sender.send_messages(ServiceBusMessage("x"))

    with ThreadPoolExecutor(CALLERS * len(cases)) as pool:
        try:
            list(pool.map(learn, senders))
            for case, client in zip(cases, clients, strict=True):
                check_lessons(case, client)
            with fault(broker, kind, namespace="contoso"):
                found = list(itertools.chain(*pool.map(send, cases * CALLERS, senders * CALLERS)))
        finally:
            list(pool.map(lambda client: client.close(), clients))
    return [each for each in found if each]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("api", ["sync", "async"])
def test_p19_no_combination_keeps_a_caller_waiting_or_shows_it_a_failure(broker: Broker, kind: str, api: str) -> None:
    for first in range(0, len(CASES), AT_ONCE):
        cases = CASES[first : first + AT_ONCE]
        found = send_sync(broker, kind, cases) if api == "sync" else asyncio.run(send_async(broker, kind, cases))
        assert found == []
