from __future__ import annotations

from pairbus.broker.model.description import QueueDescription, TopicDescription
from pairbus.broker.operations.quotas import Quotas
from pairbus.broker.refusal import Refusal
from tests.broker.namespace_rig import Rig, condition


def test_how_many_queues_and_topics_there_can_be() -> None:
    with Rig() as rig:
        rig.namespace.registry.quotas = Quotas(entities=3)
        rig.create("a")
        rig.create_topic("b")
        for name in ("s", "t"):
            rig.subscribe(name, topic="b")  # these have a limit of their own
        answers: list[Refusal | None] = []
        rig.namespace.registry.create(QueueDescription(name="c"), 1.0, answers.append)
        rig.namespace.registry.create(TopicDescription(name="d"), 1.0, answers.append)
        rig.run()
        assert [condition(answer) for answer in answers] == ["amqp:resource-limit-exceeded", None]


def test_a_creation_that_the_disk_refused_leaves_nothing_behind(bare: Rig) -> None:
    bare.create_topic()
    bare.fail_calls()
    answers: list[Refusal | None] = []
    bare.namespace.registry.create(TopicDescription(name="other"), 1.0, answers.append)
    bare.namespace.registry.update(TopicDescription(name="news", max_size_mb=2048), 1.0, answers.append)
    bare.namespace.registry.delete_topic("news", 1.0, answers.append)
    bare.wait(0.3, 20)
    assert [answer is None for answer in answers] == [False] * 3
    topic = bare.namespace.topics["news"]
    assert (list(bare.namespace.topics), topic.deleting, topic.description.max_size_mb) == (["news"], False, 1024)
    bare.files.faults.clear()
    bare.wait(0.3, 20)
    bare.create_topic("other")


def test_a_topic_that_is_copied_while_it_is_deleted_stays_deleted(bare: Rig) -> None:
    bare.create_topic()
    bare.subscribe("a")
    bare.subscribe("b")
    bare.send(b"x" * 300, path="news")
    while len(bare.journal.segments()) < 3:
        bare.create(f"q{bare.journal.last_lsn}")
    answers: list[Refusal | None] = []
    bare.compact(lambda: bare.namespace.registry.delete_topic("news", bare.now, answers.append))
    bare.run()
    assert answers == [None]
    with bare.reopened() as again:
        assert dict(again.namespace.topics) == {}
        assert again.namespace.notes == []
