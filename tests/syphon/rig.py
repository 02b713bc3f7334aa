"""What tests of the syphon's decisions are made of."""

from __future__ import annotations

from pairbus.syphon.core.transfer import PendingTransfer

QUEUE = "contoso/x-servicebus-transfer/0"


def transfer(
    number: int | None = 1,
    path: str = "orders",
    *,
    queue: str = QUEUE,
    now: float = 0.0,
    lock_s: float = 60.0,
    size: int = 10,
    alone: bool = False,
    token: bytes = b"",
    enqueued: int | None = 0,
) -> PendingTransfer:
    return PendingTransfer(
        queue,
        (queue, number, enqueued),
        token or f"token{number}@{now}".encode(),
        path,
        b"x" * size,
        now=now,
        lock_s=lock_s,
        alone=alone,
    )
