"""The sink of `pairbus restore`: rows become messages, no faster than allowed, and slower where a destination is busy.

The connector's writer, which sends as fast as it can and fails on the first refusal, with `syphon.rate` before it. Each
task keeps to its share of the ceiling and knows nothing of the others; `shares` says how many tasks there are.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceWriter
from pyspark.sql.types import StructType

from pairbus.syphon.destinations import HALT_S, Verdict, verdict_of
from pairbus.syphon.rate import Rate
from pairbus.wire.errors import WireError

from .. import connections
from ..options import Address
from ..writer import SEND_TIMEOUT_S, NotSent, ServiceBusWriter

NAME: Final = "servicebus-restored"
AT_ONCE: Final = 1000
#: A task sends more than that in a second; a lower ceiling needs no second one.
SHARE_PER_S: Final = 2000.0
SHARES_MAX: Final = 64
#: A destination that says busy for so long, and takes nothing, ends the restore.
PATIENCE_S: Final = 300.0

Send = Callable[[Sequence[bytes]], Sequence[WireError | None]]


def shares(ceiling: float) -> int:
    """Over how many tasks a ceiling is spread."""
    return min(SHARES_MAX, math.ceil(ceiling / SHARE_PER_S))


@dataclass(frozen=True)
class Restoring:
    """`rate_max`: messages a second of one task. As text through Spark's options."""

    address: Address
    entity: str | None = None
    rate_max: float | None = None

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Restoring:
        found = json.loads(text)
        return cls(Address(**found["address"]), found["entity"], found["rate_max"])


class PacedWriter(ServiceBusWriter):
    def __init__(self, restoring: Restoring) -> None:
        super().__init__(restoring.address, restoring.entity)
        self._rate = Rate(restoring.rate_max)

    def _send(self, messages: dict[str, list[bytes]], batch: pa.RecordBatch) -> int:
        for target, payloads in messages.items():
            send_paced(partial(self._attempt, target), target, payloads, self._rate)
        return sum(map(len, messages.values()))

    def _attempt(self, target: str, payloads: Sequence[bytes]) -> Sequence[WireError | None]:
        try:
            return connections.sender(self._address, target).send_many(payloads, timeout=SEND_TIMEOUT_S)
        except WireError as error:  # the link was not opened: none of them was sent
            return [error] * len(payloads)


def send_paced(
    send: Send,
    target: str,
    payloads: Sequence[bytes],
    rate: Rate,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """All of it confirmed, or NotSent. What the destination was too busy for is sent again after a halt (P24)."""
    waiting = list(payloads)
    progress_at = clock()
    while waiting:
        if (wait_s := rate.wait_s(clock())) > 0:
            sleep(wait_s)
        some = waiting[: rate.batch(AT_ONCE, 1, clock())]
        answers = send(some)
        now = clock()
        rate.received(len(some), now)
        errors = [error for error in answers if error is not None]
        if failed := [error for error in errors if verdict_of(error) is not Verdict.BUSY]:
            raise NotSent(f"{len(failed)} of {len(some)} messages to {target} were not confirmed: {failed[0]}")
        waiting = [each for each, error in zip(some, answers, strict=True) if error is not None] + waiting[len(some) :]
        if len(some) > len(errors):
            rate.moved(len(some) - len(errors), now)
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
