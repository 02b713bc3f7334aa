"""The sink of `pairbus restore`: rows become messages, no faster than allowed, and slower where a destination is busy.

The connector's writer with a ceiling. Each
task keeps to its share of the ceiling and knows nothing of the others; `shares` says how many tasks there are. Tasks on
the driver's machine say on its noticeboard what was confirmed, as it is, and end when it is asked to stop or taken
down; Spark lets a task's Python go on for seconds after it has cancelled the task.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pairbus.spark.connector.options import Address
from pairbus.spark.connector.schema import Outgoing
from pairbus.spark.connector.writer import NotSent, ServiceBusWriter
from pairbus.spark.runtime.process_mailbox import STOP, ProcessMailbox

NAME: Final = "servicebus-restored"
#: The sheet of the noticeboard.
SENT: Final = "sent"
#: A task sends more than that in a second; a lower ceiling needs no second one.
SHARE_PER_S: Final = 2000.0
SHARES_MAX: Final = 64


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
    mailbox: str | None = None

    def as_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Restoring:
        found = json.loads(text)
        return cls(**{**found, "address": Address(**found["address"])})


class PacedWriter(ServiceBusWriter):
    def __init__(self, restoring: Restoring) -> None:
        super().__init__(restoring.address, restoring.entity)
        self.rate_max = restoring.rate_max
        self._paced_board = None if restoring.mailbox is None else ProcessMailbox(restoring.mailbox)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._paced_board is not None and not self._paced_board.is_there:
            self._paced_board = None  # the driver's, and this is another machine
        return super().write(iterator)

    def confirmed(self, target: str, messages: Sequence[Outgoing]) -> None:
        if self._paced_board is not None:
            notice = {"to": target, "messages": len(messages), "bytes": sum(len(each.payload) for each in messages)}
            with contextlib.suppress(OSError):  # it was taken down just now
                self._paced_board.append(SENT, notice)

    def check_not_over(self, count: int, target: str) -> None:
        mailbox = self._paced_board
        if mailbox is not None and (mailbox.is_raised(STOP) or not mailbox.is_there):
            raise NotSent(f"{count} messages to {target} were not sent: the restore was stopped")


class RestoringSink(DataSource):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._restoring = Restoring.of_text(options["restoring"])

    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return PacedWriter(self._restoring)
