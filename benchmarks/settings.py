"""How much each table does per round, for a real run and for `--quick`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MESSAGE_BYTES = 1024
WINDOW = 1000
BATCH = 100


@dataclass(frozen=True, slots=True)
class Settings:
    data: Path
    rounds: int = 9
    quick: bool = False
    only: str | None = None  # table, or table.case
    rivals: bool = True  # False: this checkout is measured beside another one, and nobody else

    # per round
    one_at_a_time: int = 400
    windowed: int = 20_000
    batched: int = 50_000
    sdk_single: int = 300
    sdk_listed: int = 3_000
    depths: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    fanout: tuple[int, ...] = (1, 2, 5, 10)  # subscriptions of a topic
    published: int = 10_000
    crowd: int = 1_000  # queues, and connections
    crowd_s: float = 3.0  # how long the bystander is watched, alone and in the crowd
    beside: int = 200_000  # messages of one queue, of which all come at once
    beside_rules: int = 200
    beside_entities: int = 10_000
    paired_single: int = 900  # of each kind, bare and paired
    paired_listed: int = 6_000
    weighed_senders: int = 50
    outage_entities: int = 10
    outage_sends: int = 20  # of each entity, after its first diverted one
    returning: int = 100  # senders
    syphoned: int = 40_000
    looped: int = 8_000
    spark_messages: int = 50_000
    spark_backlog: int = 200_000  # that is brought home
    spark_looped: int = 10_000
    spark_scaled: int = 100_000  # by executors
    spark_depths: tuple[int, ...] = (10_000, 100_000, 500_000)
    spark_clusters: tuple[str, ...] = ("local-cluster[1,1,1024]", "local-cluster[2,1,1024]")
    ledger_lines: int = 6_000_000

    @classmethod
    def tiny(cls, data: Path, rounds: int = 1, only: str | None = None, *, rivals: bool = True) -> Settings:
        return cls(
            data,
            rounds,
            True,
            only,
            rivals,
            one_at_a_time=20,
            windowed=1_000,
            batched=1_000,
            sdk_single=10,
            sdk_listed=200,
            depths=(1_000, 3_000),
            fanout=(1, 3),
            published=500,
            crowd=20,
            crowd_s=0.3,
            beside=2_000,
            beside_rules=20,
            beside_entities=200,
            paired_single=12,
            paired_listed=600,
            weighed_senders=3,
            outage_entities=2,
            outage_sends=2,
            returning=3,
            syphoned=800,
            looped=800,
            spark_messages=2_000,
            spark_backlog=2_000,
            spark_looped=1_000,
            spark_depths=(1_000, 2_000),
            spark_clusters=(),
            ledger_lines=20_000,
        )

    def wants(self, table: str, case: str | None = None) -> bool:
        if self.only is None:
            return True
        wanted_table, _, wanted_case = self.only.partition(".")
        return table == wanted_table and (case is None or not wanted_case or case == wanted_case)


def body() -> bytes:
    """Random, so that no store can squeeze it."""
    return os.urandom(MESSAGE_BYTES)
