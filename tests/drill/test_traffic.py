from __future__ import annotations

import pytest

from pairbus.drill.plan import BODY_BYTES
from pairbus.drill.traffic import parcels


def test_the_same_seed_gives_the_same_messages() -> None:
    assert list(parcels("orders", 50, 10.0, 1, 7)) == list(parcels("orders", 50, 10.0, 1, 7))
    assert list(parcels("orders", 50, 10.0, 1, 7)) != list(parcels("orders", 50, 10.0, 1, 8))


@pytest.mark.parametrize(("messages", "list_size"), [(1, 1), (50, 1), (50, 7), (49, 50)])
def test_every_message_is_sent_once_and_in_time(messages: int, list_size: int) -> None:
    made = list(parcels("orders", messages, 10.0, list_size, 1))
    ids = [each for parcel in made for each in parcel.ids]
    assert len(ids) == len(set(ids)) == messages
    times = [parcel.at_s for parcel in made]
    assert times == sorted(times)
    assert times[0] >= 0 and times[-1] < 10.0
    assert all(len(parcel.ids) == len(parcel.bodies) <= list_size for parcel in made)


def test_ids_say_where_a_message_belongs() -> None:
    assert next(parcels("orders", 600, 10.0, 1, 1)).ids == ["orders-001"]


def test_bodies_keep_to_their_bounds() -> None:
    sizes = {len(body) for parcel in parcels("orders", 300, 10.0, 1, 1) for body in parcel.bodies}
    assert min(sizes) >= BODY_BYTES[0] and max(sizes) <= BODY_BYTES[1]
    assert len(sizes) > 100
