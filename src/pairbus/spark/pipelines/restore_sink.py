"""The sink of `pairbus restore`: rows become messages, no faster than allowed, and slower if a destination is busy.

It is the connector's writer with a limit on the rate. Each task keeps to its share of the limit and doesn't know the
others; `shares` says how many tasks there are. Tasks on the driver's machine report confirmed messages to its mailbox,
and end when the mailbox asks them to stop or is removed; Spark lets a task's Python run for seconds after it has
cancelled the task.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pairbus.spark.connector.options import Address
from pairbus.spark.connector.process_mailbox import STOP, ProcessMailbox
from pairbus.spark.connector.schema import Outgoing
from pairbus.spark.connector.values.option_text import of_text
from pairbus.spark.connector.writer import NotSent, ServiceBusWriter, WriterConfig

NAME: Final = "servicebus-restored"
#: The file of the mailbox.
SENT: Final = "sent"
#: A task sends more than that in a second; a lower ceiling needs no second one.
SHARE_PER_S: Final = 2000.0
SHARES_MAX: Final = 64


def shares(ceiling: float) -> int:
    """Return over how many tasks a rate limit is spread."""
    return min(SHARES_MAX, math.ceil(ceiling / SHARE_PER_S))


@dataclass(frozen=True)
class RestoreOptions:
    """The settings of a restore's tasks, as text through Spark's options. `rate_max`: messages a second of one task;
    `mailbox`: the folder of the driver's."""

    address: Address
    entity: str | None = None
    rate_max: float | None = None
    mailbox: str | None = None


class RestoreWriter(ServiceBusWriter):
    def __init__(self, restoring: RestoreOptions) -> None:
        super().__init__(WriterConfig(restoring.address, restoring.entity, rate_max=restoring.rate_max))
        self._driver_mailbox = None if restoring.mailbox is None else ProcessMailbox(restoring.mailbox)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._driver_mailbox is not None and not self._driver_mailbox.is_there:
            self._driver_mailbox = None  # the driver's, and this is another machine
        return super().write(iterator)

    def confirmed(self, target: str, messages: Sequence[Outgoing]) -> None:
        if self._driver_mailbox is not None:
            notice = {"to": target, "messages": len(messages), "bytes": sum(len(each.payload) for each in messages)}
            with contextlib.suppress(OSError):  # it was removed just now
                self._driver_mailbox.append(SENT, notice)

    def check_not_over(self, count: int, target: str) -> None:
        mailbox = self._driver_mailbox
        if mailbox is not None and (mailbox.is_raised(STOP) or not mailbox.is_there):
            raise NotSent(f"{count} messages to {target} were not sent: the restore was stopped")


class RestoreSink(DataSource):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._restoring: RestoreOptions = of_text(options["restoring"])

    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return RestoreWriter(self._restoring)
