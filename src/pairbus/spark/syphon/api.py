"""Starts the syphon in a notebook or a user's own job with one call: `pairbus.spark.syphon()`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairbus.ledger import LedgerWriter
from pairbus.pairing.backlog import backlog_queues
from pairbus.spark.connector.connections import endpoint
from pairbus.spark.connector.listing import administration
from pairbus.spark.connector.options import Address, InvalidOption
from pairbus.spark.runtime.running import Running
from pairbus.syphon.core.queue_discovery import QueueDiscovery
from pairbus.syphon.listing import OPTIONS, Lister, ListingFailed, list_backlog, list_now
from pairbus.syphon.settings import SyphonSettings
from pairbus.wire import ConnectionString

from .query import SparkSyphon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class RunningSyphon(Running):
    """A syphon that runs on a thread: `report()` at any time; `stop()` gives back what is locked; `wait()` for a
    drain."""

    _inner: SparkSyphon

    def __init__(self, inner: SparkSyphon, ledger: LedgerWriter | None) -> None:
        super().__init__(inner, "the syphon", None if ledger is None else ledger.close)


def syphon(
    primary: str,
    secondary: str,
    *,
    spark: SparkSession | None = None,
    primary_name: str | None = None,
    count: int | None = None,
    ca_file: str | Path | None = None,
    ledger: str | Path | None = None,
    **options: Any,
) -> RunningSyphon:
    """Start the syphon and return at once. The namespaces: connection strings, or host names (then
    DefaultAzureCredential).

    `count`: the backlog queues 0 to count-1; without it those that the secondary has, which needs the Manage right,
    and but for a drain those that are made while it runs.
    `options`: drain, max_rate, dead_letters, count_backlog_time, master, conf, checkpoint, messages_per_trigger,
    min_partitions.
    """
    primary_address, secondary_address = address_of_text(primary, ca_file), address_of_text(secondary, ca_file)
    name = backlog_queues.primary_name(host_of(primary), primary_name)
    queues: list[tuple[str, int | None]] = [(backlog_queues.path(name, index), index) for index in range(count or 0)]
    lister = None
    if not queues:
        queues, lister = _found(secondary_address, name, host_of(secondary), is_drain=bool(options.get("drain")))
    writer = None if ledger is None else LedgerWriter(Path(ledger), "syphon")
    settings = SyphonSettings(
        endpoint(primary_address)._replace(name=name),
        endpoint(secondary_address)._replace(name=host_of(secondary)),
        queues,
        spark=spark,
        ledger=writer,
        lister=lister,
        **options,
    )
    return RunningSyphon(SparkSyphon(settings), writer)


def _found(
    secondary: Address, name: str, label: str, *, is_drain: bool
) -> tuple[list[tuple[str, int | None]], Lister | None]:
    """Return the queues that there are, and what finds those that are made later."""
    make_admin = partial(administration, secondary, **OPTIONS)
    try:
        known = list_now(make_admin, name)
    except ListingFailed as error:
        raise InvalidOption(
            f"without count the backlog queues are found by listing those of {label}, and that failed: {error}; so "
            "give count, the backlog_queue_count that the applications pair with"
        ) from error
    if is_drain and not known:
        raise InvalidOption(f"{label} has no backlog queue of {name}: nothing to drain")
    discovery = QueueDiscovery(name, label, [each.path for each in known], orphans=True)
    return [(each.path, each.number) for each in known], Lister(discovery, partial(list_backlog, make_admin, name))


def started(
    spark: SparkSession | None,
    master: str | None,
    on_start: Callable[[float], None] | None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session that knows our source, and is the active one of this thread: without that a writer does not find
    Python sinks (4.0 to 4.3)."""
    from pairbus.spark.connector.source import register
    from pairbus.spark.runtime.session import session

    made = session(master, conf=conf, on_progress=on_start) if spark is None else spark
    made.createDataFrame([], "none int")
    register(made)
    return made


def address_of_text(text: str, ca_file: str | Path | None = None) -> Address:
    """Return the address of a connection string, or of a host name."""
    trusted = None if ca_file is None else str(ca_file)
    return Address(text, ca_file=trusted) if "=" in text else Address(host=text, ca_file=trusted)


def host_of(text: str) -> str:
    """Return the host that a connection string names, or the host name itself. Raises InvalidOption."""
    if "=" not in text:
        return text
    try:
        return ConnectionString.parse(text).host
    except ValueError as error:
        raise InvalidOption(str(error)) from None
