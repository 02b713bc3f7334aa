from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pairbus.broker.model.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.model.rule_description import CorrelationFilter, FalseFilter, RuleDescription, SqlFilter, TrueFilter
from pairbus.broker.model.topic import Subscription
from pairbus.broker.operations import subscriptions as module
from pairbus.broker.operations.quotas import Quotas
from pairbus.broker.refusal import Refusal
from tests.broker.namespace_rig import Rig, condition, make, refused

ALL = "news/Subscriptions/all"
EXISTS = "com.microsoft:entity-already-exists"
RED = CorrelationFilter(properties={"color": "red"})


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as rig:
        rig.create_topic()
        yield rig


def rules(rig: Rig, name: str = "all") -> dict[str, Any]:
    return {rule.name: rule.filter for rule in rig.namespace.topics["news"].subscriptions[name].rules.values()}


def subscription(rig: Rig, name: str = "all") -> Subscription:
    return rig.namespace.topics["news"].subscriptions[name]


# paths and names


def test_paths_are_resolved_in_any_case(rig: Rig) -> None:
    entity = rig.subscribe("all")
    namespace = rig.namespace
    assert namespace.resolve("NEWS") is namespace.topics["news"]
    assert namespace.resolve("News/subscriptions/ALL") is entity.active
    assert namespace.resolve("news/Subscriptions/all/$deadletterqueue") is entity.dead_letter
    assert entity.dead_letter.path == "news/Subscriptions/all/$DeadLetterQueue"
    for path in ("news/Subscriptions/other", "news/Subscriptions/", "news/$DeadLetterQueue", "other/Subscriptions/all"):
        assert namespace.resolve(path) is None, path


def test_a_topic_may_have_slashes_in_its_name(rig: Rig) -> None:
    rig.create_topic("world/news")
    entity = rig.subscribe("all", topic="world/news")
    assert rig.namespace.resolve("World/News/Subscriptions/all") is entity.active


def test_queues_and_topics_share_one_set_of_names(rig: Rig) -> None:
    answers: list[Refusal | None] = []
    rig.namespace.registry.create(QueueDescription(name="News"), 1.0, answers.append)
    rig.namespace.registry.create(QueueDescription(name="orders"), 1.0, answers.append)
    rig.namespace.registry.create(TopicDescription(name="Orders"), 1.0, answers.append)
    rig.namespace.registry.create(TopicDescription(name="news"), 1.0, answers.append)
    rig.run()
    assert [condition(answer) for answer in answers] == [EXISTS, EXISTS, EXISTS, None]
    assert list(rig.namespace.queues) == ["orders"]
    assert list(rig.namespace.topics) == ["news"]


# topics


def test_a_topic_is_there_when_its_record_is(rig: Rig) -> None:
    rig.namespace.registry.create(TopicDescription(name="new"), 7.0, lambda refusal: None)
    rig.turn()
    assert rig.namespace.resolve("new") is None
    rig.answer()
    assert rig.namespace.topics["new"].description == TopicDescription(name="new", created_at=7.0, updated_at=7.0)


def test_an_update_of_a_topic_applies_and_survives(rig: Rig) -> None:
    stands = rig.namespace.topics["news"].description
    rig.now = 2000.0
    new = replace(stands, name="NEWS", max_message_size_kb=1, created_at=5.0)
    assert rig.do(rig.namespace.registry.update, new) is None
    assert condition(rig.do(rig.namespace.registry.update, replace(new, name="other"))) == "amqp:not-found"
    assert condition(rig.send(b"x" * 1024, path="news")) == "amqp:link:message-size-exceeded"
    with rig.reopened() as again:
        expected = replace(stands, max_message_size_kb=1, updated_at=2000.0)
        assert again.namespace.topics["news"].description == expected
        assert condition(again.send(b"x" * 1024, path="news")) == "amqp:link:message-size-exceeded"


def test_a_deleted_topic_is_gone_with_its_subscriptions(rig: Rig) -> None:
    told = rig.note_deletions()
    topic = rig.namespace.topics["news"]
    for name in ("a", "b"):
        rig.subscribe(name)
    rig.send(b"x", path="news")
    answers: list[Refusal | None] = []
    rig.namespace.registry.delete_topic("News", 1.0, answers.append)
    rig.namespace.registry.delete_topic("News", 1.0, answers.append)
    rig.namespace.subscriptions.delete("news", "a", 1.0, answers.append)
    rig.namespace.enqueue.send(topic, [make(b"y")], 1.0, answers.append)
    rig.namespace.subscriptions.create(SubscriptionDescription(topic="news", name="c"), 1.0, answers.append)
    rig.run()
    assert [condition(answer) for answer in answers] == ["amqp:not-found"] * 4 + [None]
    assert told == ["news", "news/Subscriptions/a", "news/Subscriptions/b"]
    assert rig.namespace.resolve("news") is None
    assert rig.namespace.resolve("news/Subscriptions/a") is None
    assert rig.live_bytes() < 20
    assert rig.namespace.resident_bytes == 0
    with rig.reopened() as again:
        assert dict(again.namespace.topics) == {}
        assert again.namespace.notes == []
        again.create_topic()
        assert again.namespace.topics["news"].id == 4
        assert dict(again.namespace.topics["news"].subscriptions) == {}


def test_a_subscription_that_is_being_created_goes_with_its_topic(rig: Rig) -> None:
    answers: list[Refusal | None] = []
    rig.namespace.subscriptions.create(SubscriptionDescription(topic="news", name="late"), 1.0, answers.append)
    rig.namespace.registry.delete_topic("news", 1.0, answers.append)
    rig.run()
    assert answers == [None, None]
    assert list(rig.namespace.store.by_id) == []
    with rig.reopened() as again:
        assert dict(again.namespace.topics) == {}
        assert again.namespace.notes == []


# subscriptions


def test_a_new_subscription_takes_everything(rig: Rig) -> None:
    rig.now = 7.0
    entity = rig.subscribe("all")
    assert entity.description == SubscriptionDescription(topic="news", name="all", created_at=7.0, updated_at=7.0)
    assert list(entity.rules.values()) == [RuleDescription(name="$Default", filter=TrueFilter(), created_at=7.0)]


def test_a_subscription_gets_the_default_rule_that_its_description_names(rig: Rig) -> None:
    description = SubscriptionDescription(
        topic="NEWS", name="all", default_rule=RuleDescription(name="reds", filter=RED)
    )
    assert rig.do(rig.namespace.subscriptions.create, description) is None
    assert rules(rig) == {"reds": RED}
    assert subscription(rig).description.default_rule is None
    assert subscription(rig).description.topic == "news"


def test_the_name_of_a_subscription_is_taken_once_a_topic(rig: Rig) -> None:
    rig.create_topic("other")
    rig.subscribe("all", topic="other")
    answers: list[Refusal | None] = []
    for name in ("all", "ALL"):
        rig.namespace.subscriptions.create(SubscriptionDescription(topic="news", name=name), 1.0, answers.append)
    rig.namespace.subscriptions.create(SubscriptionDescription(topic="lost", name="all"), 1.0, answers.append)
    rig.run()
    assert [condition(answer) for answer in answers] == [EXISTS, "amqp:not-found", None]
    again = rig.do(rig.namespace.subscriptions.create, SubscriptionDescription(topic="News", name="All"))
    assert condition(again) == EXISTS


def test_an_update_of_a_subscription_keeps_its_rules(rig: Rig) -> None:
    entity = rig.subscribe("all", RED)
    rig.now = 2000.0
    new = replace(entity.description, name="ALL", topic="NEWS", lock_duration=5.0, created_at=1.0)
    assert rig.do(rig.namespace.subscriptions.update, new) is None
    missing = replace(entity.description, name="other")
    assert condition(rig.do(rig.namespace.subscriptions.update, missing)) == "amqp:not-found"
    for each in (rig, rig.reopened()):
        entity = subscription(each)
        expected = replace(new, name="all", topic="news", created_at=1000.0, updated_at=2000.0)
        assert entity.description == expected
        assert entity.active.lock_duration == 5.0
        assert rules(each) == {"$Default": RED}


def test_a_deleted_subscription_leaves_the_others(rig: Rig) -> None:
    rig.subscribe("a")
    rig.subscribe("b")
    rig.send(b"x", path="news")
    assert rig.do(rig.namespace.subscriptions.delete, "News", "A") is None
    assert condition(rig.do(rig.namespace.subscriptions.delete, "news", "a")) == "amqp:not-found"
    assert rig.namespace.resolve("news/Subscriptions/a") is None
    assert rig.send(b"y", path="news") is None
    for each in (rig, rig.reopened()):
        assert each.bodies("news/Subscriptions/b") == [b"x", b"y"]
        assert list(each.namespace.topics["news"].subscriptions) == ["b"]
    rig.subscribe("a")
    assert rig.bodies("news/Subscriptions/a") == []


def test_how_many_subscriptions_a_topic_can_have(rig: Rig) -> None:
    rig.namespace.registry.quotas = Quotas(subscriptions=2)
    rig.subscribe("a")
    rig.subscribe("b")
    refused(
        rig.do(rig.namespace.subscriptions.create, SubscriptionDescription(topic="news", name="c")),
        "amqp:resource-limit-exceeded",
        "2 subscriptions",
    )


# rules


def test_rules_are_added_changed_and_removed(rig: Rig) -> None:
    rig.subscribe("all")
    namespace = rig.namespace
    path = ("News", "ALL")
    reds = RuleDescription(name="Reds", filter=RED)
    assert rig.do(namespace.subscriptions.create_rule, *path, reds) is None
    assert condition(rig.do(namespace.subscriptions.create_rule, *path, replace(reds, name="REDS"))) == EXISTS
    assert rig.do(namespace.subscriptions.delete_rule, *path, "$default") is None
    assert condition(rig.do(namespace.subscriptions.delete_rule, *path, "$Default")) == "amqp:not-found"
    assert (
        condition(rig.do(namespace.subscriptions.update_rule, *path, RuleDescription(name="blues"))) == "amqp:not-found"
    )
    assert condition(rig.do(namespace.subscriptions.create_rule, "news", "other", reds)) == "amqp:not-found"
    assert rules(rig) == {"Reds": RED}
    rig.now = 2000.0
    assert (
        rig.do(namespace.subscriptions.update_rule, *path, RuleDescription(name="reds", filter=FalseFilter())) is None
    )
    for each in (rig, rig.reopened()):
        (rule,) = subscription(each).rules.values()
        assert rule == RuleDescription(name="Reds", filter=FalseFilter(), created_at=1000.0)


def test_changes_of_a_subscription_come_one_after_the_other(rig: Rig) -> None:
    rig.subscribe("all")
    answers: list[Refusal | None] = []
    for n in range(5):
        rig.namespace.subscriptions.create_rule("news", "all", RuleDescription(name=f"r{n}"), 1.0, answers.append)
    rig.namespace.subscriptions.delete_rule("news", "all", "r3", 1.0, answers.append)
    stands = subscription(rig).description
    rig.namespace.subscriptions.update(replace(stands, lock_duration=5.0), 1.0, answers.append)
    rig.namespace.subscriptions.create_rule("news", "all", RuleDescription(name="r3"), 1.0, answers.append)
    for _ in range(4):
        rig.run()
    assert answers == [None] * 8
    for each in (rig, rig.reopened()):
        assert list(rules(each)) == ["$Default", "r0", "r1", "r2", "r4", "r3"]
        assert subscription(each).description.lock_duration == 5.0


def test_a_change_that_the_disk_refused_is_in_none_of_those_behind_it(rig: Rig) -> None:
    rig.subscribe("all")
    answers: list[Refusal | None] = []
    rig.fail_calls("fdatasync", times=1)
    for name in ("first", "second"):
        rig.namespace.subscriptions.create_rule("news", "all", RuleDescription(name=name), 1.0, answers.append)
    rig.wait(0.3, 20)
    assert [answer is None for answer in answers] == [False, True]
    assert list(rules(rig)) == ["$Default", "second"]
    with rig.reopened() as again:
        assert list(rules(again)) == ["$Default", "second"]


def test_changes_that_wait_when_the_subscription_is_deleted(rig: Rig) -> None:
    rig.subscribe("all")
    answers: list[Refusal | None] = []
    for name in ("first", "second"):
        rig.namespace.subscriptions.create_rule("news", "all", RuleDescription(name=name), 1.0, answers.append)
    rig.namespace.subscriptions.delete("news", "all", 1.0, answers.append)
    rig.run()
    assert [condition(answer) for answer in answers] == [None, "amqp:not-found", None]
    with rig.reopened() as again:
        assert dict(again.namespace.topics["news"].subscriptions) == {}


def test_how_many_rules_and_waiting_changes_there_can_be(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RULES_MAX", 2)
    monkeypatch.setattr(module, "_CHANGES_MAX", 2)
    rig.subscribe("all")
    answers: list[Refusal | None] = []
    for n in range(4):
        rig.namespace.subscriptions.create_rule("news", "all", RuleDescription(name=f"r{n}"), 1.0, answers.append)
    for _ in range(4):
        rig.run()
    assert [condition(answer) for answer in answers] == [
        "com.microsoft:server-busy",
        None,
        "amqp:resource-limit-exceeded",
        "amqp:resource-limit-exceeded",
    ]


def test_how_many_filters_a_topic_can_have(rig: Rig) -> None:
    rig.namespace.registry.quotas = Quotas(sql_filters=2, correlation_filters=2)
    rig.subscribe("all")
    rig.subscribe("sql", SqlFilter("a = 1"))
    create, path = rig.namespace.subscriptions.create_rule, ("news", "all")
    for kind, noun in ((SqlFilter("b = 2"), "SQL"), (RED, "correlation")):
        answers = [rig.do(create, *path, RuleDescription(name=f"{noun}{n}", filter=kind)) for n in range(3)]
        assert [condition(each) for each in answers][-1] == "amqp:resource-limit-exceeded"
        refused(answers[-1], "amqp:resource-limit-exceeded", f"Topic 'news' has 2 {noun} filters")
    assert list(rules(rig)) == ["$Default", "SQL0", "correlation0", "correlation1"]
    described = SubscriptionDescription(topic="news", name="n", default_rule=RuleDescription(filter=SqlFilter("a = 1")))
    refused(rig.do(rig.namespace.subscriptions.create, described), "amqp:resource-limit-exceeded")
    update = rig.namespace.subscriptions.update_rule
    assert rig.do(update, *path, RuleDescription(name="SQL0", filter=SqlFilter("c = 3"))) is None
    refused(rig.do(update, *path, RuleDescription(filter=RED)), "amqp:resource-limit-exceeded")
    assert rig.do(update, *path, RuleDescription(name="correlation0")) is None
    assert rig.do(update, *path, RuleDescription(filter=RED)) is None


def test_a_change_of_rules_counts_for_what_is_published_afterwards(rig: Rig) -> None:
    rig.subscribe("all")
    rig.send(b"before", path="news")
    rig.do(rig.namespace.subscriptions.delete_rule, "news", "all", "$Default")
    rig.send(b"between", path="news")
    rig.do(rig.namespace.subscriptions.create_rule, "news", "all", RuleDescription(name="any"))
    rig.send(b"after", path="news")
    assert rig.bodies(ALL) == [b"before", b"after"]


def test_everything_survives_compaction(rig: Rig) -> None:
    rig.subscribe("all")
    rig.subscribe("red", RED)
    rig.do(rig.namespace.subscriptions.create_rule, "news", "red", RuleDescription(name="more", filter=FalseFilter()))
    rig.do(rig.namespace.subscriptions.delete_rule, "news", "all", "$Default")
    for n in range(60):
        rig.create(f"q{n}")
        rig.do(rig.namespace.registry.delete_queue, f"q{n}")
    rig.compact_all()
    rig.compact_all()
    with rig.reopened() as again:
        assert rules(again, "all") == {}
        assert rules(again, "red") == {"$Default": RED, "more": FalseFilter()}
        assert again.namespace.notes == []
        again.create_topic("next")
        assert again.namespace.topics["next"].id == 64


# idle


def test_an_idle_subscription_is_deleted_whatever_is_published(rig: Rig) -> None:
    rig.subscribe("idle", auto_delete_on_idle=300.0)
    rig.subscribe("used", auto_delete_on_idle=300.0)
    for _ in range(4):
        rig.now += 100.0
        rig.send(b"x", path="news")
        rig.take(path="news/Subscriptions/used")
        rig.namespace.tick(rig.now)
        rig.run()
    assert list(rig.namespace.topics["news"].subscriptions) == ["used"]


def test_a_topic_is_idle_when_nobody_publishes_or_uses_its_subscriptions(rig: Rig) -> None:
    rig.create_topic("idle", auto_delete_on_idle=300.0)
    rig.subscribe("all", topic="idle")
    for _ in range(4):
        rig.now += 200.0
        rig.peeked("idle/Subscriptions/all")
        rig.namespace.tick(rig.now)
    for _ in range(2):
        rig.now += 200.0
        rig.send(b"x", path="idle")
        rig.namespace.tick(rig.now)
    rig.run()
    assert "idle" in rig.namespace.topics
    rig.pass_time(299.0)
    assert "idle" in rig.namespace.topics
    rig.pass_time(2.0)
    assert "idle" not in rig.namespace.topics
    with rig.reopened() as again:
        assert list(again.namespace.topics) == ["news"]


def test_repr(rig: Rig) -> None:
    entity = rig.subscribe("all")
    rig.send(b"x", path="news")
    assert repr(entity) == "<Subscription news/Subscriptions/all: 1 active, 0 dead-lettered>"
    assert repr(rig.namespace.topics["news"]) == "<Topic news: 1 subscriptions, 0 scheduled>"
