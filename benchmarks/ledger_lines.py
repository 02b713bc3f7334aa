"""Ledgers of any size for the table `reports`: senders, a receiver, a syphon and two brokers through one outage.

Written line by line as docs/reference/ledger.md has them, rotated as the real ones are, and the same for the same
arguments, whichever checkout reads them. What is planted in them is known: messages that are lost, and doubled ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self, TextIO

START_T = 1_700_000_000.0
QUEUES = ("orders", "bills", "parcels")
TOPIC, SUBSCRIPTIONS = "news", ("all", "also")
PRIMARY, SECONDARY = "contoso", "backup"
BACKLOG = f"{PRIMARY}/x-servicebus-transfer"
FILE_BYTES = 64 * 1024 * 1024
SENDERS = 20
#: Of the messages, those sent in the middle tenth of the time find the primary away.
OUTAGE = (0.45, 0.55)
LOST_EVERY, DOUBLED_EVERY = 20_011, 15_013
MESSAGES_A_SECOND = 1000


@dataclass(frozen=True, slots=True)
class Written:
    lines: int
    messages: int
    lost: int
    doubled: int


class Book:
    """The ledger of one process."""

    def __init__(self, folder: Path, writer: str, pid: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._name = folder, f"{writer}-{pid}"
        self._first = f'{{"schema":1,"writer":"{writer}","pid":{pid},"t":%.6f,"pairbus":"0.1.0"}}\n'
        self._t = START_T
        self._number = self.lines = 0
        self._file = self._next()

    def _next(self) -> TextIO:
        self._number += 1
        self._events = 0
        file = (self._folder / f"{self._name}-{self._number:06d}.jsonl").open("w", encoding="ascii")
        self._size = file.write(self._first % self._t)
        self.lines += 1
        return file

    def _write(self, line: str) -> None:
        self._size += self._file.write(line)
        self.lines += 1

    def add(self, kind: str, t: float, rest: str) -> None:
        if self._size >= FILE_BYTES:
            self.end("rotated")
            self._file = self._next()
        self._t = t
        self._events += 1
        self._write(f'{{"t":{t:.6f},"kind":"{kind}",{rest}}}\n')

    def end(self, reason: str) -> None:
        self._write(f'{{"t":{self._t:.6f},"kind":"end","reason":"{reason}","events":{self._events}}}\n')
        self._file.close()


class _Books:
    def __init__(self, folder: Path, senders: int) -> None:
        self.senders = [Book(folder / "clients", "client", 100 + n) for n in range(senders)]
        self.receiver = Book(folder / "clients", "client", 99)
        self.syphon = Book(folder / "clients", "syphon", 98)
        self.primary = Book(folder / "primary", "broker", 11)
        self.secondary = Book(folder / "secondary", "broker", 12)

    @property
    def all(self) -> list[Book]:
        return [*self.senders, self.receiver, self.syphon, self.primary, self.secondary]

    @property
    def lines(self) -> int:
        return sum(book.lines for book in self.all)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for book in self.all:
            book.end("closed")


def write(folder: Path, lines: int, *, skewed: bool = False) -> Written:
    """Write about so many lines. `skewed`: one sender sends nineteen messages of twenty, all to one queue."""
    messages = max(20, round(lines / (5.4 if skewed else 6.15)))
    lost = doubled = 0
    numbers: dict[str, int] = {}
    with _Books(folder, SENDERS) as books:
        for index in range(messages):
            share = index / messages
            sender = books.senders[0 if skewed and index % 20 else index % SENDERS]
            entity = QUEUES[0] if skewed and index % 20 else (*QUEUES, TOPIC)[index % 4]
            t = START_T + index / MESSAGES_A_SECOND
            mid = f"{index * 2654435761 % 2**32:08x}-{index:012x}-4a1e-bd3c"
            is_lost, is_double = index % LOST_EVERY == LOST_EVERY - 1, index % DOUBLED_EVERY == DOUBLED_EVERY - 1
            lost += is_lost
            if is_double and not is_lost:  # a copy more in each subscription
                doubled += len(SUBSCRIPTIONS) if entity == TOPIC else 1
            if OUTAGE[0] <= share < OUTAGE[1]:
                _divert(books, sender, entity, mid, t, index, numbers)
                home_t, cause = t + messages / MESSAGES_A_SECOND / 5, "syphon"
            else:
                size = f'"bytes":{900 + index % 300},"units":1'
                sender.add("send", t, f'"ns":"{PRIMARY}","entity":"{entity}","mid":"{mid}",{size},"outcome":"ok",'
                                      f'"ms":{2 + index % 7}.250,"cause":"app"')  # fmt: skip
                home_t, cause = t, "app"
            _arrive(books, entity, mid, home_t, cause, numbers, 0 if is_lost else 2 if is_double else 1)
        total = books.lines
    return Written(total + len(books.all), messages, lost, doubled)


def _divert(books: _Books, sender: Book, entity: str, mid: str, t: float, index: int, numbers: dict[str, int]) -> None:
    """The first of each sender fails and changes the state; all go the long way."""
    key = f"out {id(sender)} {entity}"
    if key not in numbers:
        numbers[key] = 1
        sender.add("send", t, f'"ns":"{PRIMARY}","entity":"{entity}","mid":"{mid}","bytes":1000,"units":1,'
                              '"outcome":"OperationTimeoutError","ms":2000.000,"cause":"app"')  # fmt: skip
        sender.add("state", t, f'"ns":"{PRIMARY}","entity":"{entity}","from":"healthy","to":"failed over"')
    size = '"bytes":1100,"units":1'
    queue = index % 10
    numbers[f"b{queue}"] = seq = numbers.get(f"b{queue}", 0) + 1
    sender.add("divert", t + 0.01, f'"ns":"{SECONDARY}","entity":"{entity}","mid":"{mid}",{size},"outcome":"ok",'
                                   f'"ms":5.000,"cause":"app","queue":{queue}')  # fmt: skip
    where = f'"ns":"{SECONDARY}","entity":"{BACKLOG}/{queue}"'
    books.secondary.add("send", t + 0.01, f'{where},"mid":"{mid}","seq":{seq},{size},"outcome":"ok","cause":"app"')
    books.secondary.add("receive", t + 60, f'{where},"mid":"{mid}","seq":{seq},{size},"outcome":"ok","cause":"syphon"')
    books.secondary.add("settle", t + 61, f'{where},"seq":{seq},"outcome":"ok","cause":"syphon"')
    books.syphon.add("move", t + 60.5, f'"ns":"{PRIMARY}","entity":"{entity}","mid":"{mid}","seq":{seq},{size},'
                                       f'"outcome":"ok","ms":3.000,"cause":"syphon","queue":{queue}')  # fmt: skip


def _arrive(books: _Books, entity: str, mid: str, t: float, cause: str, numbers: dict[str, int], copies: int) -> None:
    """The primary takes it, delivers it so often, and it is settled."""
    size = '"bytes":1000,"units":1'
    is_topic = entity == TOPIC
    number = "" if is_topic else f',"seq":{numbers.get(entity, 0) + 1}'
    books.primary.add("send", t, f'"ns":"{PRIMARY}","entity":"{entity}","mid":"{mid}"{number},{size},"outcome":"ok",'
                                 f'"ms":0.400,"cause":"{cause}"')  # fmt: skip
    for copy in range(max(1, copies)):
        for path in [f"{entity}/Subscriptions/{name}" for name in SUBSCRIPTIONS] if is_topic else [entity]:
            numbers[path] = seq = numbers.get(path, 0) + 1
            if copies:
                where = f'"ns":"{PRIMARY}","entity":"{path}"'
                told = f'{where},"mid":"{mid}","seq":{seq},{size},"outcome":"ok","cause":"app"'
                books.primary.add("receive", t + 0.5 + copy, told)
                books.receiver.add("receive", t + 0.501 + copy, told)
                books.primary.add("settle", t + 0.6 + copy, f'{where},"seq":{seq},"outcome":"ok","cause":"app"')
