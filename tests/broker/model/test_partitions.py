"""Which partition a message goes to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.errors import NOT_ALLOWED, SERVER_BUSY
from pairbus.broker.format.content import Traits
from pairbus.broker.model.partitions import NONE_DOWN, PARTITIONS, Partitions, common_key, partition_for, place
from pairbus.broker.refusal import Refusal

ids = st.text(max_size=8)
downs = st.frozensets(st.integers(0, PARTITIONS - 1))


def traits(session_id: str | None = None, key: str | None = None, id: object = "m") -> Traits:
    return Traits(id, session_id, None, None, key)


@pytest.mark.parametrize(
    ("sent", "detects", "key"),
    [
        ([traits()], False, None),
        ([traits(), traits(id="n")], False, None),
        ([traits("s")], False, "s"),
        ([traits("")], False, ""),
        ([traits("s", "s")], False, "s"),
        # JavaScript sends the empty session id where none is set
        ([traits("", "k")], False, "k"),
        ([traits("", "k"), traits(key="k")], False, "k"),
        ([traits("", "k"), traits("", "k", id="n")], True, "k"),
        ([traits(key="k")], False, "k"),
        ([traits("s"), traits(key="s")], False, "s"),
        ([traits()], True, "m"),
        ([traits(id=7)], True, "7"),
        ([traits(), traits()], True, "m"),
        ([traits(key="k"), traits(key="k", id="n")], True, "k"),
        ([], True, None),
    ],
)
def test_the_key_is_the_session_else_the_partition_key_else_the_id(
    sent: list[Traits], detects: bool, key: str | None
) -> None:
    assert common_key("q", sent, detects) == key


@pytest.mark.parametrize(
    ("sent", "detects", "words"),
    [
        ([traits("s", "k")], False, "session id 's' and the partition key 'k'"),
        ([traits("s"), traits("t")], False, "2 different keys"),
        ([traits(key="s"), traits()], False, "2 different keys"),
        ([traits(id="a"), traits(id="b")], True, "message id"),
    ],
)
def test_what_has_no_common_key_is_refused(sent: list[Traits], detects: bool, words: str) -> None:
    refusal = common_key("q", sent, detects)
    assert isinstance(refusal, Refusal)
    assert refusal.condition == NOT_ALLOWED
    assert words in refusal.description


def test_a_key_stays_where_it_is() -> None:
    """What is stored lies there: another version must find it in the same place."""
    assert [partition_for(key) for key in ("", "a", "b", "order-17", "é")] == [0, 3, 9, 4, 14]
    assert {partition_for(str(number)) for number in range(200)} == set(range(PARTITIONS))


@given(key=ids, turn=st.integers(0, PARTITIONS - 1), down=downs)
def test_a_key_decides_or_the_send_is_refused(key: str, turn: int, down: frozenset[int]) -> None:
    placed = place("q", key, turn, down)
    if partition_for(key) in down:
        assert isinstance(placed, Refusal)
        assert placed.condition == SERVER_BUSY
    else:
        assert placed == partition_for(key)


@given(turn=st.integers(0, PARTITIONS - 1), down=downs)
def test_without_a_key_partitions_that_are_down_are_passed_over(turn: int, down: frozenset[int]) -> None:
    placed = place("q", None, turn, down)
    if len(down) == PARTITIONS:
        assert isinstance(placed, Refusal)
        assert placed.condition == SERVER_BUSY
        return
    assert isinstance(placed, int)
    assert placed not in down
    passed = range(turn, turn + (placed - turn) % PARTITIONS)
    assert {each % PARTITIONS for each in passed} <= down


@given(down=downs.filter(lambda down: len(down) < PARTITIONS), rounds=st.integers(1, 4))
def test_round_robin_gives_each_partition_that_is_up_the_same(down: frozenset[int], rounds: int) -> None:
    partitions = Partitions(0, 0)
    partitions.down = down
    counts = dict.fromkeys(range(PARTITIONS), 0)
    for _ in range(rounds * (PARTITIONS - len(down))):
        placed = place("q", None, partitions.turn, partitions.down)
        assert isinstance(placed, int)
        partitions.used(placed)
        counts[placed] += 1
    assert counts == {partition: 0 if partition in down else rounds for partition in range(PARTITIONS)}


def test_a_keyed_message_elsewhere_does_not_take_the_turn() -> None:
    partitions = Partitions(0, 0)
    partitions.used(5)
    assert place("q", None, partitions.turn, NONE_DOWN) == 0
