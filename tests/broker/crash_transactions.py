"""A load of transactions: so many messages, carried between entities by "complete there and send here" for ever.

from            to              through
left            right, news     left
right           left            right
news/all        right, left     news
left's dead     left            left; `left` dead-letters some, in transactions that carry others

Whatever is killed when: every message is in exactly one place. One that is in two or in none is half a transaction.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from pairbus.wire import WireClient
from pairbus.wire.sync import WireClient as SyncWireClient
from pairbus.wire.transactions import via_of
from tests.message_view import View
from tests.simulation.checker import Checker
from tests.simulation.history import CONFIRMED, History, Inventory

from .crash_load import (
    Proof,
    Worker,
    Workers,
    admin_client,
    path_of,
    payload_of,
    wire_client,
)
from .crash_traffic import SMALL_SEGMENTS

LOCK: Final = datetime.timedelta(seconds=10)
COUNT: Final = 80
IDS: Final = frozenset(f"carried-{number}" for number in range(COUNT))


def create_places(connection_string: str, ca_file: str, history: History) -> None:
    plain: dict[str, Any] = {"lock_duration": LOCK, "max_delivery_count": 2000}
    with admin_client(connection_string, ca_file) as admin:
        admin.create_queue("left", **plain)
        admin.create_queue("right", **plain)
        admin.create_topic("news")
        admin.create_subscription("news", "all", **plain)
    with SyncWireClient.from_connection_string(connection_string) as client:
        client.sender("left").send_batch([payload_of(id) for id in sorted(IDS)])


def carry(home: str, *targets: str, is_dead: bool = False) -> Callable[[Worker], Awaitable[None]]:
    """Complete some messages here and send them there, in one; now and then change one's mind."""
    path = path_of(home, is_dead)

    async def run(worker: Worker) -> None:
        async with wire_client(worker) as client:
            via = via_of(path)
            receiver = await client.receiver(path)
            senders = [await client.sender(target, via=None if target == via else via) for target in targets]
            while await worker.proceed_async():
                messages = await receiver.receive(worker.rng.choice((1, 5, 20)), 0.1)
                if not messages:
                    worker.successes += 1
                    continue
                worker.rng.shuffle(messages)
                dead = messages[:1] if home == "left" and not is_dead and worker.rng.random() < 0.3 else []
                await _transact(worker, client, via, receiver, worker.rng.choice(senders), messages, dead)

    return run


async def _transact(
    worker: Worker,
    client: WireClient,
    via: str,
    receiver: Any,
    sender: Any,
    messages: Sequence[Any],
    dead: Sequence[Any],
) -> None:
    transaction = await client.transaction(via)
    carried = [message for message in messages if message not in dead]
    if dead:
        await receiver.dead_letter(dead, "carried away", transaction=transaction)
    if carried:
        await receiver.complete(carried, transaction=transaction)
        payloads = [payload_of(View(message.payload).properties.message_id) for message in carried]
        errors = [error for error in await sender.send_many(payloads, transaction=transaction) if error is not None]
        if errors:
            raise errors[0]
    if worker.rng.random() < 0.1:
        await transaction.roll_back()
        await receiver.release(messages)
        return
    with worker.sending(worker.new_ids(1), "transactions"):
        await transaction.commit()
    worker.load.depth["transactions"] = 0


class Conservation(Checker):
    """Holds inventories against the one rule: every message is in one place."""

    def fold(self, events: Sequence[tuple[Any, ...]]) -> None:
        for event in events:
            if event[0] == "killed":
                self.totals.kills += 1
            elif event[0] == "sent" and CONFIRMED in event[1:]:
                self.totals.confirmed += 1
            elif event[0] == "audited":
                self.totals.audits += 1
                self._judge(event[1])

    def _judge(self, inventory: Inventory) -> None:
        found = Counter(look.id for look in inventory.looks)
        for id in sorted(IDS | found.keys()):
            if found[id] != 1 or id not in IDS:
                places = [f"{look.home} ({look.state})" for look in inventory.looks if look.id == id]
                self.problems.append(f"{id} is in {len(places)} places: {', '.join(places) or 'none'}")


def workers() -> Workers:
    return {}, {
        "from-left": carry("left", "right", "news"),
        "from-left-too": carry("left", "right"),
        "from-right": carry("right", "left"),
        "from-news": carry("news/all", "right", "left"),
        "from-dead": carry("left", "left", is_dead=True),
    }


TRANSACTIONS: Final = Proof(Conservation, create_places, workers, (0.1, 1.0), SMALL_SEGMENTS)
