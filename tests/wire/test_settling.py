"""Settling by token, against a client that answers as a test says: who is settled or lost, and what is asked."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from pairbus.amqp.message import encode_message
from pairbus.amqp.types import Int
from pairbus.wire.errors import Busy, LockLost, TimedOut, WireError
from pairbus.wire.settling import (
    ABANDONED,
    COMPLETED,
    DEFERRED,
    RENEWED,
    TOKENS_AT_ONCE,
    by_answer,
    count_lost,
    settle_each,
)

TOKENS = [UUID(int=number) for number in range(1, 451)]


class Peer:
    """Refuses requests that name a lost lock, after it has settled the others where `settles_others`."""

    def __init__(self, *lost: UUID, settles_others: bool = False) -> None:
        self.gone = set(lost)
        self.settled: set[UUID] = set()
        self.settles_others = settles_others
        self.asked: list[int] = []
        self.peeked: list[int] = []
        self.deferred: set[int] = set()
        self.error: WireError | None = None

    async def settle_by_token(self, entity: str, tokens: list[UUID], disposition: str, **words: Any) -> None:
        self.asked.append(len(tokens))
        if self.error is not None and len(self.asked) > 1:
            raise self.error
        is_lost = not self.gone.isdisjoint(tokens)
        if not is_lost or self.settles_others:
            self.settled.update(set(tokens) - self.gone)
            self.gone.update(tokens)
        if is_lost:
            raise LockLost("com.microsoft:message-lock-lost", "one of them")

    async def renew(self, entity: str, tokens: list[UUID], timeout: float | None) -> list[float]:
        self.asked.append(len(tokens))
        if not self.gone.isdisjoint(tokens):
            raise LockLost("com.microsoft:message-lock-lost", "one of them")
        return []

    async def peek(self, entity: str, number: int, count: int, timeout: float | None) -> list[bytes]:
        self.peeked.append(number)
        there = [each.int for each in TOKENS if each not in self.settled] + sorted(self.deferred)
        found = min((each for each in there if each >= number), default=None)
        if found is None:
            return []
        annotations = {"x-opt-sequence-number": found, "x-opt-message-state": Int(found in self.deferred)}
        return [encode_message(None, annotations, body=b"x")]


async def settle(peer: Peer, tokens: list[UUID], disposition: str = COMPLETED, **more: Any) -> list[WireError | None]:
    return await settle_each(peer, "orders", tokens, disposition, **more)  # type: ignore[arg-type]


def numbers(tokens: list[UUID]) -> list[int]:
    return [token.int for token in tokens]


async def test_requests_of_many() -> None:
    peer = Peer()
    assert await settle(peer, TOKENS) == [None] * 450
    assert peer.asked == [TOKENS_AT_ONCE, TOKENS_AT_ONCE, 50] and not peer.peeked
    assert await settle(peer, []) == []


@pytest.mark.parametrize("settles_others", [False, True])
async def test_a_lost_lock_keeps_no_other_from_being_settled(settles_others: bool) -> None:
    peer = Peer(TOKENS[7], settles_others=settles_others)
    answers = await settle(peer, TOKENS[:300], numbers=numbers(TOKENS[:300]))
    assert [number for number, answer in enumerate(answers) if answer is not None] == [7]
    assert isinstance(answers[7], LockLost)
    assert peer.settled == {*TOKENS[:300]} - {TOKENS[7]}
    assert peer.asked == [200, *[1] * 200, 100], "each once more, by itself"


async def test_where_nothing_tells_it_is_lost() -> None:
    peer = Peer(TOKENS[0], settles_others=True)
    assert count_lost(await settle(peer, TOKENS[:3])) == 3, "no numbers: what may come again is not said to be settled"
    peer = Peer(TOKENS[0], settles_others=True)
    assert count_lost(await settle(peer, TOKENS[:3], numbers=[1, 0, 3])) == 2, "a number that nobody knows"
    peer = Peer(TOKENS[0])
    assert count_lost(await settle(peer, TOKENS[:1], numbers=[1])) == 1
    assert not peer.peeked, "by itself from the first: no request before can have settled it"


async def test_deferred_given_back_and_renewed() -> None:
    peer = Peer(TOKENS[0], settles_others=True)
    peer.deferred = {2, 3}
    assert count_lost(await settle(peer, TOKENS[:3], DEFERRED, numbers=[1, 2, 3])) == 1
    peer = Peer(TOKENS[0], settles_others=True)
    assert await settle(peer, TOKENS[:3], ABANDONED) == [None] * 3, "it is back either way"
    assert count_lost(await settle(Peer(TOKENS[0]), TOKENS[:3], RENEWED, numbers=[1, 2, 3])) == 1


async def test_another_error_ends_it() -> None:
    peer = Peer()
    peer.error = TimedOut("pairbus:timed-out", "no answer", outcome_unknown=True)
    answers = await settle(peer, TOKENS)
    assert answers == [None] * 200 + [peer.error] * 250
    assert peer.asked == [200, 200], "the rest is not asked for"
    with pytest.raises(TimedOut):
        count_lost(answers)


def test_answers_are_told_apart() -> None:
    lost, busy = LockLost("lost"), Busy("busy")
    found = by_answer("abcd", [None, lost, LockLost("lost too"), busy])
    assert list(found) == [(None, ["a"]), (lost, ["b", "c"]), (busy, ["d"])]
