"""Defines the settings of a syphon: created once by the code that starts it, and read by its engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pairbus.ledger import LedgerWriter
from pairbus.syphon.core.pair_lifecycle import Which
from pairbus.wire.errors import WireError

from .endpoint import Endpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .listing import Lister

MESSAGES_PER_TRIGGER: Final = 60_000
#: How long a clean stop waits for the batch under way.
STOP_S: Final = 60.0

Access = Callable[[Which, WireError | None], None]


@dataclass(frozen=True)
class SyphonSettings:
    """`queues`: paths of backlog queues, with their indexes where they have one. `lister` finds those that are made
    while it runs (not in a drain); with one there may be none at first. `on_access(which, error)`: access to "primary"
    or "secondary" was refused, or (None) granted. `on_running`: it reads."""

    primary: Endpoint
    secondary: Endpoint
    queues: Sequence[tuple[str, int | None]]
    _: KW_ONLY
    drain: bool = False
    max_rate: float | None = None
    dead_letters: bool = False
    count_backlog_time: bool = False
    ledger: LedgerWriter | None = None
    #: Until when, by the monotonic clock, the application sends nothing to a destination.
    halted_until: Callable[[str], float] | None = None
    on_busy: Callable[[str], None] | None = None
    on_access: Access | None = None
    #: Of the Spark engine alone, from here to `on_start`. The application's session is `spark`; without it one is found
    #: or started.
    master: str | None = None
    conf: Mapping[str, str] | None = None
    checkpoint: str | Path | None = None
    spark: SparkSession | None = None
    #: How long a stop waits for the batch in progress.
    stop_s: float = STOP_S
    on_running: Callable[[], None] | None = None
    #: Called with the seconds for which Spark has been starting.
    on_start: Callable[[float], None] | None = None
    lister: Lister | None = None
    #: Tasks of a batch at least: several receivers compete for a backlog queue. Of Spark alone, too.
    min_partitions: int = 1
    messages_per_trigger: int = MESSAGES_PER_TRIGGER

    def __post_init__(self) -> None:
        if not self.queues and (self.lister is None or self.drain):
            raise ValueError("no backlog queue to read from was named")

    def label(self, which: Which) -> str:
        return self.primary.label if which == "primary" else self.secondary.label

    def read_path(self, queue: str) -> str:
        """Return the path that is read for a backlog queue: the queue, or its dead-letter queue."""
        return f"{queue}/$DeadLetterQueue" if self.dead_letters else queue
