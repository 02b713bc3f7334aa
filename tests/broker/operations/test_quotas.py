"""How much a namespace may have, like the service's tiers; what is said past it."""

from __future__ import annotations

import pytest

from pairbus.amqp.errors import ARGUMENT_OUT_OF_RANGE, NOT_ALLOWED
from pairbus.broker.model.description import Description, QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.model.transaction import Send, Transaction
from pairbus.broker.operations.quotas import TIERS, Quotas
from tests.broker.namespace_rig import Rig, make, refused


@pytest.mark.parametrize(
    ("tier", "description", "says"),
    [
        ("basic", QueueDescription(name="q"), None),
        ("basic", TopicDescription(name="t"), "Topics are not there in the tier Basic"),
        ("basic", SubscriptionDescription(name="s", topic="t"), "Topics are not there in the tier Basic"),
        ("basic", QueueDescription(name="q", requires_session=True), "Sessions are not there"),
        ("basic", QueueDescription(name="q", requires_duplicate_detection=True), "Duplicate detection"),
        ("basic", QueueDescription(name="q", forward_to="r"), "Destinations of forwarding are not there"),
        ("basic", QueueDescription(name="q", forward_dead_lettered_to="r"), "Destinations of forwarding"),
        ("standard", TopicDescription(name="t", requires_duplicate_detection=True), None),
        ("standard", QueueDescription(name="q", forward_to="r"), None),
        ("standard", QueueDescription(name="q", max_size_mb=5120, requires_session=True), None),
        ("standard", QueueDescription(name="q", max_size_mb=5121), "MaxSizeInMegabytes of 'q' may be up to 5120"),
        ("standard", TopicDescription(name="t", max_message_size_kb=1024), "MaxMessageSizeInKilobytes of 't' may be"),
        ("premium", QueueDescription(name="q", max_size_mb=81920, max_message_size_kb=102400), None),
        (None, QueueDescription(name="q", max_size_mb=81920, max_message_size_kb=102400), None),
        (None, QueueDescription(name="q", max_size_mb=7), "may be a multiple of 1024, or 1 for a test"),
        ("standard", TopicDescription(name="t", max_size_mb=1025), "MaxSizeInMegabytes of 't' may be a multiple of"),
        ("standard", TopicDescription(name="t", max_size_mb=3072), None),
        (None, QueueDescription(name="q", max_size_mb=1), None),
    ],
)
def test_what_a_tier_has_and_has_not(tier: str | None, description: Description, says: str | None) -> None:
    quotas = Quotas() if tier is None else TIERS[tier]
    refusal = quotas.refuses_description(description)
    if says is None:
        assert refusal is None
    else:
        assert refusal is not None and refusal.condition == ARGUMENT_OUT_OF_RANGE
        assert says in refusal.description


def test_messages_of_a_transaction(bare: Rig) -> None:
    bare.namespace.registry.quotas = Quotas(transaction_messages=3)
    target, transaction = bare.create("q"), Transaction(b"1")
    refusals = [
        bare.namespace.transactions.enlist(transaction, Send(target, [make(b"x")], lambda _: None), "q", bare.now)
        for _ in range(4)
    ]
    assert refusals[:3] == [None] * 3
    refused(refusals[3], NOT_ALLOWED, "more than 3 messages in a single transaction")


def test_neither_a_new_entity_nor_a_change_gets_past_them(bare: Rig) -> None:
    bare.create("q")
    bare.namespace.registry.quotas = TIERS["standard"]
    assert bare.do(bare.namespace.registry.update, QueueDescription(name="q", max_size_mb=2048)) is None
    for change, description in (
        (bare.namespace.registry.update, QueueDescription(name="q", max_size_mb=9000)),
        (bare.namespace.registry.create, QueueDescription(name="r", max_size_mb=9000)),
        (bare.namespace.registry.create, TopicDescription(name="t", max_size_mb=9000)),
    ):
        refusal = bare.do(change, description)
        assert refusal is not None and "up to 5120 in this namespace; it is 9000" in refusal.description
    assert list(bare.namespace.queues) == ["q"]
    assert bare.namespace.queues["q"].max_bytes == 2048 << 20
