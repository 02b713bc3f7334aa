from __future__ import annotations

from typing import Any

import pytest

from pairbus.amqp.performatives import Accepted, Error, Modified, Received, Rejected, Released
from pairbus.broker.links import outcome_of
from pairbus.broker.outcomes import Abandon, Complete, DeadLetter, Defer, Release


def dead_letter(condition: str, description: str | None = None, **info: Any) -> Rejected:
    return Rejected(error=Error(condition, description, info))


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (Accepted(), Complete()),
        (Released(), Release()),
        (Modified(), Abandon({})),
        (Modified(delivery_failed=True), Abandon({})),
        (Modified(delivery_failed=True, message_annotations={"tries": 1}), Abandon({"tries": 1})),
        (Rejected(), DeadLetter(None, None, {})),
        (
            dead_letter(
                "com.microsoft:dead-letter", None, DeadLetterReason="r", DeadLetterErrorDescription="d", more=1
            ),
            DeadLetter("r", "d", {"more": 1}),
        ),
        (dead_letter("com.microsoft:dead-letter", "said"), DeadLetter(None, None, {})),
        (dead_letter("amqp:decode-error", "not JSON"), DeadLetter("amqp:decode-error", "not JSON", {})),
        (Modified(delivery_failed=True, undeliverable_here=True, message_annotations={"k": 1}), Defer({"k": 1})),
        (Modified(undeliverable_here=True), Defer({})),
        (None, None),
        (Received(section_number=0, section_offset=0), None),
    ],
)
def test_what_a_delivery_state_asks_for_dialect_5_1(state: Any, outcome: Any) -> None:
    assert outcome_of(state) == outcome
