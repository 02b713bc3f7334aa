"""Parts for users' own pipelines: locked messages as a stream, and a sink that settles them once they are confirmed.

    rows = locked(spark, NAMESPACE, "orders")                                  # DataFrame, one row a message
    with carry(rows, OTHER, "orders-eu", settle=NAMESPACE) as carrying: …      # carrying.query is Spark's

They are a thin layer over the connector's options, so that users need not remember which belong together. The
guarantees are those of mode `lock`: at least once, a message leaves its entity only after the destination confirmed it.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairbus.spark.connector.options import Address, InvalidOption, as_options, as_settle_options
from pairbus.spark.connector.process_mailbox import ProcessMailbox
from pairbus.spark.connector.source import register
from pairbus.spark.connector.writer import WRITTEN, Sent
from pairbus.spark.syphon.api import started

from .archive import address_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def locked(spark: SparkSession, namespace: str | Address, entity: str, **options: Any) -> DataFrame:
    """Return a stream of peek-locked messages of one entity or several (a list, globs). `options`: the connector's.

    What a filter drops keeps its lock until that ends, and comes again: give every row to the sink, or use
    `pairbus.spark.pipelines.move`, which picks without that.
    """
    register(spark)
    texts = {name: str(value) for name, value in options.items()}
    found = {**as_options(address_of(namespace)), "entity": entity, "mode": "lock", **texts}
    return spark.readStream.format("servicebus").options(**found).load()


def carry(
    rows: DataFrame,
    namespace: str | Address,
    destination: str | None = None,
    *,
    settle: str | Address | None = None,
    checkpoint: str | Path | None = None,
    **options: Any,
) -> Carrying:
    """Start a query that sends each row: to `destination`, or where its column `destination` says. After the confirm
    it is completed at `settle`, the namespace that `locked` read from. Both namespaces: a connection string, a host
    name (then DefaultAzureCredential), or an Address, which takes a credential's name and a CA file too.

    `checkpoint` may be left out for a lock stream: the queue is the state. For another stream a temporary one would
    mean that every start begins anew, so there it is wanted. `options`: the connector's, such as onRefused.

    The batches keep to the locks that the entity gives: what a slow function between `locked` and `carry` brings too
    late is not sent, comes again, and the next batches are smaller. `Carrying` counts it.
    """
    if settle is None and checkpoint is None:
        raise InvalidOption("name a checkpoint, or with settle the namespace whose locks the rows hold")
    found = as_options(address_of(namespace))
    if destination is not None:
        found["entity"] = destination
    if settle is not None:
        found |= as_settle_options(address_of(settle))
    found |= {name: str(value) for name, value in options.items()}
    started(rows.sparkSession, None, None)
    folder = Path(tempfile.mkdtemp(prefix="pairbus-carry-"))
    mailbox = folder / "board"
    mailbox.mkdir()
    found |= {"board": str(mailbox), "checkpointLocation": str(checkpoint or folder / "checkpoint")}
    return Carrying(rows.writeStream.format("servicebus").options(**found).start(), folder)


class Carrying:
    """A running query; `with` stops it at the end. What was locked by a batch that a stop breaks off comes again when
    its lock ends."""

    def __init__(self, query: StreamingQuery, folder: Path) -> None:
        self.query = query
        self._folder = folder
        self._mailbox = ProcessMailbox(folder / "board")
        self._written = Sent()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Carrying {'running' if self.query.isActive else 'ended'}: {self.sent} sent>"

    def __enter__(self) -> Carrying:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def sent(self) -> int:
        """Rows that were confirmed, counted at the end of their batch, or of their task where a stop breaks it off."""
        return self._heard().count

    @property
    def late(self) -> int:
        """Rows that were not sent, since their locks had ended; they come again."""
        return self._heard().late

    @property
    def lost_locks(self) -> int:
        """Rows that were sent and whose locks ended before they were settled; they come again, and are duplicated."""
        return self._heard().lost

    @property
    def refused(self) -> int:
        """Rows that were refused permanently, and dealt with as the option onRefused says."""
        return self._heard().refused

    def _heard(self) -> Sent:
        with self._lock:
            for notice in self._mailbox.read_new(WRITTEN):
                self._written.add(Sent(**notice))
            return self._written

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        return self.query.awaitTermination(timeout)  # type: ignore[arg-type]

    def stop(self) -> None:
        self.query.stop()
        self._heard()
        shutil.rmtree(self._folder, ignore_errors=True)
