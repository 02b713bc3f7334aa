"""`df.write` and `df.writeStream` to Service Bus: rows become messages, each confirmed before Spark is told.

At least once: a task that Spark runs again sends again. Where rows have a `message_id` (or `amqp` has one), duplicate
detection at the destination removes the second copy. Rows of a `lock` stream are settled where they came from, after
their confirm, if the options say where that is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pairbus.errors import PairbusError
from pairbus.wire.errors import LockLost

from . import connections
from .arrow_rows import StreamWriter, batches
from .options import Address
from .schema import outgoing

SEND_TIMEOUT_S: Final = 60.0
TOKENS_AT_ONCE: Final = 200


class NotSent(PairbusError):
    pass


@dataclass
class Sent(WriterCommitMessage):
    count: int


def settle_batch(address: Address, batch: pa.RecordBatch) -> None:
    """Completes what was received. A lock that is lost costs a duplicate, never a message."""
    tokens: dict[str, list[UUID]] = {}
    for entity, token in zip(batch.column("entity").to_pylist(), batch.column("lock_token").to_pylist(), strict=True):
        if token is None:
            raise NotSent("a row has no lock token: rows to be settled come from a stream with mode=lock")
        tokens.setdefault(entity, []).append(UUID(token))
    for entity, found in tokens.items():
        for begin in range(0, len(found), TOKENS_AT_ONCE):
            _complete(address, entity, found[begin : begin + TOKENS_AT_ONCE])


def _complete(address: Address, entity: str, tokens: list[UUID]) -> None:
    try:
        connections.client(address).settle_by_token(entity, tokens, "completed", timeout=SEND_TIMEOUT_S)
    except LockLost:
        if len(tokens) > 1:  # one lost lock fails the request of all
            for token in tokens:
                _complete(address, entity, [token])


def send_batch(address: Address, entity: str | None, batch: pa.RecordBatch) -> int:
    """All of it confirmed, or an error that says how many were not and why."""
    by_destination: dict[str, list[bytes]] = {}
    for destination, payload in outgoing(batch):
        target = destination or entity
        if target is None:
            raise NotSent("a row has no destination, and the option entity is not given; nothing of its batch was sent")
        by_destination.setdefault(target, []).append(payload)
    for target, payloads in by_destination.items():
        answers = connections.sender(address, target).send_many(payloads, timeout=SEND_TIMEOUT_S)
        failed = [answer for answer in answers if answer is not None]
        if failed:
            raise NotSent(f"{len(failed)} of {len(payloads)} messages to {target} were not confirmed: {failed[0]}")
    return int(batch.num_rows)


class _Writing:
    def __init__(self, address: Address, entity: str | None, settle: Address | None = None) -> None:
        self._address = address
        self._entity = entity
        self._settle = settle

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        count = 0
        for batch in batches(iterator):
            count += send_batch(self._address, self._entity, batch)
            if self._settle is not None and batch.num_rows:
                settle_batch(self._settle, batch)
        return Sent(count)


class ServiceBusWriter(_Writing, DataSourceArrowWriter):
    pass


class ServiceBusStreamWriter(_Writing, StreamWriter):
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do: every message was confirmed when it was written."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was confirmed stays sent; Spark runs the batch again."""
