"""A drill with a thief: at the end of the outage somebody takes one message out of the backlog and is gone with it.

He waits until as many were sent as are planned, so that the outage lasts longer than the plan says: the sender goes on.

`python -m tests.drill.thief FOLDER`: the drill must end with exit code 1 and name the message.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from azure.servicebus import ServiceBusClient

from pairbus.commands.drill import run
from pairbus.drill.plan import DrillPlan
from pairbus.drill.rehearsal import Rehearsal
from pairbus.pairing.backlog import backlog_queues


def steal(rehearsal: Rehearsal) -> None:
    while rehearsal.timeline.tally.confirmed < rehearsal.plan.messages:
        time.sleep(0.1)
    with ServiceBusClient.from_connection_string(rehearsal.secondary.ready.connection_string) as client:
        for path in backlog_queues.paths("contoso", rehearsal.plan.backlog_queues):
            with client.get_queue_receiver(path) as receiver:
                found = receiver.receive_messages(2, max_wait_time=5)
                if len(found) == 2:
                    # the first to be diverted may be in the primary as well, whose answer was lost in the outage
                    receiver.abandon_message(found[0])
                    receiver.complete_message(found[1])
                    (rehearsal.folder.parent / "stolen").write_text(str(found[1].message_id))
                    return
    raise AssertionError("no backlog queue has two messages")


if __name__ == "__main__":
    plan = DrillPlan(400, 5.0, 2, engine="in-process", healthy_s=4.0, after_s=3.0)
    sys.exit(run(plan, Path(sys.argv[1]), as_json=True, in_outage=steal))
