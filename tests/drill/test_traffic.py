from __future__ import annotations

import itertools
import math

import pytest

from pairbus.drill.plan import BODY_BYTES
from pairbus.drill.traffic import PlannedSend, planned_sends, traffic_ends


def planned(entity: str, messages: int, seconds: float, list_size: int, seed: int) -> list[PlannedSend]:
    return list(
        itertools.takewhile(lambda each: each.at_s < seconds, planned_sends(entity, messages, seconds, list_size, seed))
    )


def test_the_same_seed_gives_the_same_messages() -> None:
    assert planned("orders", 50, 10.0, 1, 7) == planned("orders", 50, 10.0, 1, 7)
    assert planned("orders", 50, 10.0, 1, 7) != planned("orders", 50, 10.0, 1, 8)


@pytest.mark.parametrize(("messages", "list_size"), [(1, 1), (50, 1), (50, 7), (49, 50)])
def test_every_message_is_sent_once_and_in_time(messages: int, list_size: int) -> None:
    made = planned("orders", messages, 10.0, list_size, 1)
    ids = [each for planned in made for each in planned.ids]
    assert len(ids) == len(set(ids)) == messages
    times = [planned.at_s for planned in made]
    assert times == sorted(times)
    assert times[0] >= 0 and times[-1] < 10.0
    assert all(len(planned.ids) == len(planned.bodies) <= list_size for planned in made)


def test_ids_say_where_a_message_belongs() -> None:
    assert next(planned_sends("orders", 600, 10.0, 1, 1)).ids == ["orders-001"]


def test_bodies_keep_to_their_bounds() -> None:
    sizes = {len(body) for planned in planned("orders", 300, 10.0, 1, 1) for body in planned.bodies}
    assert min(sizes) >= BODY_BYTES[0] and max(sizes) <= BODY_BYTES[1]
    assert len(sizes) > 100


@pytest.mark.parametrize(("messages", "list_size"), [(1, 1), (50, 1), (50, 7), (49, 50)])
def test_after_what_is_planned_it_goes_on_at_the_same_pace(messages: int, list_size: int) -> None:
    made = list(
        itertools.islice(planned_sends("orders", messages, 10.0, list_size, 1), 3 * (messages // list_size + 1))
    )
    ids = [each for planned in made for each in planned.ids]
    assert len(ids) == len(set(ids)) > messages
    assert [each.at_s for each in made] == sorted(each.at_s for each in made)
    more = [each for each in made if each.at_s >= 10.0]
    assert all(len(each.ids) == list_size for each in more)


@pytest.mark.parametrize(
    ("ended_at", "ends"), [(None, math.inf), (3.0, 42.0), (32.1, 42.0), (41.9, 42.0), (42.0, 52.0), (100.0, 110.0)]
)
def test_a_sender_sends_all_that_is_planned_and_goes_on_until_it_is_told(ended_at: float | None, ends: float) -> None:
    assert traffic_ends(42.0, 10.0, ended_at) == ends
