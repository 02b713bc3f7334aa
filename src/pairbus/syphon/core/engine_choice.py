"""Decides which engine a command uses: Spark, or its own process. Pure."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Engine = Literal["spark", "in-process"]
#: How many messages this process has moved by the time that Spark has started.
IN_PROCESS_MAX: Final = 5_000


class Choice(NamedTuple):
    engine: Engine
    why: str


def choose(messages: int | None, only_spark: str | None = None) -> Choice:
    """Return the engine for so many messages, None where they could not be counted. `only_spark`: why only Spark will
    do, if that is so."""
    if only_spark is not None:
        return Choice("spark", only_spark)
    if messages is None:
        return Choice("spark", "the messages could not be counted beforehand")
    there_are = f"there {'is 1 message' if messages == 1 else f'are {messages:,} messages'}"
    if messages > IN_PROCESS_MAX:
        return Choice("spark", f"{there_are}, more than {IN_PROCESS_MAX:,}")
    return Choice("in-process", f"{there_are}, and up to {IN_PROCESS_MAX:,} need no Spark")
