"""`pairbus.spark.syphon()` up to the point where Spark would start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pairbus.pairing.backlog.backlog_queues import path
from pairbus.spark.connector.options import InvalidOption
from pairbus.spark.syphon import api
from pairbus.syphon.settings import SyphonSettings
from tests.spark.conftest import MakeQueue, Pair


class Inner:
    """In place of SparkSyphon: what it was given."""

    def __init__(self, settings: SyphonSettings) -> None:
        self.queues, self.lister = settings.queues, settings.lister

    def run(self) -> list[Any]:
        return []


@pytest.fixture
def start(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Inner]:
    monkeypatch.setattr(api, "SparkSyphon", Inner)

    def start(**options: Any) -> Inner:
        given = {"primary_name": "contoso", "ca_file": pair.secondary.ca_file, **options}
        running = api.syphon(pair.primary.connection_string, pair.secondary.connection_string, **given)
        running.wait(5)
        inner: Any = running._inner
        return inner  # type: ignore[no-any-return]

    return start


def test_p36_the_queues_that_there_are_and_a_lister_for_those_to_come(
    pair: Pair, start: Callable[..., Inner], make_queue: MakeQueue
) -> None:
    first = start()
    assert first.queues == [] and first.lister is not None and first.lister.discovery.greeting() is not None, (
        "it waits for the first"
    )
    with pytest.raises(InvalidOption, match=r"has no backlog queue of contoso: nothing to drain"):
        start(drain=True)
    make_queue(pair.secondary, path("contoso", 1), path("contoso", 0))
    made = start()
    assert made.queues == [(path("contoso", 0), 0), (path("contoso", 1), 1)]
    assert repr(made.lister) == "<Lister <QueueDiscovery contoso on 127.0.0.1: 2 queues>>"


def test_with_a_count_nothing_is_listed(start: Callable[..., Inner]) -> None:
    made = start(count=2, ca_file=None)
    assert (made.queues, made.lister) == ([(path("contoso", 0), 0), (path("contoso", 1), 1)], None)


def test_without_the_right_to_list_it_asks_for_the_count(start: Callable[..., Inner]) -> None:
    with pytest.raises(InvalidOption, match=r"found by listing .* so give count"):
        start(ca_file=None)
