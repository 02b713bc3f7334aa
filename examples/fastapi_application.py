"""A web application that takes orders through an outage: FastAPI, with a client that is paired while the app runs.

`app` is the application: one paired client and one open sender in its lifespan, shared by all requests. On your own
namespaces: `PAIRBUS_PRIMARY=… PAIRBUS_SECONDARY=… uvicorn fastapi_application:app`. Run as a program it demonstrates
that offline: embedded namespaces, an outage, requests throughout. The exit code is 0 only if every request was answered
well and every order is in a queue.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.exceptions import ServiceBusError
from fastapi import FastAPI, HTTPException, Request

from pairbus.aio import EntityState, ServiceBusClient
from pairbus.broker import serve
from pairbus.testing import fault

REQUESTS = 30


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Pairing does not ask the primary for anything: the application starts in the middle of an outage, too."""
    client = await ServiceBusClient.paired(
        os.environ["PAIRBUS_PRIMARY"],
        os.environ["PAIRBUS_SECONDARY"],
        ca_file=os.environ.get("PAIRBUS_CA_FILE"),
        primary_name=os.environ.get("PAIRBUS_PRIMARY_NAME"),
        send_timeout=4,  # a visitor waits for no longer than that
        failover_interval=0,  # and sees no error
        ping_primary_interval=1,
        backlog_queue_count=2,
    )
    async with client, client.get_queue_sender("orders") as sender:
        app.state.client, app.state.sender = client, sender
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{number}", status_code=202)
async def place(number: int, request: Request) -> dict[str, Any]:
    try:
        await request.app.state.sender.send_messages(ServiceBusMessage(f"order {number}", message_id=str(number)))
    except ServiceBusError as error:
        # Neither namespace took it: only now is the visitor told.
        raise HTTPException(503, "orders can't be taken at the moment") from error
    return {"order": number, "taken": True}


@app.get("/health")
async def health(request: Request) -> dict[str, Any]:
    states = {entity: state.value for entity, state in request.app.state.client.states().items()}
    return {"taking orders": True, "entities": states}


# -- the demonstration

started = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - started:6.2f} s  {text}", flush=True)


async def visit(web: httpx.AsyncClient, numbers: range) -> bool:
    answers = await asyncio.gather(*(web.post(f"/orders/{number}") for number in numbers))
    codes = sorted({answer.status_code for answer in answers})
    health = (await web.get("/health")).json()["entities"]
    say(f"POST /orders/{numbers.start} … {numbers.stop - 1}: {len(answers)} answers {codes}; GET /health: {health}")
    return codes == [202]


async def count(connection_string: str, ca_file: str, queues: list[str]) -> int:
    async with ServiceBusAdministrationClient.from_connection_string(
        connection_string, connection_verify=ca_file
    ) as admin:
        found = [await admin.get_queue_runtime_properties(queue) for queue in queues]
    return sum(each.active_message_count or 0 for each in found)


async def demonstrate(primary: str, secondary: str, ca_file: str, data: str) -> bool:
    os.environ |= {
        "PAIRBUS_PRIMARY": primary,
        "PAIRBUS_SECONDARY": secondary,
        "PAIRBUS_CA_FILE": ca_file,
        "PAIRBUS_PRIMARY_NAME": "contoso",
    }
    async with ServiceBusAdministrationClient.from_connection_string(primary, connection_verify=ca_file) as admin:
        await admin.create_queue("orders")
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as web,
    ):
        say("the application runs")
        good = [await visit(web, range(10))]
        async with fault(data, "unreachable", namespace="contoso"):
            say("contoso is gone")
            good.append(await visit(web, range(10, 20)))
        say("contoso is back")
        while app.state.client.state("orders") is not EntityState.HEALTHY:
            await asyncio.sleep(0.05)
        good.append(await visit(web, range(20, REQUESTS)))
    backlog = [f"contoso/x-servicebus-transfer/{index}" for index in range(2)]
    home, waiting = await count(primary, ca_file, ["orders"]), await count(secondary, ca_file, backlog)
    say(f"{home} orders are in contoso, {waiting} wait in contoso2 for a syphon")
    return all(good) and home == 20 and waiting == 10


async def main() -> int:
    with tempfile.TemporaryDirectory(prefix="pairbus-") as data:
        async with serve("contoso", "contoso2", data=data) as broker:
            primary, secondary = broker.namespaces["contoso"], broker.namespaces["contoso2"]
            good = await demonstrate(primary.connection_string, secondary.connection_string, primary.ca_file, data)
    print("PASSED" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
