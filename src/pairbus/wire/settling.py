"""Settles messages by lock token, whichever link or process received them.

The rules:

- A request names tokens of one entity, TOKENS_AT_ONCE at most. Messages of sessions are settled like others while their
  session is held; their locks can't be renewed, which the peer refuses.
- *Settled* is what the peer says it has settled. Then the answer is None.
- A lock that was lost fails the request of all, which may have settled the others. So each is asked for once more by
  itself. A token that is refused again is *lost*, and the answer is LockLost: the message comes again, unless the
  request before had settled it. Where the caller knows its sequence number, a look at the entity tells which: a message
  that is no longer there (in a deferral: that is deferred) is settled. One that was to be given back is back either
  way. Where nothing tells, it is lost: what may come again is never said to be settled.
- Any other error ends it, and is the answer for the token and for all after it, for which nothing is asked then.
  `outcome_unknown` says whether the request may still have been carried out.
- Nothing is tried again: only the caller knows how long its locks last, and what it risks.
- Reason and description go with 'suspended' (dead-letter) only. A dead letter can't be dead-lettered again; that is for
  the caller to know, since tokens don't tell.

In a transaction all are settled or none: that is one request, `WireClient.settle_by_token`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pairbus.amqp.errors import AmqpError
from pairbus.amqp.message import read_message_annotations, split

from .errors import LockLost, WireError

if TYPE_CHECKING:
    from .client import WireClient
    from .requests import LockToken

TOKENS_AT_ONCE: Final = 200
COMPLETED: Final = "completed"
ABANDONED: Final = "abandoned"
DEAD_LETTERED: Final = "suspended"
DEFERRED: Final = "defered"  # sic
#: No disposition of the protocol's: locks are renewed by the same rules.
RENEWED: Final = "renewed"
_DEFERRED_STATE: Final = 1

T = TypeVar("T")


async def settle_each(
    client: WireClient,
    entity: str,
    tokens: Sequence[LockToken],
    disposition: str,
    *,
    numbers: Sequence[int | None] = (),
    timeout: float | None = None,
    **words: Any,
) -> list[WireError | None]:
    """Settle messages, or renew their locks, and return for each the error or None.

    `numbers`: their sequence numbers; `timeout`: for each request; `words`: those of `WireClient.settle_by_token`.
    """
    answers: list[WireError | None] = []
    doubtful: list[int] = []
    waiting = deque(tokens[begin : begin + TOKENS_AT_ONCE] for begin in range(0, len(tokens), TOKENS_AT_ONCE))
    while waiting:
        some = waiting.popleft()
        error: WireError | None = None
        try:
            if disposition == RENEWED:
                await client.renew(entity, some, timeout)
            else:
                await client.settle_by_token(entity, some, disposition, timeout=timeout, **words)
        except LockLost as lost:
            if len(some) > 1:
                doubtful += range(len(answers), len(answers) + len(some))
                waiting.extendleft([token] for token in reversed(some))
                continue
            error = lost
        except WireError as other:
            return answers + [other] * (len(tokens) - len(answers))
        answers += [error] * len(some)
    for index in doubtful:
        number = numbers[index : index + 1]
        if answers[index] is not None and await _is_over(client, entity, disposition, number, timeout):
            answers[index] = None
    return answers


def count_lost(answers: Iterable[WireError | None]) -> int:
    """Return how many locks were lost. Raises what else there is: then messages were not settled while locked."""
    lost = 0
    for answer in answers:
        if isinstance(answer, LockLost):
            lost += 1
        elif answer is not None:
            raise answer
    return lost


def by_answer(settled: Iterable[T], answers: Iterable[WireError | None]) -> Iterable[tuple[WireError | None, list[T]]]:
    """Yield what was settled, lost and not settled, each together, with the first error that tells so."""
    found: dict[type, tuple[WireError | None, list[T]]] = {}
    for each, answer in zip(settled, answers, strict=True):
        found.setdefault(type(answer), (answer, []))[1].append(each)
    return found.values()


async def _is_over(
    client: WireClient, entity: str, disposition: str, number: Sequence[int | None], timeout: float | None
) -> bool:
    """Return whether a message was settled by a request that failed for the sake of another one."""
    if disposition in (RENEWED, ABANDONED):
        return disposition == ABANDONED
    if not any(number):
        return False
    try:
        for payload in await client.peek(entity, number[0] or 0, 1, timeout):
            annotations = read_message_annotations(payload, split(payload))
            if annotations.get("x-opt-sequence-number") == number[0]:
                return disposition == DEFERRED and annotations.get("x-opt-message-state") == _DEFERRED_STATE
    except (WireError, AmqpError):
        return False
    return disposition != DEFERRED
