from __future__ import annotations

import pytest

from pairbus.broker.model.description import QueueDescription, TopicDescription
from pairbus.broker.operations import registry as module
from pairbus.broker.refusal import Refusal
from tests.broker.namespace_rig import Rig, condition


def test_how_many_queues_and_topics_there_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTITIES_MAX", 3)
    with Rig() as rig:
        rig.create("a")
        rig.create_topic("b")
        for name in ("s", "t"):
            rig.subscribe(name, topic="b")  # these have a limit of their own
        answers: list[Refusal | None] = []
        rig.namespace.create_queue(QueueDescription(name="c"), 1.0, answers.append)
        rig.namespace.create_topic(TopicDescription(name="d"), 1.0, answers.append)
        rig.run()
        assert [condition(answer) for answer in answers] == ["amqp:resource-limit-exceeded", None]


def test_a_creation_that_the_disk_refused_leaves_nothing_behind() -> None:
    with Rig() as rig:
        rig.create_topic()
        rig.fail_calls()
        answers: list[Refusal | None] = []
        rig.namespace.create_topic(TopicDescription(name="other"), 1.0, answers.append)
        rig.namespace.update_topic(TopicDescription(name="news", max_size_mb=2), 1.0, answers.append)
        rig.namespace.delete_topic("news", 1.0, answers.append)
        rig.wait(0.3, 20)
        assert [answer is None for answer in answers] == [False] * 3
        topic = rig.namespace.topics["news"]
        assert (list(rig.namespace.topics), topic.deleting, topic.description.max_size_mb) == (["news"], False, 1024)
        rig.files.fault = None
        rig.wait(0.3, 20)
        rig.create_topic("other")


def test_a_topic_that_is_copied_while_it_is_deleted_stays_deleted() -> None:
    with Rig() as rig:
        rig.create_topic()
        rig.subscribe("a")
        rig.subscribe("b")
        rig.send(b"x" * 300, path="news")
        while len(rig.journal.segments()) < 3:
            rig.create(f"q{rig.journal.last_lsn}")
        answers: list[Refusal | None] = []
        rig.compact(lambda: rig.namespace.delete_topic("news", rig.now, answers.append))
        rig.run()
        assert answers == [None]
        with rig.reopened() as again:
            assert dict(again.namespace.topics) == {}
            assert again.namespace.notes == []
