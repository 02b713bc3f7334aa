from __future__ import annotations

from math import inf

from pairbus.amqp.message import Properties, encode_message
from pairbus.broker.model.description import SubscriptionDescription, TopicDescription
from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.model.message import Message
from pairbus.broker.model.rule_description import CorrelationFilter, FalseFilter, Filter, RuleDescription, TrueFilter
from pairbus.broker.model.rules import Facts
from pairbus.broker.model.topic import Subscription, Topic, redescribe, take_over
from pairbus.broker.storage.replay import _UNKNOWN

MESSAGE = Facts(encode_message(properties=Properties(subject="x"), body=b""))


def subscription(name: str, *filters: Filter, id: int = 2, **fields: object) -> Subscription:
    description = SubscriptionDescription(topic="news", name=name, **fields)  # type: ignore[arg-type]
    return Subscription(id, 1, description, [RuleDescription(name=f"r{n}", filter=f) for n, f in enumerate(filters)])


def topic(*subscriptions: Subscription, **fields: object) -> Topic:
    made = Topic(1, TopicDescription(name="news", **fields))  # type: ignore[arg-type]
    for each in subscriptions:
        made.add(each)
    return made


def test_who_gets_a_copy() -> None:
    deleting = subscription("deleting", TrueFilter())
    deleting.deleting = True
    made = topic(
        subscription("all", TrueFilter()),
        subscription("none"),
        subscription("never", FalseFilter()),
        subscription("some", FalseFilter(), CorrelationFilter(label="x")),
        subscription("others", CorrelationFilter(label="y")),
        deleting,
    )
    assert [each.name for each in made.rules.matching(MESSAGE) if not each.deleting] == ["all", "some"]


def test_whether_sessions_are_asked_for() -> None:
    plain, with_sessions = subscription("a"), subscription("b", requires_session=True)
    made = topic(plain)
    assert not made.has_sessions
    made.add(with_sessions)
    assert made.has_sessions
    made.drop(with_sessions)
    assert not made.has_sessions
    assert list(made.subscriptions) == ["a"]
    made.drop(subscription("A"))  # another one of that name
    assert list(made.subscriptions) == ["a"]


def test_a_topic_is_as_idle_as_the_least_idle_of_its_subscriptions() -> None:
    first, second = subscription("a"), subscription("b")
    made = topic(first, second, auto_delete_on_idle=300.0)
    made.accessed_at, second.accessed_at = 100.0, 250.0
    assert made.idle_deadline == 550.0
    assert not made.is_idle(549.0)
    first.links = 1
    assert not made.is_idle(560.0)
    assert made.idle_deadline == 860.0
    first.links = 0
    assert made.is_idle(860.0)
    made.deleting = True
    assert made.idle_deadline == inf


def test_what_a_record_says_of_a_subscription_is_read_back() -> None:
    told = subscription("All", CorrelationFilter(properties={"a": 1}), FalseFilter(), lock_duration=5.0)
    read = Subscription.from_document(9, told.document(), 4)
    assert (read.id, read.topic_id, read.revision) == (9, 1, 4)
    assert (read.description, read.rules) == (told.description, told.rules)
    assert list(read.rules) == ["r0", "r1"]
    redescribe(read, subscription("All").document(), 5)
    assert (dict(read.rules), read.revision, read.active.lock_duration) == ({}, 5, 60.0)


def test_what_was_told_before_the_description_came_is_taken_over() -> None:
    stub = QueueEntity(2, _UNKNOWN, -1)
    stub.active.insert(Message(7, 1.0, b"", 0, 0, None, 3))
    stub.last_sequence = 7
    heir = subscription("a", TrueFilter(), lock_duration=5.0)
    take_over(heir, stub)
    assert heir.active.entity is heir
    assert heir.dead_letter.entity is heir
    assert (heir.last_sequence, len(heir.active), heir.active.lock_duration) == (7, 1, 5.0)
    assert heir.dead_letter.path == "news/Subscriptions/a/$DeadLetterQueue"
