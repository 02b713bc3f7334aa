"""`df.write` and `df.writeStream` to Service Bus: rows become messages, each confirmed before Spark is told.

At least once: a task that Spark runs again sends again. Where rows have a `message_id` (or `amqp` has one), duplicate
detection at the destination removes the second copy. Rows of a `lock` stream are settled where they came from, after
their confirm, if the options say where that is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pairbus.errors import PairbusError
from pairbus.syphon.destinations import Verdict, verdict_of
from pairbus.wire.errors import LockLost, WireError

from . import connections
from .arrow_rows import StreamWriter, batches
from .options import Address
from .schema import Outgoing, outgoing

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


def by_destination(entity: str | None, batch: pa.RecordBatch) -> dict[str, list[Outgoing]]:
    """The batch's messages, encoded."""
    found: dict[str, list[Outgoing]] = {}
    for message in outgoing(batch):
        target = message.destination or entity
        if target is None:
            raise NotSent("a row has no destination, and the option entity is not given; nothing of its batch was sent")
        found.setdefault(target, []).append(message)
    return found


def attempt(address: Address, target: str, messages: Sequence[Outgoing]) -> list[WireError | None]:
    """An answer for each, None where it was confirmed. Raises where the link can't be opened: then none was sent."""
    sender = connections.sender(address, target)
    payloads = [message.payload for message in messages]
    answers = sender.send_grouped(payloads, [message.company for message in messages], timeout=SEND_TIMEOUT_S)
    # one that is refused takes its whole batch with it; by themselves the others pass, and the answer is its own
    refused = [
        index for index, error in enumerate(answers) if error is not None and verdict_of(error) is Verdict.REFUSED
    ]
    if refused:
        alone: list[WireError | None]
        try:
            alone = sender.send_many([payloads[index] for index in refused], timeout=SEND_TIMEOUT_S)
        except WireError as error:  # the link was lost meanwhile; what was confirmed before stays so
            alone = [error] * len(refused)
        for index, answer in zip(refused, alone, strict=True):
            answers[index] = answer
    return answers


def send(address: Address, messages: dict[str, list[Outgoing]]) -> int:
    """All of it confirmed, or an error that says how many were not and why."""
    for target, found in messages.items():
        failed = [answer for answer in attempt(address, target, found) if answer is not None]
        if failed:
            raise NotSent(f"{len(failed)} of {len(found)} messages to {target} were not confirmed: {failed[0]}")
    return sum(map(len, messages.values()))


class _Writing:
    def __init__(self, address: Address, entity: str | None, settle: Address | None = None) -> None:
        self._address = address
        self._entity = entity
        self._settle = settle

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """A batch is made while the one before it is on its way; never more than one is."""
        count = 0
        under_way: Future[int] | None = None
        with ThreadPoolExecutor(1, "pairbus-writer") as sending:
            for batch in batches(iterator):
                messages = by_destination(self._entity, batch)
                if under_way is not None:
                    count += under_way.result()
                under_way = sending.submit(self._send, messages, batch)
            if under_way is not None:
                count += under_way.result()
        return Sent(count)

    def _send(self, messages: dict[str, list[Outgoing]], batch: pa.RecordBatch) -> int:
        count = send(self._address, messages)
        if self._settle is not None and batch.num_rows:
            settle_batch(self._settle, batch)
        return count


class ServiceBusWriter(_Writing, DataSourceArrowWriter):
    pass


class ServiceBusStreamWriter(_Writing, StreamWriter):
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do: every message was confirmed when it was written."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was confirmed stays sent; Spark runs the batch again."""
