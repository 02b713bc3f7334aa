from __future__ import annotations

from pairbus.journal.relocation import Relocations


def test_places_inside_a_moved_payload_are_translated() -> None:
    moved = Relocations()
    assert not moved
    moved.add(1, 200, 10, 2, 92)
    moved.add(1, 100, 50, 2, 300)
    assert moved
    table = {
        (1, 99): (1, 99),
        (1, 100): (2, 300),
        (1, 149): (2, 349),
        (1, 150): (1, 150),
        (1, 200): (2, 92),
        (1, 209): (2, 101),
        (1, 210): (1, 210),
        (2, 92): (2, 92),
    }
    assert {place: moved.now(*place) for place in table} == table
    assert moved.known_as(2, 92) == (1, 200)
    assert moved.known_as(2, 93) == (2, 93)


def test_moved_twice_and_forgotten() -> None:
    moved = Relocations()
    moved.add(1, 100, 50, 2, 92)
    moved.add(1, 200, 0, 2, 170)
    moved.add(1, 100, 50, 3, 92)
    assert moved.now(1, 120) == (3, 112)
    assert moved.now(1, 200) == (2, 170)
    assert moved.known_as(2, 92) == (2, 92)
    moved.forget(2)
    assert moved.now(1, 200) == (1, 200)
    assert moved.now(1, 120) == (3, 112)
    moved.forget(3)
    assert not moved and moved.now(1, 120) == (1, 120)
