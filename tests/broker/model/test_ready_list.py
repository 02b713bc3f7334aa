from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pairbus.broker.model.message import Message
from pairbus.broker.model.ready_list import ReadyList


def message(number: int) -> Message:
    return Message(number, 0.0, b"@@@@", 0, 0, b"", 0)


class LineAndOracle(RuleBasedStateMachine):
    """The oracle: a set of numbers, the lowest of which is next."""

    def __init__(self) -> None:
        super().__init__()
        self.ready_list = ReadyList()
        self.inside: dict[int, Message] = {}
        self.outside: dict[int, Message] = {n: message(n) for n in range(1, 40)}

    @precondition(lambda self: self.outside)
    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.outside)))
        each = self.outside.pop(number)
        self.ready_list.add(each)
        self.inside[number] = each

    @rule()
    def next(self) -> None:
        each = self.ready_list.next()
        assert (each and each.sequence_number) == min(self.inside, default=None)
        if each is not None:
            self.outside[each.sequence_number] = self.inside.pop(each.sequence_number)

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.inside)))
        self.ready_list.discard(self.inside[number])
        self.outside[number] = self.inside.pop(number)

    @invariant()
    def agrees(self) -> None:
        assert len(self.ready_list) == len(self.inside)
        assert self.ready_list.head() == min(self.inside, default=None)


TestLineAndOracle = LineAndOracle.TestCase


def test_what_leaves_from_the_middle_is_not_kept_for_ever() -> None:
    line = ReadyList()
    messages = [message(number) for number in range(10_000)]
    for each in messages:
        line.add(each)
    for each in messages[1:]:
        line.discard(each)
    assert len(line) == 1
    assert len(line.ready) < 2_100
    assert repr(line) == "<ReadyList of 1>"
    line.clear()
    assert line.next() is None
