"""What the supervisor of the query makes of the notices that reach it, without Spark."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pairbus.spark.options import Address
from pairbus.spark.syphon import SparkSyphon

QUEUE = "contoso/x-servicebus-transfer/0"
ADDRESS = Address("Endpoint=sb://localhost;SharedAccessKeyName=n;SharedAccessKey=a2V5;UseDevelopmentEmulator=true")


class Looking:
    """Stands where the loop thread stands: nothing is given back to a broker."""

    def run(self, coroutine: Any) -> None:
        coroutine.close()


@pytest.fixture
def syphon() -> Iterator[SparkSyphon]:
    made = SparkSyphon(ADDRESS, ADDRESS, [(QUEUE, 0)])
    yield made
    shutil.rmtree(made._folder)


def notice(*left: tuple[str, str, str, float, bool], troubles: dict[str, Any] | None = None) -> dict[str, Any]:
    nothing: dict[str, Any] = {"moved": {}, "bytes": 0, "dead_lettered": {}, "refused": [], "denied": {}, "busy": []}
    return {**nothing, "batch": 1, "left": list(left), "troubles": troubles or {}}


def tokens(found: list[tuple[str, str]]) -> list[str]:
    return [token for _, token in found]


def test_p40_one_message_tries_a_destination_that_is_away_and_all_follow_when_it_is_back(syphon: SparkSyphon) -> None:
    end = time.time() + 60
    away = {"orders": ("unreachable", "connection refused", "pairbus:unreachable", 1)}
    syphon._heard_of_sink(notice((QUEUE, "a", "orders", end, False), (QUEUE, "b", "orders", end, False), troubles=away))
    assert syphon._chosen(set()) == [], "it was tried just now"
    assert tokens(syphon._chosen({"orders"})) == ["a"]
    syphon._heard_of_sink({**notice(), "moved": {"orders": 1}})
    assert tokens(syphon._chosen(set())) == ["a", "b"]


def test_p41_what_a_replay_can_never_deliver_is_not_asked_back(syphon: SparkSyphon) -> None:
    end = time.time() + 60
    syphon._heard_of_sink(notice((QUEUE, "a", "", end, True), (QUEUE, "b", "orders", end, False)))
    assert tokens(syphon._chosen(set())) == ["b"]
    assert tokens(list(syphon._left)) == ["a", "b"], "a clean stop gives back both"


def test_p24_a_destination_that_is_due_is_tried_once_and_then_after_its_pause(syphon: SparkSyphon) -> None:
    end = time.time() + 60
    away = {"orders": ("unreachable", "connection refused", "pairbus:unreachable", 1)}
    syphon._heard_of_sink(notice((QUEUE, "a", "orders", end, False), troubles=away))
    trouble = syphon._troubles["orders"]
    assert trouble.until > time.monotonic()
    syphon._troubles["orders"] = trouble._replace(until=0.0)
    syphon._revive(Looking())  # type: ignore[arg-type]
    assert syphon._troubles["orders"].until > time.monotonic()
