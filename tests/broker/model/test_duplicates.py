from __future__ import annotations

import uuid
from math import inf

import pytest

from pairbus.amqp.types import ULong
from pairbus.broker.model import duplicates
from pairbus.broker.model.duplicates import FORGET_S, DuplicateHistory, key_of
from pairbus.broker.refusal import Refusal

WINDOW_S = 60.0
A, B, C = key_of("a"), key_of("b"), key_of("c")


class World:
    def __init__(self) -> None:
        self.released: list[tuple[int, int]] = []
        self.history = DuplicateHistory(WINDOW_S, lambda *each: self.released.append(each))

    def see(self, *keys: bytes, now: float, segment: int = 1) -> None:
        self.history.written(self.history.begin(keys, now), segment, 8 + 16 * len(keys))


@pytest.fixture
def world() -> World:
    return World()


def test_an_id_is_known_for_its_time_and_not_longer(world: World) -> None:
    world.see(A, now=100.0)
    assert world.history.find(B, 100.0) is None
    assert world.history.find(A, 159.9) is not None
    assert world.history.find(A, 160.0) is None
    world.history.window = 10.0
    assert world.history.find(A, 110.0) is None


def test_what_is_not_yet_written_is_waited_for(world: World) -> None:
    answers: list[object] = []
    sighting = world.history.begin((A, B), 100.0)
    assert sighting.is_pending
    assert world.history.find(B, 100.0) is sighting
    world.history.wait(sighting, answers.append)
    world.history.wait(sighting, answers.append)
    assert answers == []
    world.history.written(sighting, 7, 40)
    assert answers == [None, None]
    assert not sighting.is_pending


def test_what_was_refused_may_come_again(world: World) -> None:
    answers: list[object] = []
    refusal = Refusal("amqp:internal-error", "disk")
    sighting = world.history.begin((A,), 100.0)
    world.history.wait(sighting, answers.append)
    world.history.refused(sighting, refusal)
    assert answers == [refusal]
    assert world.history.find(A, 100.0) is None
    assert len(world.history) == 0
    assert world.released == []


def test_what_is_forgotten_is_released(world: World) -> None:
    world.see(A, B, now=100.0, segment=3)
    world.see(C, now=110.0, segment=4)
    assert world.history.deadline() == 160.0 + FORGET_S
    world.history.forget(160.0)
    assert world.released == [(3, 40)]
    assert len(world.history) == 1
    world.history.forget(inf)
    assert world.released == [(3, 40), (4, 24)]
    assert world.history.deadline() == inf


def test_an_id_that_comes_again_after_its_time_is_not_forgotten_with_the_first(world: World) -> None:
    world.see(A, now=100.0)
    world.see(A, now=160.0)
    world.history.forget(170.0)
    assert world.history.find(A, 170.0) is not None


def test_a_copy_replaces_what_was_known(world: World) -> None:
    world.history.restore(100.0, (A, B), 1, 40)
    world.history.restore(100.0, (A, B), 5, 40)
    assert world.released == [(1, 40)]
    world.history.forget(inf)
    assert world.released == [(1, 40), (5, 40)]
    assert len(world.history) == 0


def test_records_are_known_by_their_time(world: World) -> None:
    world.see(A, B, now=100.0)
    assert world.history.known(100.0, (A, B)) is world.history.find(A, 100.0)
    assert world.history.known(101.0, (A, B)) is None
    assert world.history.known(100.0, (C,)) is None


def test_memory_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "IDS_MAX", 2)
    world.see(A, now=100.0)
    assert world.history.has_room(1, 100.0)
    assert not world.history.has_room(2, 100.0)
    assert world.history.has_room(2, 160.0)  # the first is forgotten
    assert repr(world.history) == "<DuplicateHistory: 0 ids of 60.0 s>"


def test_ids_of_different_types_differ() -> None:
    ids = ["1", 1, ULong(1), b"1", uuid.UUID(int=1)]
    assert len({key_of(each) for each in ids}) == len(ids)
    assert key_of("x" * 128) == key_of("x" * 128)
    assert len(key_of("x")) == 16
