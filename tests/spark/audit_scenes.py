"""Ledgers written by hand for each finding of the audit, and what it must count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .ledger_file import LedgerFile


class Stage:
    """A primary `NAME`, its secondary `NAME-2`, one entity `NAME-orders`, and the books that a scenario asks for."""

    def __init__(self, root: Path, name: str) -> None:
        self.folder = root / name
        self.name = name
        self.entity = f"{name}-orders"
        self.backlog = f"{name}/x-servicebus-transfer/0"

    def client(self, pid: int = 10, **more: Any) -> LedgerFile:
        return LedgerFile(self.folder, "client", self.name, pid=pid, **more)

    def broker(self, **more: Any) -> LedgerFile:
        return LedgerFile(self.folder / "primary", "broker", self.name, pid=20, **more)

    def secondary(self, **more: Any) -> LedgerFile:
        return LedgerFile(self.folder / "secondary", "broker", f"{self.name}-2", pid=30, **more)

    def syphon(self) -> LedgerFile:
        return LedgerFile(self.folder, "syphon", self.name, pid=40)

    def away(self, book: LedgerFile, t: float, mid: str, **more: Any) -> None:
        """A line of a client that diverts."""
        book("divert", t, self.entity, mid, ns=f"{self.name}-2", queue=0, ms=5.0, **more)

    def arrive(self, book: LedgerFile, t: float, mid: str, seq: int, **more: Any) -> None:
        book("send", t, self.entity, mid, seq=seq, **{"cause": "app", **more})

    def fetch(self, book: LedgerFile, t: float, mid: str, seq: int, entity: str | None = None) -> None:
        book("receive", t, entity or self.entity, mid, seq=seq, cause="app")
        book("settle", t + 0.1, entity or self.entity, seq=seq, cause="app")


SCENARIOS: dict[str, tuple[Any, dict[str, int]]] = {}


def scenario(**expected: int) -> Any:
    """What the audit must count; whatever is not named must be 0."""

    def add(write: Any) -> Any:
        SCENARIOS[write.__name__.replace("_", "-")] = (write, expected)
        return write

    return add


@scenario(sent=2, confirmed=2, received=2)
def all_well(s: Stage) -> None:
    with s.client() as client, s.broker() as broker:
        for n, mid in enumerate(["a", "b"]):
            client("send", 10.0 + n, s.entity, mid, ms=4.0)
            s.arrive(broker, 10.0 + n, mid, n + 1)
            s.fetch(broker, 20.0 + n, mid, n + 1)


@scenario(sent=2, confirmed=2, received=1, lost=1)
def lost_at_home(s: Stage) -> None:
    with s.client() as client, s.broker() as broker:
        for n, mid in enumerate(["a", "gone"]):
            client("send", 10.0 + n, s.entity, mid, ms=4.0)
            s.arrive(broker, 10.0 + n, mid, n + 1)
        s.fetch(broker, 20, "a", 1)


@scenario(sent=2, confirmed=2, diverted=2, carried_home=1, received=1, lost=1)
def dropped_by_the_syphon(s: Stage) -> None:
    with s.client() as client, s.broker() as broker, s.secondary() as secondary, s.syphon() as syphon:
        client("state", 9, s.entity, from_="healthy", to="failed over")
        broker("manage", 1, "x")
        for n, mid in enumerate(["a", "gone"]):
            s.away(client, 10.0 + n, mid)
            secondary("send", 10.0 + n, s.backlog, mid, seq=n + 1, cause="app")
            secondary("receive", 30.0, s.backlog, mid, seq=n + 1, cause="syphon")
            secondary("settle", 31.0, s.backlog, seq=n + 1, cause="syphon")
        syphon("move", 30.5, s.entity, "a", seq=1, cause="syphon", queue=0)
        s.arrive(broker, 30.5, "a", 1, cause="syphon")
        s.fetch(broker, 40, "a", 1)


@scenario(sent=1, confirmed=1, diverted=1, lost=1)
def vanished_in_the_backlog(s: Stage) -> None:
    with s.client() as client, s.secondary() as secondary:
        client("state", 9, s.entity, from_="healthy", to="failed over")
        s.away(client, 10, "gone")
        secondary("send", 10, s.backlog, "gone", seq=1, cause="app")


@scenario(sent=3, confirmed=3, diverted=3, still_there=1, dead_lettered=1, expired=1)
def in_the_backlog(s: Stage) -> None:
    with s.client() as client, s.secondary() as secondary:
        client("state", 9, s.entity, from_="healthy", to="failed over")
        for n, mid in enumerate(["there", "dead", "expired"]):
            s.away(client, 10.0 + n, mid)
            secondary("send", 10.0 + n, s.backlog, mid, seq=n + 1, cause="app")
        secondary("receive", 20, s.backlog, "dead", seq=2, cause="syphon")
        secondary("dead-letter", 21, s.backlog, seq=2, cause="syphon")
        secondary("expire", 22, s.backlog, "expired", seq=3)
        secondary("left", 999, s.backlog, "there", seq=1)
        secondary("left", 999, s.backlog + "/$DeadLetterQueue", "dead", seq=2)
        secondary("stock", 999, ms=1.0)


@scenario(sent=1, confirmed=1, diverted=1, carried_home=1, received=2, doubled=1)
def doubled_after_a_lost_answer(s: Stage) -> None:
    with s.client() as client, s.broker() as broker:
        client("send", 10, s.entity, "a", outcome="OperationTimeoutError", ms=2000.0)
        s.away(client, 10.1, "a")
        s.arrive(broker, 9, "a", 1)
        s.arrive(broker, 30, "a", 2, cause="syphon")
        s.fetch(broker, 31, "a", 1)
        s.fetch(broker, 32, "a", 2)


@scenario(sent=1, confirmed=1, diverted=1, carried_home=1, received=1)
def duplicate_answered_by_the_destination(s: Stage) -> None:
    with s.client() as client, s.broker() as broker:
        client("send", 10, s.entity, "a", outcome="OperationTimeoutError", ms=2000.0)
        s.away(client, 10.1, "a")
        s.arrive(broker, 9, "a", 1)
        s.arrive(broker, 30, "a", 2, cause="syphon", outcome="duplicate")
        s.fetch(broker, 31, "a", 1)


@scenario(sent=1, confirmed=1, lost=1)
def a_duplicate_of_what_is_gone(s: Stage) -> None:
    """The SDK sent again what had arrived, and the one that had arrived is gone all the same."""
    with s.client() as client, s.broker() as broker:
        client("send", 10, s.entity, "a", ms=2000.0)
        s.arrive(broker, 9, "a", 1)
        s.arrive(broker, 10, "a", 2, outcome="duplicate")


@scenario(sent=3, confirmed=3, received=2, lost=1)
def one_id_three_times(s: Stage) -> None:
    with s.client() as client, s.broker() as broker:
        for n in range(3):
            client("send", 10.0 + n, s.entity, "same", ms=4.0)
            s.arrive(broker, 10.0 + n, "same", n + 1)
        s.fetch(broker, 20, "same", 1)
        s.fetch(broker, 21, "same", 3)


@scenario(sent=2, confirmed=2, received=1, unknown=1)
def one_id_twice_and_no_broker(s: Stage) -> None:
    with s.client() as client, s.client(11) as receiver:
        client("send", 10, s.entity, "same").__call__("send", 11, s.entity, "same")
        receiver("receive", 20, s.entity, "same", seq=1)


@scenario(sent=3, confirmed=3, received=3)
def a_broker_45_s_behind(s: Stage) -> None:
    """One send took a minute, which tells nothing, and so does one that was tried twice."""
    with s.client() as client, s.broker() as broker:
        for seq, (mid, ms) in enumerate((("a", 4.0), ("slow", 60_000.0), ("b", 4.0)), 1):
            client("send", 100.0 + seq, s.entity, mid, ms=ms)
            s.arrive(broker, 55.0 + seq, mid, seq)
            s.fetch(broker, 155.0 + seq, mid, seq)


@scenario(sent=2, confirmed=2, received=2)
def a_receiver_45_s_behind(s: Stage) -> None:
    with s.client() as client, s.client(pid=11) as receiver:
        for seq, wait in ((1, 0.0), (2, 70.0)):
            client("send", 100.0, s.entity, str(seq), ms=4.0)
            receiver("receive", 55.0 + wait, s.entity, str(seq), seq=seq)


@scenario(sent=1, confirmed=1, received=1, late=1, redelivered=2)
def late_and_redelivered(s: Stage) -> None:
    """The receiver's lines are the broker's deliveries, not more of them."""
    with s.client() as client, s.broker() as broker:
        client("send", 10, s.entity, "a")
        s.arrive(broker, 10, "a", 1)
        for t in (100, 161, 222):
            broker("receive", t, s.entity, "a", seq=1)
            client("receive", t + 0.01, s.entity, "a", seq=1)


@scenario(sent=4, confirmed=4, diverted=1, carried_home=1, received=4, out_of_order=1)
def overtaken(s: Stage) -> None:
    """One came home after its successors; two that overlapped in time have no order."""
    with s.client() as client, s.broker() as broker:
        client("send", 10, s.entity, "one", ms=5.0)
        s.away(client, 11, "two")
        client("send", 20, s.entity, "three", ms=500.0)
        client("send", 20.1, s.entity, "four", ms=500.0)
        for seq, mid in enumerate(["one", "four", "three", "two"], 1):
            s.arrive(broker, 20, mid, seq, cause="syphon" if mid == "two" else "app")
            s.fetch(broker, 30, mid, seq)


@scenario(sent=2, confirmed=2, received=2, doubled=1)
def two_subscriptions(s: Stage) -> None:
    """Each subscription has a copy: that is not doubled; twice in one of them is."""
    with s.client() as client, s.broker() as broker:
        for n, mid in enumerate(["a", "b"]):
            client("send", 10.0 + n, s.entity, mid)
            broker("send", 10.0 + n, s.entity, mid, cause="app")
            for name in ("all", "ALSO"):
                s.fetch(broker, 20.0 + n, mid, n + 1, f"{s.entity}/Subscriptions/{name}")
        s.fetch(broker, 25, "b", 9, f"{s.entity}/Subscriptions/all")


SCENARIOS["two-subscriptions"][1].update(received=3)


@scenario(sent=3, confirmed=3, expired=2, dead_lettered=1, received=1)
def expired_and_dead(s: Stage) -> None:
    with s.client() as client, s.broker() as broker:
        for n, mid in enumerate(["old", "bad", "unwanted"]):
            client("send", 10.0 + n, s.entity, mid)
            broker("send", 10.0 + n, s.entity, mid, seq=n + 1)
        broker("expire", 20, s.entity, "old", seq=1)
        broker("receive", 20, s.entity, "bad", seq=2)
        broker("dead-letter", 21, s.entity, seq=2)
        broker("left", 999, s.entity + "/$DeadLetterQueue", "bad", seq=2)
        broker("expire", 20, s.entity, "unwanted", outcome="no-subscription")


@scenario(sent=1, confirmed=1, received=2, dead_lettered=1)
def a_dead_letter_sent_again(s: Stage) -> None:
    """After repair it comes once more: that is not doubled."""
    with s.client() as client, s.broker() as broker:
        client("send", 10, s.entity, "a")
        s.arrive(broker, 10, "a", 1)
        broker("receive", 20, s.entity, "a", seq=1)
        broker("dead-letter", 21, s.entity, "a", seq=1)
        s.fetch(broker, 30, "a", 1, s.entity + "/$DeadLetterQueue")
        s.arrive(broker, 30, "a", 2, cause="move")
        s.fetch(broker, 40, "a", 2)


@scenario(sent=2, confirmed=2, still_there=1, lost=1)
def still_there_by_the_last_snapshot_only(s: Stage) -> None:
    with s.client() as client, s.broker() as broker:
        for n, mid in enumerate(["there", "gone"]):
            client("send", 10.0 + n, s.entity, mid)
            s.arrive(broker, 10.0 + n, mid, n + 1)
        broker("left", 100, s.entity, "there", seq=1)("left", 100, s.entity, "gone", seq=2)("stock", 100.1, ms=1.0)
        broker("left", 200, s.entity, "there", seq=1)("stock", 200.1, ms=1.0)


@scenario(sent=1, confirmed=1, received=1)
def received_after_the_snapshot(s: Stage) -> None:
    with s.client() as client, s.broker() as broker:
        client("send", 10, s.entity, "a")
        s.arrive(broker, 10, "a", 1)
        broker("left", 20, s.entity, "a", seq=1)("stock", 20.1, ms=1.0)
        s.fetch(broker, 30, "a", 1)


@scenario(sent=2, confirmed=2, received=1, unknown=1)
def nobody_received(s: Stage) -> None:
    """No receiver's and no broker's ledger for the one; the other is known from a receiver."""
    with s.client() as client, s.client(11) as receiver:
        client("send", 10, s.entity, "a")
        client("send", 10, "nobody-received-too", "b")
        receiver("receive", 20, s.entity, "a", seq=1)


SCENARIOS["nobody-received"][1].update(sent=1, confirmed=1, unknown=0)


@scenario(sent=2, confirmed=2, received=1, unknown=1)
def by_the_receivers_alone(s: Stage) -> None:
    """As on Azure: what nobody received may still be there, have expired or be a dead letter."""
    with s.client() as client, s.client(11) as receiver:
        client("send", 10, s.entity, "a")("send", 11, s.entity, "gone")
        receiver("receive", 20, s.entity, "a", seq=1)


@scenario(sent=2, confirmed=2, diverted=2, carried_home=1, received=1, unknown=1)
def taken_from_the_backlog_and_no_broker_at_home(s: Stage) -> None:
    with s.client() as client, s.client(11) as receiver, s.secondary() as secondary:
        client("state", 9, s.entity, from_="healthy", to="failed over")
        for n, mid in enumerate(["a", "queued"]):
            s.away(client, 10.0 + n, mid)
            secondary("send", 10.0 + n, s.backlog, mid, seq=n + 1, cause="app")
            secondary("receive", 30.0, s.backlog, mid, seq=n + 1, cause="syphon")
            secondary("settle", 31.0, s.backlog, seq=n + 1, cause="syphon")
        receiver("receive", 40, s.entity, "a", seq=1)


SCENARIOS["taken-from-the-backlog-and-no-broker-at-home"][1].update(carried_home=0)


@scenario(sent=3, confirmed=3, unknown=2, lost=1)
def a_middle_file_missing(s: Stage) -> None:
    """The missing one may have the end of what the first has sent; what the third has sent it can't."""
    with (
        s.client() as client,
        s.broker(series="m") as first,
        s.broker(number=3, t=60, series="m") as third,
    ):
        for t, mid in ((10, "before"), (50, "meanwhile"), (70, "after")):
            client("send", t, s.entity, mid)
        s.arrive(first.rotated(40), 10, "before", 1)
        s.arrive(third, 70, "after", 3)


@scenario(sent=2, confirmed=2, unknown=1, lost=1)
def the_first_file_missing(s: Stage) -> None:
    with s.client() as client, s.broker(number=2, t=60, series="f") as second:
        for t, mid in ((10, "before"), (70, "after")):
            client("send", t, s.entity, mid)
        s.arrive(second, 70, "after", 2)


@scenario(sent=2, confirmed=2, received=1, unknown=1)
def the_last_file_missing(s: Stage) -> None:
    """Its writer goes on, or was killed: nobody knows what came after the end."""
    with s.client() as client, s.broker(series="l") as broker:
        for n, mid in enumerate(["a", "before"]):
            client("send", 10.0 + n, s.entity, mid)
            s.arrive(broker, 10.0 + n, mid, n + 1)
        s.fetch(broker.rotated(40), 20, "a", 1)


@scenario(sent=2, confirmed=2, unknown=1, lost=1)
def a_file_missing_before_a_restart_of_an_earlier_version(s: Stage) -> None:
    with s.client() as client, s.broker() as broker, s.broker(number=3, t=60) as again:
        for t, mid in ((10, "before"), (70, "after")):
            client("send", t, s.entity, mid)
        s.arrive(broker.rotated(40), 10, "before", 1)
        s.arrive(again, 70, "after", 2)


@scenario(sent=2, confirmed=2, received=1, lost=1)
def rotated_and_nothing_missing(s: Stage) -> None:
    with (
        s.client() as client,
        s.broker(series="r") as first,
        s.broker(number=2, t=40, series="r") as second,
        s.secondary() as old,
        s.secondary(number=2, t=40.01) as newer,
    ):
        old.rotated(40)("manage", 1, "x")
        newer("manage", 41, "x")
        for n, mid in enumerate(["a", "gone"]):
            client("send", 10.0 + n, s.entity, mid)
            s.arrive(first.rotated(40), 10.0 + n, mid, n + 1)
        s.fetch(second, 50, "a", 1)


@scenario(sent=1, confirmed=1, received=1)
def a_clients_file_missing(s: Stage) -> None:
    with s.client(series="c") as first, s.client(number=4, t=60, series="c") as fourth, s.broker() as broker:
        first.rotated(30)("send", 10, s.entity, "a")
        s.arrive(broker, 10, "a", 1)
        s.fetch(broker, 20, "a", 1)
        fourth("ping", 70, s.entity)


@scenario(sent=2, confirmed=2, still_there=0, unknown=1, lost=1)
def left_by_an_older_look_and_gone_in_a_cut(s: Stage) -> None:
    """A kill cut the lines after the first look; what it showed may be in them."""
    with s.client() as client, s.broker() as broker, s.broker(number=2, t=60) as again:
        client("send", 10, s.entity, "a")("send", 70, s.entity, "gone")
        s.arrive(broker, 10, "a", 1)
        broker("left", 20, s.entity, "a", seq=1)("stock", 20.1, ms=1.0).cut()
        s.arrive(again, 70, "gone", 2)
        again("stock", 99, ms=1.0)


@scenario(sent=3, confirmed=3, received=1, unknown=1, lost=1)
def cut_by_a_kill(s: Stage) -> None:
    """What was sent before the cut may be in the lines that are missing; what was sent after it can't."""
    with s.client() as client, s.broker() as broker, s.broker(number=2, t=60) as again:
        client("send", 10, s.entity, "a")("send", 20, s.entity, "before")("send", 70, s.entity, "after")
        s.arrive(broker, 10, "a", 1)
        s.fetch(broker, 11, "a", 1)
        s.arrive(broker, 20, "before", 2)
        broker.cut()
        s.arrive(again, 70, "after", 3)


@scenario(sent=3, confirmed=3, still_there=1, unknown=1, lost=1)
def asked_while_it_runs(s: Stage) -> None:
    with s.client() as client, s.broker() as broker:
        for t, mid in ((10, "there"), (11, "gone"), (200, "later")):
            client("send", t, s.entity, mid)
            s.arrive(broker, t, mid, t)
        broker("left", 100, s.entity, "there", seq=10)("stock", 100, ms=10.0)
        broker.cut()


@scenario(sent=2, confirmed=2, unknown=1, lost=1)
def a_gap(s: Stage) -> None:
    with s.client() as client, s.broker() as broker:
        client("send", 10, s.entity, "before")("send", 70, s.entity, "after")
        broker("send", 10, s.entity, "before", seq=1)
        broker("gap", 50, events=7, ns=None)
        broker("send", 70, s.entity, "after", seq=2)


@scenario(sent=3, confirmed=3, unknown=3, no_id=3)
def without_an_id(s: Stage) -> None:
    with s.client() as client:
        for t in range(3):
            client("send", 10.0 + t, s.entity)
        client("send", 20, s.entity, outcome="amqp:internal-error")


@scenario(sent=2, confirmed=2, no_id=2, received=1, unknown=1)
def without_an_id_but_numbered(s: Stage) -> None:
    """The broker gives it an id, which only its later lines have."""
    with s.client() as client, s.broker() as broker:
        for n in range(2):
            client("send", 10.0 + n, s.entity)
            broker("send", 10.0 + n, s.entity, seq=n + 1)
        broker("receive", 20, s.entity, "made-by-the-broker", seq=1)


@scenario(sent=2, confirmed=2, diverted=2, unknown=2)
def only_clients(s: Stage) -> None:
    with s.client() as client:
        client("ping", 9, s.entity, outcome="amqp:internal-error")
        s.away(client, 10, "a")
        s.away(client, 11, "b")


@scenario(sent=3, confirmed=3, diverted=1, carried_home=1, received=2, lost=1)
def only_brokers(s: Stage) -> None:
    with s.broker() as broker, s.secondary() as secondary:
        s.arrive(broker, 10, "a", 1)
        s.fetch(broker, 20, "a", 1)
        s.arrive(broker, 11, "gone", 2)
        secondary("send", 12, s.backlog, "c", seq=1, cause="app")
        secondary("receive", 30, s.backlog, "c", seq=1, cause="syphon")("settle", 31, s.backlog, seq=1, cause="syphon")
        s.arrive(broker, 31, "c", 3, cause="syphon")
        s.fetch(broker, 32, "c", 3)


@scenario(sent=1)
def refused_to_the_caller(s: Stage) -> None:
    with s.client() as client, s.broker() as broker:
        client("send", 10, s.entity, "a", outcome="OperationTimeoutError")
        broker("manage", 10, "x")


@scenario(sent=1, confirmed=1, diverted=1, carried_home=1, received=1)
def a_rotated_file_that_names_no_primary(s: Stage) -> None:
    with s.client() as first, s.client(number=2) as second, s.broker() as broker:
        first("state", 9, s.entity, from_="healthy", to="failed over")
        s.away(second, 10, "a")
        s.arrive(broker, 30, "a", 1, cause="syphon")
        s.fetch(broker, 40, "a", 1)
