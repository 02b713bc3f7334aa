"""Bugs in the wire client and in the syphon, and bugs of the broker as paired clients meet them."""

from __future__ import annotations

from typing import Any

from pairbus.broker.amqp.links import SourceNode
from pairbus.broker.model.duplicates import DuplicateHistory
from pairbus.syphon.core.transfer_state import Complete, TransferState, _by_queue
from pairbus.wire import WireError, sender
from pairbus.wire.sender import Sender

from . import sabotage


@sabotage(sender, "fail", "broker", 45, "it is lost; it can only be")
def lost_answer_reported_as_confirmed(real: Any, future: Any, error: Any) -> None:
    """A message that was on its way when the connection was lost is called sent, and is nowhere."""
    if error.outcome_unknown and not future.done():
        future.set_result(None)
    else:
        real(future, error)


@sabotage(Sender, "send", "broker", 2, "2 copies|it can only be absent")
async def unknown_outcome_sent_again(real: Any, link: Any, payload: bytes, **options: Any) -> None:
    """A message that was sent once is there twice."""
    try:
        await real(link, payload, **options)
    except WireError as error:
        if not error.outcome_unknown:
            raise
        await real(link, payload, **options)


# -- the syphon


@sabotage(TransferState, "send", "pair", 39, "P39: .* completes .*, which the primary has not confirmed")
def syphon_completes_before_the_primary_confirms(real: Any, *arguments: Any) -> Any:
    """A message on its way home is gone when the primary fails at that moment."""
    send, commands = real(*arguments)
    given = () if send is None else send.transfers
    return send, [*commands, *(Complete(queue, transfers) for queue, transfers in _by_queue(given))]


@sabotage(TransferState, "received", "pair", 119, "P39: .* a second time at once")
def syphon_queues_a_message_twice(real: Any, state: Any, arrivals: Any, now: float) -> Any:
    """Every message comes home twice, or the second time empty."""
    came = list(arrivals)
    answer = real(state, came, now)
    for waiting in state._waiting.values():
        waiting.extend([each for each in waiting if each in came])
    return answer


@sabotage(TransferState, "_remember", "pair", 1769, "P39: .* is home, and sends it again")
def syphon_forgets_what_is_home(real: Any, *arguments: Any) -> None:
    """A message comes home a second time when its completion is lost."""


@sabotage(SourceNode, "disposed", "pair", 219, "P39: .* was sent to .* and is lost")
def neighbour_settled_too_in_a_pair(real: Any, node: Any, delivery_ids: list[int], *arguments: Any) -> None:
    """A message of the backlog is gone that was not brought home."""
    following = delivery_ids[-1] + 1
    real(node, [*delivery_ids, following] if following in node.unsettled else delivery_ids, *arguments)


@sabotage(DuplicateHistory, "find", "pair", 829, "P20: .* is in once . times")
def duplicate_stored_in_a_pair(real: Any, *arguments: Any) -> None:
    """A message that was brought home twice is there twice, although the queue detects duplicates."""
