"""Reads a delivery of a backlog queue: which message it is, until when it is locked, and its destination.

Decides whether an encoded delivery becomes a pending transfer or a rejection. It neither settles nor sends.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from pairbus.amqp.errors import AmqpError
from pairbus.amqp.message import Sections, read_application_properties, read_message_annotations, read_properties, split
from pairbus.pairing.backlog.aliases import PATH, Rejected, restore_message, sent_anew

from .transfer import Key, PendingTransfer, Rejection

#: The service's bounds for a lock; a value outside them, from a peer or from differing clocks, is clipped.
LOCK_S_MIN: Final = 1.0
LOCK_S_MAX: Final = 300.0
LOCK_S_UNKNOWN: Final = 30.0
#: Messages with one go to the partition that it names, so not together with others.
_PARTITION_KEY: Final = b"x-opt-partition-key"


def arrive(
    queue: str,
    payload: bytes,
    token: bytes,
    *,
    now: float,
    now_unix: float,
    handle: Any = None,
    count_backlog_time: bool = False,
    is_replay: bool = False,
) -> PendingTransfer | Rejection:
    """Return the transfer or the rejection that a delivery becomes.

    `now` is the engine's clock, `now_unix` the wall clock; `is_replay` says that it comes from the dead letters.
    """
    known: tuple[Sections, dict[Any, Any]] | None
    try:
        sections = split(payload)
        annotations = read_message_annotations(payload, sections)
        known = sections, annotations
    except AmqpError:
        annotations, known = {}, None  # restore_message says what is wrong with it
    key = key_of(queue, annotations, token)
    lock_s = _lock_s(annotations.get("x-opt-locked-until"), now_unix)
    enqueued = annotations.get("x-opt-enqueued-time")
    restored = restore_message(
        payload,
        now=now_unix,
        count_backlog_time=count_backlog_time,
        enqueued_time=enqueued / 1000 if isinstance(enqueued, int) else None,
        is_replay=is_replay,
        known=known,
    )
    pending = partial(PendingTransfer, queue, key, token, now=now, lock_s=lock_s, handle=handle)
    if isinstance(restored, Rejected):
        return Rejection(pending("", payload), restored.reason, restored.description)
    alone = restored.session_id is not None or _PARTITION_KEY in restored.payload
    return pending(restored.path, restored.payload, alone=alone)


def bound_for(
    destination: str,
    queue: str,
    payload: bytes,
    token: bytes,
    *,
    now: float,
    now_unix: float,
    handle: Any = None,
    is_dead_letter: bool = False,
) -> PendingTransfer | Rejection:
    """Return the transfer of a delivery to `destination`, without the annotations that its broker added."""
    try:
        sections = split(payload)
        annotations = read_message_annotations(payload, sections)
        session_id = read_properties(payload, sections).group_id
        anew = sent_anew(payload, is_dead_letter=is_dead_letter)
    except AmqpError as error:
        key = key_of(queue, {}, token)
        transfer = PendingTransfer(
            queue, key, token, destination, payload, now=now, lock_s=LOCK_S_UNKNOWN, handle=handle
        )
        return Rejection(transfer, "MessageNotReadable", f"the message can't be decoded: {error}")
    lock_s = _lock_s(annotations.get("x-opt-locked-until"), now_unix)
    alone = session_id is not None or _PARTITION_KEY in anew
    key = key_of(queue, annotations, token)
    return PendingTransfer(queue, key, token, destination, anew, now=now, lock_s=lock_s, handle=handle, alone=alone)


def key_of(queue: str, annotations: dict[Any, Any], token: bytes) -> Key:
    number, enqueued = annotations.get("x-opt-sequence-number"), annotations.get("x-opt-enqueued-time")
    if not isinstance(number, int):
        return queue, None, int.from_bytes(token, "big")
    return queue, int(number), int(enqueued) if isinstance(enqueued, int) else None


def _lock_s(locked_until_ms: object, now_unix: float) -> float:
    if not isinstance(locked_until_ms, int):
        return LOCK_S_UNKNOWN
    lock_s = locked_until_ms / 1000 - now_unix
    # a clock that is wrong by more than the lock says nothing about the lock
    return min(lock_s, LOCK_S_MAX) if lock_s >= LOCK_S_MIN else LOCK_S_UNKNOWN


def annotations_of(payload: bytes) -> dict[Any, Any]:
    """Return what the broker says of a message, or nothing where it can't be read."""
    try:
        return read_message_annotations(payload, split(payload))
    except AmqpError:
        return {}


def path_of(payload: bytes) -> str:
    """Return the destination of a message in the backlog, or "" where it can't be read."""
    try:
        path = read_application_properties(payload, split(payload)).get(PATH)
    except AmqpError:
        return ""
    return path if type(path) is str else ""


def message_id_of(payload: bytes) -> str | None:
    """Return the message id as the ledger writes it."""
    try:
        found = read_properties(payload, split(payload)).message_id
    except AmqpError:
        return None
    return None if found is None else str(found)
