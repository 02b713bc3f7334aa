"""The process that forks, for test_fork_proof.py: told what to do on stdin, it says on stdout what each send gave."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from azure.servicebus import ServiceBusMessage

Work = dict[str, Any]


def say(work: Work, who: str, what: str, send: Callable[[ServiceBusMessage], Any]) -> None:
    message_id = f"{work['prefix']}-{who}-{what}".replace(" ", "-")
    begun = time.monotonic()
    error = None
    try:
        send(ServiceBusMessage("x", message_id=message_id))
    except Exception as raised:
        error = type(raised).__name__
        traceback.print_exc()
    line = {"who": who, "what": what, "id": message_id, "error": error, "elapsed": time.monotonic() - begun}
    os.write(1, (json.dumps(line) + "\n").encode())


def in_sync(work: Work) -> None:
    from pairbus import ServiceBusClient

    def make() -> Any:
        return ServiceBusClient.paired(
            work["primary"], work["secondary"], secondary_ca_file=work["ca_file"], **work["options"]
        )

    client = make()
    sender = client.get_queue_sender(work["queue"])
    if work["when"] == "failed-over":
        client.force_failover(work["queue"], hold=False)
    say(work, "parent", "before", sender.send_messages)
    child = os.fork()
    if not child:
        say(work, "child", "inherited sender", sender.send_messages)
        say(work, "child", "inherited client", lambda m: client.get_queue_sender(work["queue"]).send_messages(m))
        with make() as own, own.get_queue_sender(work["queue"]) as own_sender:
            say(work, "child", "own client", own_sender.send_messages)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"
    say(work, "parent", "after", sender.send_messages)
    client.close()


def in_aio(work: Work) -> None:
    """A loop can't be forked while it runs: the parent's stands still meanwhile, and the child makes one of its own."""
    from pairbus.aio import ServiceBusClient

    def make() -> Any:
        return ServiceBusClient.paired(
            work["primary"], work["secondary"], secondary_ca_file=work["ca_file"], **work["options"]
        )

    loop = asyncio.new_event_loop()
    run = loop.run_until_complete
    client = run(make())

    async def opened() -> Any:
        return client.get_queue_sender(work["queue"])

    sender = run(opened())
    if work["when"] == "failed-over":

        async def fail_over() -> None:
            client.force_failover(work["queue"], hold=False)

        run(fail_over())
    say(work, "parent", "before", lambda m: run(sender.send_messages(m)))
    child = os.fork()
    if not child:
        run_here = asyncio.new_event_loop().run_until_complete

        async def inherited(message: ServiceBusMessage) -> None:
            await client.get_queue_sender(work["queue"]).send_messages(message)

        async def own(message: ServiceBusMessage) -> None:
            async with await make() as made, made.get_queue_sender(work["queue"]) as own_sender:
                await own_sender.send_messages(message)

        say(work, "child", "inherited sender", lambda m: run_here(sender.send_messages(m)))
        say(work, "child", "inherited client", lambda m: run_here(inherited(m)))
        say(work, "child", "own client", lambda m: run_here(own(m)))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"
    say(work, "parent", "after", lambda m: run(sender.send_messages(m)))
    run(client.close())


if __name__ == "__main__":
    given = json.load(sys.stdin)
    (in_sync if given["api"] == "sync" else in_aio)(given)
