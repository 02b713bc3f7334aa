"""A third small story: a broker whose storage stalled, so that one of its messages is in the standby folder alone.

`play` leaves both folders; `examine` opens them, under whatever names, and returns what is in them. By public names
alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pairbus.broker import Broker, serve_sync
from pairbus.testing import ManualClock, fault
from pairbus.wire.sync import WireClient
from tests.frozen.feature_story import message
from tests.message_view import View
from tests.waiting import until

CONFIG = Path(__file__).with_name("standby.toml")
DATA, STANDBY = "broker", "standby"


@contextmanager
def served(folder: Path, standby: Path | None, clock: ManualClock) -> Iterator[tuple[Broker, WireClient]]:
    with (
        serve_sync("contoso", data=folder / DATA, standby=standby, config=CONFIG, clock=clock) as broker,
        WireClient.from_connection_string(broker.namespaces["contoso"].connection_string) as client,
    ):
        yield broker, client


def play(folder: Path) -> float:
    """Leave a data folder and a standby folder behind; return the time at which they were left."""
    clock = ManualClock()
    standby = folder / STANDBY
    with served(folder, standby, clock) as (broker, client):
        sender = client.sender("orders")
        sender.send(message("before"))
        with fault(broker, "storage-stall"):
            sender.send(message("hung"))
            sender.send(message("meanwhile"))
        until(lambda: max(segments(folder / DATA)) > max(segments(standby)))
        sender.send(message("after"))
    return clock()


def segments(folder: Path) -> list[str]:
    return [each.name for each in folder.rglob("*.segment")]


def examine(folder: Path, now: float, standby: Path | None) -> list[str]:
    """Open the folders at the time at which they were left, and return what is in them, and a new message."""
    with served(folder, standby, ManualClock(now)) as (_, client):
        client.sender("orders").send(message("new"))
        return [str(View(each).properties.message_id) for each in client.peek("orders", 1, 100)]
