from __future__ import annotations

import pytest

from pairbus.syphon.core.engine_choice import Choice, choose


@pytest.mark.parametrize(
    ("messages", "only_spark", "found"),
    [
        (0, None, Choice("in-process", "there are 0 messages, and up to 5,000 need no Spark")),
        (1, None, Choice("in-process", "there is 1 message, and up to 5,000 need no Spark")),
        (5_000, None, Choice("in-process", "there are 5,000 messages, and up to 5,000 need no Spark")),
        (5_001, None, Choice("spark", "there are 5,001 messages, more than 5,000")),
        (None, None, Choice("spark", "the messages could not be counted beforehand")),
        (1, "--where is Spark SQL", Choice("spark", "--where is Spark SQL")),
    ],
)
def test_few_messages_are_for_this_process(messages: int | None, only_spark: str | None, found: Choice) -> None:
    assert choose(messages, only_spark) == found
