"""Settles messages by lock token, from a DataFrame on the executors or from a list on the driver.

    def each_batch(rows, number):                    # a function for foreachBatch on a stream with mode=lock
        rows = rows.localCheckpoint()                # evaluated again, it would lock other messages
        rows.write.mode("append").parquet("…")
        pairbus.spark.complete(rows, connectionStringEnv="BUS")

A lock batch can't be evaluated twice: the second time it locks other messages, which nobody has seen, and settling
those would lose them. Rows that Spark might evaluate again are refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from pairbus.spark.connector import connections
from pairbus.spark.connector.entities import without_dead_letters
from pairbus.spark.connector.lock_reader import is_about_sessions
from pairbus.spark.connector.options import Address, InvalidOption, parse
from pairbus.wire.errors import Refused
from pairbus.wire.settling import (
    ABANDONED,
    COMPLETED,
    DEAD_LETTERED,
    DEFERRED,
    RENEWED,
    TOKENS_AT_ONCE,
    count_lost,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SETTLE_S: Final = 30.0
#: The required columns. If a request fails, the sequence number tells which messages it has settled nevertheless.
COLUMNS: Final = {"entity": "string", "lock_token": "string", "sequence_number": "bigint"}
#: The options that name the namespace.
_NAMESPACE: Final = ("connectionString", "connectionStringEnv", "fullyQualifiedNamespace", "credential", "caFile")


class Settled(NamedTuple):
    """How many messages were settled or renewed, and how many locks were lost: those messages come again.

    A message whose lock does not hold and that is no longer in its entity counts as settled, where it was one of
    several: a request, or a task that Spark ran before, may have settled it without saying so, and the namespace says
    the same of a token that it never gave. So tokens of another namespace can be counted as settled; nothing happens to
    their messages, and they come again.
    """

    settled: int
    lost: int


def complete(rows: DataFrame, **options: Any) -> Settled:
    """Complete the messages of these rows: they leave their entity. Returns how many, and how many locks were lost.
    Whatever is gone counts as settled, tokens that the namespace never gave included (see Settled).

    `options`: the connector's that name the namespace, such as connectionStringEnv. Raises InvalidOption for rows that
    lack a column, or that Spark would evaluate again (call `rows.localCheckpoint()` first, and use what it returns).
    """
    return _settle_rows(rows, COMPLETED, options)


def abandon(rows: DataFrame, **options: Any) -> Settled:
    """Give the messages of these rows back at once; as `complete`. A lock that had ended counts as given back where
    other locks of the same request were lost as well."""
    return _settle_rows(rows, ABANDONED, options)


def dead_letter(
    rows: DataFrame, *, reason: str | None = None, description: str | None = None, **options: Any
) -> Settled:
    """Move the messages of these rows to the dead-letter queue of their entity; as `complete`. Raises InvalidOption for
    rows of a dead-letter queue, too."""
    return _settle_rows(rows, DEAD_LETTERED, options, reason=reason, description=description)


def defer(rows: DataFrame, **options: Any) -> Settled:
    """Defer the messages of these rows: they can be received by their sequence numbers only; as `complete`."""
    return _settle_rows(rows, DEFERRED, options)


def renew(rows: DataFrame, **options: Any) -> Settled:
    """Renew the locks of these rows for the entity's lock duration from now on; as `complete`. Raises InvalidOption for
    rows of an entity with sessions, whose messages have no locks of their own."""
    return _settle_rows(rows, RENEWED, options)


def _settle_rows(rows: DataFrame, disposition: str, options: Mapping[str, Any], **words: str | None) -> Settled:
    parsed = parse({name: str(value) for name, value in options.items()}, os.environ)
    known = {name.lower() for name in (*_NAMESPACE, "cause")}
    if more := sorted(name for name in options if name.lower() not in known):
        raise InvalidOption(
            f"{', '.join(more)} can't be given here, where only the namespace is named and the rows say what to "
            f"settle; right are {', '.join(_NAMESPACE)}"
        )
    for name, value in words.items():
        if not isinstance(value, str | None):
            raise InvalidOption(f"{name} is text, and not {value!r}")
    check_settleable(rows)
    # not mapInArrow, which needs pandas
    tasks = rows.select(*COLUMNS).rdd.mapPartitions(partial(_settle_task, parsed.address, disposition, words))
    counts: list[Settled] = []
    for each in tasks.collect():
        if isinstance(each, str):
            raise InvalidOption(each)
        counts.append(each)
    return Settled(sum(each.settled for each in counts), sum(each.lost for each in counts))


def _settle_task(
    address: Address,
    disposition: str,
    words: Mapping[str, str | None],
    rows: Iterable[tuple[str | None, str | None, int | None]],
) -> Iterator[Settled | str]:
    """Settle the rows of a task, on its executor. Yields counts, or why it can't be done: with an error its Python
    worker would end, and with it the locks of sessions that it may hold."""
    by_entity: dict[str, dict[UUID, int]] = {}
    for entity, token, number in rows:
        try:
            key = UUID(token)
        except (TypeError, ValueError):
            key = None
        if entity is None or key is None:
            yield f"a row has the entity {entity!r} and the lock_token {token!r}: it is not of a stream with mode=lock"
            return
        locked = by_entity.setdefault(entity, {})
        locked[key] = number or 0
        if len(locked) == TOKENS_AT_ONCE:
            yield _settled(address, entity, by_entity.pop(entity), disposition, words)
    for entity, locked in by_entity.items():
        yield _settled(address, entity, locked, disposition, words)


def _settled(
    address: Address, entity: str, locked: Mapping[UUID, int], disposition: str, words: Mapping[str, str | None]
) -> Settled | str:
    if disposition == DEAD_LETTERED and without_dead_letters(entity)[1]:
        return f"messages of {entity} are dead letters already; complete, abandon or defer them"
    try:
        return settle(address, entity, locked, disposition, **words)
    except Refused as error:
        if disposition == RENEWED and is_about_sessions(error):
            return f"locks of messages of {entity} can't be renewed: {error}"
        raise


def settle(
    address: Address, entity: str, locked: Mapping[UUID, int], disposition: str = COMPLETED, **words: str | None
) -> Settled:
    """Settle messages of an entity: lock token → sequence number."""
    tokens, numbers = list(locked), list(locked.values())
    client = connections.client(address)
    lost = count_lost(client.settle_each(entity, tokens, disposition, numbers=numbers, timeout=SETTLE_S, **words))
    return Settled(len(locked) - lost, lost)


# -- may it


def check_settleable(rows: DataFrame) -> None:
    """Raise InvalidOption where a column is missing, or where the rows would be locked anew when they are settled."""
    if not hasattr(rows, "isStreaming"):
        raise InvalidOption(f"rows to be settled are a DataFrame, a batch of a lock stream, and not {rows!r}")
    kinds = {field.name.lower(): field.dataType.simpleString() for field in rows.schema}
    missing = [name for name in COLUMNS if name not in kinds]
    if missing:
        raise InvalidOption(
            f"rows to be settled need the column{'s' if len(missing) > 1 else ''} {', '.join(missing)} of the lock "
            f"stream; these have {', '.join(rows.columns)}"
        )
    for name, kind in COLUMNS.items():
        if kinds[name] != kind:
            raise InvalidOption(f"the column {name} is {kinds[name]}, and in the lock stream it is {kind}; leave it so")
    if rows.isStreaming:
        raise InvalidOption("a stream can't be settled as such; settle its batches, in a function for foreachBatch")
    if _is_evaluated_anew(rows):
        raise InvalidOption(
            "these rows would be evaluated once more, and lock other messages than those that you have seen; at the "
            "beginning of the batch call rows = rows.localCheckpoint(), and use and settle that. persist() is not "
            "enough: Spark evaluates again what is lost with an executor"
        )


def _is_evaluated_anew(rows: DataFrame) -> bool:
    """Return whether a leaf of the plan is a source that Spark asks again. A checkpoint's rows have no such leaf."""
    plan = getattr(rows, "_jdf", None)
    if plan is None:
        raise InvalidOption("rows can't be settled over Spark Connect, which does not say where they come from")
    leaves = [plan.queryExecution().optimizedPlan().collectLeaves()]
    while leaves:
        found = leaves.pop()
        for leaf in (found.apply(index) for index in range(found.size())):
            kind = leaf.getClass().getSimpleName()
            if kind in ("InMemoryRelation", "InMemoryTableScanExec"):
                relation = leaf if kind == "InMemoryRelation" else leaf.relation()
                leaves.append(relation.cacheBuilder().cachedPlan().collectLeaves())
            elif kind == "AdaptiveSparkPlanExec":
                leaves.append(leaf.inputPlan().collectLeaves())
            elif kind in ("LogicalRDD", "RDDScanExec"):
                if "DataSourceRDD" in leaf.rdd().toDebugString():
                    return True
            elif "DataSourceV2" in kind or kind in ("BatchScanExec", "MicroBatchScanExec"):
                return True
    return False
