"""Checks entities and the `--where` filter before a move, archive or restore, and chooses messages by peeking.

A shell around the wire client and, if there is a filter, a Spark job on the connector's columns. Messages that arrive
later are not included.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from pairbus.errors import PairbusError, first_line
from pairbus.spark.connector import connections, listing
from pairbus.spark.connector.batch_reader import PEEK_COUNT, first_from
from pairbus.spark.connector.entities import is_glob, subscription_of, without_dead_letters
from pairbus.spark.connector.lock_reader import is_about_sessions
from pairbus.spark.connector.options import SEQUENCE_MAX, Address, InvalidOption, as_options
from pairbus.spark.connector.schema import SCHEMA
from pairbus.spark.connector.selection import Selection
from pairbus.syphon.core.arrival import annotations_of
from pairbus.wire.errors import NotFound, TimedOut, Unauthorized, Unreachable, WireError
from pairbus.wire.partitions import ask, search_ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: Of Spark's own.
_LIMIT_MAX: Final = 2**31 - 1
_ANSI: Final = "spark.sql.ansi.enabled"


class TransferFailed(PairbusError):
    """A move, an archive or a restore that can't be begun or can't go on."""


class SessionsRequired(TransferFailed):
    """The entity requires sessions, and its messages can't be locked one by one."""


#: Texts and names in quotes, with what is escaped in them.
_QUOTED: Final = re.compile(r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|`[^`]*`""", re.DOTALL)
#: A word right before a comparison, which no dot, bracket or other word makes a part of something else.
_COMPARED: Final = re.compile(
    r"(?:^|\b(?:and|or|not|where)\b|\()\s*([A-Za-z_]\w*)\s*(?:[<>=!]|\b(?:is|in|like|rlike|ilike|between)\b)",
    re.IGNORECASE,
)
_NO_NAMES: Final = frozenset(
    ("true", "false", "null", "not", "current_date", "current_timestamp", "current_user", "user")
)
#: All that there may be.
EVERYTHING: Final = Selection(((1, SEQUENCE_MAX),))


class Chosen(NamedTuple):
    """`messages`: how many they are, None where only their range is known."""

    selection: Selection
    messages: int | None


# -- which


def choose(
    spark: SparkSession | None,
    address: Address,
    entity: str,
    where: str | None = None,
    count: int | None = None,
    *,
    counted: bool = False,
) -> Chosen:
    """Return the oldest `count` of the active messages that `where` is true for, which takes a session. `counted`:
    count them in any case."""
    if where is not None:
        assert spark is not None
        return _by_filter(spark, address, entity, where, count)
    client = connections.client(address)
    if count is None and not counted:
        found = ask(search_ranges({}), partial(first_from, client, entity))
        return Chosen(Selection(found.values()), None)
    numbers = list(itertools.islice(active_numbers(address, entity, 1, SEQUENCE_MAX), count))
    return Chosen(Selection.of(numbers), len(numbers))


def count_at_most(address: Address, entity: str) -> int | None:
    """Return how many messages a receiver would find; without the Manage right the span of their numbers, which is no
    less. None where neither can be asked for."""
    found = listing.depth(address, entity)
    if found is None:
        with contextlib.suppress(WireError):
            found = len(choose(None, address, entity).selection)
    return found


def _by_filter(spark: SparkSession, address: Address, entity: str, where: str, count: int | None) -> Chosen:
    from pyspark.errors import PySparkException

    try:
        rows = peeked_rows(spark, address, entity, where).where("state = 'active'").select("sequence_number")
        if count is not None:
            rows = rows.orderBy("sequence_number").limit(min(count, _LIMIT_MAX))
        numbers: list[int] = rows.toArrow().column(0).to_pylist()
    except PySparkException as error:
        raise TransferFailed(f"the filter {where!r} failed on a message: {first_line(error)}") from None
    return Chosen(Selection.of(numbers), len(numbers))


def filtered(rows: DataFrame, where: str) -> DataFrame:
    """Return the rows that `where` is true for. What it can't be computed for, such as a cast of a body that is no
    number, is left out: one odd message must not keep the others. Raises InvalidOption, which names the columns."""
    from pyspark.errors import PySparkException

    try:
        with _quiet(), _lenient(rows.sparkSession):
            found, is_ever_true = rows.where(where), _is_ever_true(rows, where)
    except PySparkException as error:
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in SCHEMA)
        raise InvalidOption(
            f"the filter {where!r} is not understood: {first_line(error)}; the columns are {columns}"
        ) from None
    if not is_ever_true:
        raise InvalidOption(
            f"the filter {where!r} is true for no message, whatever it holds: perhaps it names a time or a number that "
            "is none; a time is written as '2026-01-31 08:00:00', and what is missing is found by IS NULL"
        )
    return found


def _is_ever_true(rows: DataFrame, where: str) -> bool:
    """Return False where Spark knows, whatever the rows are, that none is chosen. Asks nothing of their source."""
    spark = rows.sparkSession
    unknown = spark.createDataFrame(spark.sparkContext.emptyRDD(), rows.schema).where(where)
    rows_max = unknown._jdf.queryExecution().optimizedPlan().maxRows()
    return not (rows_max.isDefined() and rows_max.get() == 0)


def check_filter(where: str | None, *more: str) -> None:
    """Raise InvalidOption for what is surely wrong with it, before Spark is started; Spark reads it as a whole. `more`:
    columns beside the connector's."""
    if where is None:
        return
    bare = _QUOTED.sub("''", where)
    wrong = None
    if not where.strip():
        wrong = "it is empty"
    elif "'" in bare.replace("''", "") or '"' in bare:
        wrong = "a quote is not closed"
    elif bare.count("(") != bare.count(")"):
        wrong = "a parenthesis has no other half"
    elif "->" not in bare:  # the names of a lambda's arguments are its own
        columns = {*more, *(field.name for field in SCHEMA)}
        unknown = [name for name in _COMPARED.findall(bare) if name.lower() not in columns | _NO_NAMES]
        wrong = f"there is no column {unknown[0]}" if unknown else None
    if wrong is not None:
        shown = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in SCHEMA)
        raise InvalidOption(f"the filter {where!r} is not understood: {wrong}; the columns are {shown}")


def is_empty(address: Address, entity: str, *, is_active_only: bool) -> bool:
    """Return whether there is no message; with `is_active_only` deferred and scheduled ones don't count."""
    if is_active_only:
        return not still_there(address, entity, EVERYTHING, 1)
    return not connections.client(address).peek(entity, 1, 1)


def peeked_rows(spark: SparkSession, address: Address, entity: str, where: str | None = None) -> DataFrame:
    from pairbus.spark.connector.source import register

    register(spark)
    rows = spark.read.format("servicebus").options(**as_options(address), entity=entity).load()
    return rows if where is None else filtered(rows, where)


@contextlib.contextmanager
def _lenient(spark: SparkSession) -> Iterator[None]:
    """Spark decides what a failed cast comes to when it reads the expression, not when it runs it."""
    before = spark.conf.get(_ANSI, "false") or "false"
    spark.conf.set(_ANSI, "false")
    try:
        yield
    finally:
        spark.conf.set(_ANSI, before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """PySpark would log a wrong filter as a page of JSON; the error says it in a line."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(name) for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger")]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger in loggers:
            logger.disabled = False


def still_there(address: Address, entity: str, selection: Selection, count_max: int | None = None) -> list[int]:
    """Return the sequence numbers of chosen messages that are still there, at most `count_max`."""
    if not len(selection):
        return []
    found = (n for n in active_numbers(address, entity, selection.first, selection.last) if n in selection)
    return list(itertools.islice(found, count_max))


def active_numbers(address: Address, entity: str, first: int, last: int) -> Iterator[int]:
    client = connections.client(address)
    at = first
    while at <= last:
        messages = client.peek(entity, at, PEEK_COUNT)
        if not messages:
            return
        for payload in messages:
            annotations = annotations_of(payload)
            number = annotations.get("x-opt-sequence-number")
            if not isinstance(number, int) or number > last:
                return
            at = number + 1
            if not annotations.get("x-opt-message-state", 0):  # neither deferred nor scheduled: a receiver gets it
                yield number


# -- may it


def has_sessions(address: Address, entity: str, label: str) -> bool:
    """Return whether the messages of an entity can be locked only with their sessions. Raises TransferFailed where they
    can't be locked at all."""
    try:
        check_source(address, entity, label)
    except SessionsRequired:
        return True
    return False


def check_source(address: Address, entity: str, label: str, *, locks: bool = True) -> None:
    """Raise TransferFailed where its messages can't be locked one by one; without `locks`, can't be peeked at."""
    _check_single(entity)
    client = connections.client(address)
    try:
        if locks:
            client.receiver(entity).close()
        else:
            client.peek(entity, 1, 1)
    except NotFound:
        raise TransferFailed(f"{label} has no queue or subscription {entity!r}; check the name") from None
    except Unauthorized as error:
        raise TransferFailed(f"{label} refuses to let us receive from {entity}: {error}; it needs Listen") from None
    except WireError as error:
        if is_about_sessions(error):
            raise SessionsRequired(
                f"{entity} requires sessions, and messages of a session can't be locked one by one; receive them by "
                "session with the SDK (its dead-letter queue has no sessions and can be moved)"
            ) from None
        if "is a topic" in error.description:
            raise TransferFailed(
                f"{entity} is a topic; name one of its subscriptions, {entity}/Subscriptions/…"
            ) from None
        raise TransferFailed(f"{entity} of {label} can't be received from: {error}{_advice(error)}") from None


def check_destination(address: Address, entity: str, label: str) -> None:
    """Raise TransferFailed where nothing can be sent to the entity."""
    _check_single(entity)
    head, is_dead = without_dead_letters(entity)
    topic, _, subscription = subscription_of(head)
    if is_dead:
        raise TransferFailed(f"nothing can be sent to the dead-letter queue {entity}; name {topic}")
    if subscription:
        raise TransferFailed(f"nothing can be sent to the subscription {entity}; name its topic, {topic}")
    try:
        connections.client(address).sender(entity).close()
    except NotFound:
        raise TransferFailed(f"{label} has no queue or topic {entity!r}; check the name, or make it first") from None
    except Unauthorized as error:
        raise TransferFailed(f"{label} refuses to let us send to {entity}: {error}; it needs Send") from None
    except WireError as error:
        raise TransferFailed(f"{entity} of {label} can't be sent to: {error}{_advice(error)}") from None


def _advice(error: WireError) -> str:
    return "; check host and port, and that it is up" if isinstance(error, Unreachable | TimedOut) else "; try later"


def _check_single(entity: str) -> None:
    if not entity.strip("/") or "," in entity or is_glob(entity):
        raise TransferFailed(f"{entity!r} is not the name of one entity, such as orders or orders/$DeadLetterQueue")


# -- words
