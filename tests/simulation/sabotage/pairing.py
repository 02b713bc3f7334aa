"""Bugs in what a paired client decides. tests/pairing/test_world_proof.py has what worlds with brokers never meet."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from azure.servicebus.exceptions import OperationTimeoutError

from pairbus.pairing.events import SendPing
from pairbus.pairing.routing import coordinator, dispatch
from pairbus.pairing.routing.coordinator import Coordinator
from pairbus.pairing.routing.dispatch import SENT, Dispatch, TryPrimary
from pairbus.pairing.routing.failover import Failover, Input
from pairbus.pairing.routing.patience import Patience
from pairbus.pairing.routing.pins import Pins
from pairbus.pairing.routing.rotation import Rotation
from pairbus.pairing.routing.states import EntityState

from .. import pair
from . import sabotage

STATE = "P15–P35: .* must be"

# -- the state of an entity


@sabotage(Failover, "expire", "pair", 29, "P16|P15–P35")
def failover_timer_forgotten(real: Any, failover: Any, now: float) -> list[Any]:
    """Sends fail for as long as the primary is away, and nothing is diverted."""
    return [] if failover.state is EntityState.SUSPECT else real(failover, now)


@sabotage(Failover, "primary_sent", "pair", 29, STATE)
def late_success_ends_the_failover(real: Any, failover: Any, now: float, epoch: int) -> list[Any]:
    """The answer to an old send brings an entity back whose primary is away."""
    return real(failover, now, epoch) + failover._move(Input.MARKED_HEALTHY, now)


@sabotage(Coordinator, "primary_failed", "pair", 499, STATE)
def one_entity_takes_the_others_along(
    real: Any, client: Any, failover: Any, now: float, *arguments: Any, **options: Any
) -> None:
    """An entity that fails takes healthy ones with it into the backlog."""
    real(client, failover, now, *arguments, **options)
    for each in client._entities.values():
        client._note(each, each.primary_failed(now, each.epoch))


@sabotage(Failover, "_move", "pair", 19, "P23: events do not say|P23: a change was not told")
def change_of_state_not_told(real: Any, failover: Any, *arguments: Any) -> list[Any]:
    """An operator does not hear that an entity began to fail."""
    commands = real(failover, *arguments)
    return [] if failover.state is EntityState.SUSPECT else commands


@sabotage(Failover, "ping_succeeded", "pair", 39, "of calm: in the backlog|P23: nobody was told: PingSucceeded")
def ping_does_not_bring_back(real: Any, *arguments: Any) -> list[Any]:
    """Messages go through the backlog for ever, although the primary is well again."""
    return []


# -- pings, the return ramp, the operator


@sabotage(Coordinator, "__init__", "pair", 149, "P16, P31: it will wake at")
def all_clients_ping_at_once(real: Any, client: Any, *arguments: Any, **options: Any) -> None:
    """A fleet that failed over in one second pings in one second."""
    real(client, *arguments, **options)
    client.phase = 1.0


@sabotage(Failover, "tick", "pair", 59, "P31")
def pings_come_too_often(real: Any, failover: Any, now: float) -> list[Any]:
    """A primary that comes up again meets twice the pings."""
    commands = real(failover, now)
    if any(isinstance(each, SendPing) for each in commands):
        failover._next = now + failover.ping_interval / 2
    return commands


@sabotage(Failover, "deadline", "pair", 149, "P33: probed, and found healthy|P16, P31: it will wake")
def pings_in_the_return_ramp(real: Any, failover: Any) -> float | None:
    """A primary that was found healthy is pinged until the ramp is over."""
    home_at, failover._home_at = failover._home_at, None
    due = real(failover)
    failover._home_at = home_at
    return due


@sabotage(Failover, "trial_due", "pair", 109, "P31: whoever sends next is the trial")
def no_message_tries_the_primary(real: Any, *arguments: Any) -> bool:
    """Messages go through the backlog for ever where no pings are sent."""
    return False


@sabotage(Failover, "forced", "pair", 39, "P23: probed, and held|P16, P31: it will wake")
def ping_ends_a_pinned_failover(real: Any, failover: Any, now: float, hold: bool, **heading: Any) -> list[Any]:
    """A fleet that the operator keeps away from the primary goes back to it."""
    return real(failover, now, False, **heading)


@sabotage(Pins, "of", "pair", 259, STATE)
def pins_by_letter_case(real: Any, pins: Any, entity: str) -> Any:
    """A line of the control file does nothing because it spells the entity in another way."""
    return real(pins, entity if entity in dict(pins.written) else "*")


# -- the way of a message


@sabotage(Dispatch, "primary_failed", "pair", 39, "P22: called sent")
def primary_timeout_reported_as_sent(real: Any, call: Any, now: float, error: Any, *others: Any) -> None:
    """A send that timed out is called sent, and the message may be nowhere."""
    real(call, now, error, *others)
    if isinstance(error, OperationTimeoutError):
        call._outcome = SENT


@sabotage(Dispatch, "backlog_sent", "pair", 29, "P20: a broker has confirmed it, and it goes on")
def diverted_message_sent_again(real: Any, call: Any, now: float) -> None:
    """A message that the backlog has taken is sent again and again."""
    real(call, now)
    call._outcome = None


@sabotage(Dispatch, "backlog_sent", "pair", 29, "P23: told as")
def place_of_a_message_not_told(real: Any, call: Any, now: float) -> None:
    """A caller is told that a message went to the primary, which is in the backlog."""
    real(call, now)
    call.route_word = "primary"


@sabotage(Dispatch, "_diversion", "pair", 29, "was diverted by the rule")
def wrong_rule_told(real: Any, call: Any) -> Any:
    """The ledger names an option as the reason of a diversion that the client does not have."""
    return replace(real(call), rule="option")


@sabotage(Dispatch, "_is_spared_failures", "pair", 29, "P16|P22|P17")
def failure_shown_while_suspect(real: Any, *arguments: Any) -> bool:
    """Callers see failures that they asked to be spared."""
    return False


@sabotage(Coordinator, "_common_terms", "pair", 29, "P19: what ends the attempt")
def definite_failures_are_waited_on(real: Any, *arguments: Any) -> None:
    """The SDK's retries of a refused connection come before the backlog."""


@sabotage(Dispatch, "step", "pair", 9, "P19: the primary's share is")
def primary_takes_all_the_time(real: Any, call: Any, now: float) -> Any:
    """A silent primary leaves no time for the backlog."""
    step = real(call, now)
    if isinstance(step, TryPrimary):
        step.timeout_s = call._granted_s = call.ends - now
    return step


@sabotage(Patience, "_review", "pair", 179, "adaptive patience is never under")
def patience_forgets_its_floor(real: Any, patience: Any) -> None:
    """A pause of the sender's own process fails an entity over whose primary is well."""
    if patience._answers_min > 1:  # it is not about links
        patience._least_s = 0.0
    real(patience)


@sabotage(Coordinator, "_take_openings", "pair", 79, "P19: a link may take .* to open")
def links_open_as_long_as_they_like(real: Any, client: Any, openings: Any) -> None:
    """A caller whose link is not open waits for half of its time for a primary that says nothing."""
    openings.silence_s = math.inf
    real(client, openings)


@sabotage(coordinator, "_is_return", "pair", 39, "P19: back, and no link is opened")
def no_link_after_a_return(real: Any, *arguments: Any) -> bool:
    """The first caller after an outage opens the link, and waits where the primary is gone again."""
    return False


@sabotage(pair, "last_word", "pair", 499, "P18: a broker said")
def answer_forgotten_in_the_silence_after_it(real: Any, error: Any, earlier: Any) -> Any:
    """An entity that refuses passes for an outage where the SDK's retry runs out of time."""
    return error


# -- the backlog queues


@sabotage(Rotation, "pick", "pair", 29, "P12: its sender leaves")
def sender_changes_its_queue(real: Any, rotation: Any, *arguments: Any, **options: Any) -> Any:
    """Each sender opens links to every backlog queue."""
    rotation._kept.clear()
    return real(rotation, *arguments, **options)


@sabotage(Rotation, "failed", "pair", 109, "P13: ejected must be")
def failed_queue_not_ejected(real: Any, *arguments: Any, **options: Any) -> list[Any]:
    """Every message waits for a backlog queue that has failed all before it."""
    return []


@sabotage(Rotation, "pick", "pair", 489, "P13: queues that may take it")
def ejected_queue_tried_at_once(
    real: Any, rotation: Any, sender: Any, failover: int, now: float, *arguments: Any, **options: Any
) -> Any:
    """Messages go to a backlog queue that has just failed."""
    return real(rotation, sender, failover, now + 1e9, *arguments, **options)


@sabotage(Dispatch, "_end_round", "pair", 59, "P24: it does not pause")
def both_refuse_and_nobody_asks_again(real: Any, call: Any, now: float) -> Any:
    """A send fails at once when both namespaces refuse for a moment, which the SDK alone would have ridden out."""
    return call._fail(call._backlog_unavailable(now))


@sabotage(dispatch, "is_of_host", "pair", 59, "P13, once more")
def queues_of_a_host_that_refuses_asked_one_by_one(real: Any, error: Any) -> bool:
    """A host that refuses is asked at every backlog queue before the primary is."""
    return False
