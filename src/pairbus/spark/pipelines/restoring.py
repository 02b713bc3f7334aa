"""The sink of `pairbus restore`: rows become messages, no faster than allowed, and slower where a destination is busy.

The connector's writer, which sends as fast as it can and fails on the first refusal, with `syphon.rate` before it. Each
task keeps to its share of the ceiling and knows nothing of the others; `shares` says how many tasks there are. Tasks on
the driver's machine say on its noticeboard what was confirmed, as it is, and end when it is asked to stop or taken
down; Spark lets a task's Python go on for seconds after it has cancelled the task.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pairbus.syphon.destinations import HALT_S, Verdict, verdict_of
from pairbus.syphon.rate import Rate
from pairbus.wire.errors import WireError

from ..noticeboard import STOP, Noticeboard
from ..options import Address
from ..schema import Outgoing
from ..writer import NotSent, ServiceBusWriter, attempt

NAME: Final = "servicebus-restored"
#: The sheet of the noticeboard.
SENT: Final = "sent"
AT_ONCE: Final = 1000
#: A task sends more than that in a second; a lower ceiling needs no second one.
SHARE_PER_S: Final = 2000.0
SHARES_MAX: Final = 64
#: A destination that says busy for so long, and takes nothing, ends the restore.
PATIENCE_S: Final = 300.0

T = TypeVar("T")


def shares(ceiling: float) -> int:
    """Over how many tasks a ceiling is spread."""
    return min(SHARES_MAX, math.ceil(ceiling / SHARE_PER_S))


@dataclass(frozen=True)
class Restoring:
    """`rate_max`: messages a second of one task. `board`: the folder of the driver's noticeboard. As text through
    Spark's options."""

    address: Address
    entity: str | None = None
    rate_max: float | None = None
    board: str | None = None

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Restoring:
        found = json.loads(text)
        return cls(**{**found, "address": Address(**found["address"])})


class PacedWriter(ServiceBusWriter):
    def __init__(self, restoring: Restoring) -> None:
        super().__init__(restoring.address, restoring.entity)
        self._rate = Rate(restoring.rate_max)
        self._board = None if restoring.board is None else Noticeboard(restoring.board)

    def _send(self, messages: dict[str, list[Outgoing]], batch: pa.RecordBatch) -> int:
        for target, found in messages.items():
            send_paced(
                partial(self._attempt, target), target, found, self._rate, partial(self._tell, target), self._is_over
            )
        return sum(map(len, messages.values()))

    def _attempt(self, target: str, messages: Sequence[Outgoing]) -> Sequence[WireError | None]:
        try:
            return attempt(self._address, target, messages)
        except WireError as error:  # the link was not opened: none of them was sent
            return [error] * len(messages)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._board is not None and not self._board.is_there:
            self._board = None  # the driver's, and this is another machine
        return super().write(iterator)

    def _tell(self, target: str, messages: Sequence[Outgoing]) -> None:
        if self._board is not None:
            notice = {"to": target, "messages": len(messages), "bytes": sum(len(each.payload) for each in messages)}
            with contextlib.suppress(OSError):  # it was taken down just now
                self._board.append(SENT, notice)

    def _is_over(self) -> bool:
        return self._board is not None and (self._board.is_raised(STOP) or not self._board.is_there)


def send_paced(
    send: Callable[[Sequence[T]], Sequence[WireError | None]],
    target: str,
    messages: Sequence[T],
    rate: Rate,
    confirmed: Callable[[Sequence[T]], None] = lambda _: None,
    is_over: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """All of it confirmed, or NotSent. What the destination was too busy for is sent again after a halt (P24)."""
    waiting = list(messages)
    progress_at = clock()
    while waiting:
        if (wait_s := rate.wait_s(clock())) > 0:
            sleep(wait_s)
        if is_over():
            raise NotSent(f"{len(waiting)} messages to {target} were not sent: the restore was stopped")
        some = waiting[: rate.batch(AT_ONCE, 1, clock())]
        answers = send(some)
        now = clock()
        rate.received(len(some), now)
        errors = [error for error in answers if error is not None]
        if failed := [error for error in errors if verdict_of(error) is not Verdict.BUSY]:
            raise NotSent(f"{len(failed)} of {len(some)} messages to {target} were not confirmed: {failed[0]}")
        waiting = [each for each, error in zip(some, answers, strict=True) if error is not None] + waiting[len(some) :]
        if arrived := [each for each, error in zip(some, answers, strict=True) if error is None]:
            rate.moved(len(arrived), now)
            confirmed(arrived)
            progress_at = now
        if errors:
            if now - progress_at >= PATIENCE_S:
                raise NotSent(f"{target} has been too busy for {PATIENCE_S:.0f} s: {errors[0]}; try later")
            rate.busy(now)
            sleep(HALT_S)


class RestoringSink(DataSource):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._restoring = Restoring.of_text(options["restoring"])

    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return PacedWriter(self._restoring)
