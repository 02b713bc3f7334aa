"""Records which namespace the messages of a table or an archive come from, and refuses those of a second one.

    FOLDER/_pairbus.namespace.contoso      one small file; readers pass over names with _

A folder identifies a message by entity, sequence number and enqueued time. Two namespaces can have messages with all
three the same: the second would be taken for one that is there already, and removed without being written.

Folders of earlier versions name no namespace. The first run that writes there records its own, if no message that its
entity holds now is in the folder: later messages have other times. If one is, it may have been left by a run that died,
or belong to another namespace. Only the user can know, so that is refused as well, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import quote, unquote

from pairbus.spark.connector import connections
from pairbus.spark.connector.options import Address
from pairbus.spark.runtime.locations import local_path, located
from pairbus.wire.errors import WireError

from .message_table import DATE, IDENTITY
from .preflight import TransferFailed, peeked_rows
from .table_files import HadoopFiles, LocalFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMESPACE_FILE: Final = "_pairbus.namespace."
#: The prefixes of folders with messages, of a table and of an archive.
_HOLDS: Final = (f"{DATE}=", "batch=")
_WHY: Final = (
    "a message is known there by entity, sequence number and enqueued time, which those of two namespaces can have "
    "alike, so that some would be lost"
)


class Files(Protocol):
    """The interface of the files of a table or an archive."""

    def root_names(self) -> list[str]: ...
    def write_root(self, name: str) -> None: ...
    def drop_root(self, name: str) -> None: ...


def files_of(spark: SparkSession | None, folder: str | Path) -> Files:
    """Return the files of a folder. Raises TransferFailed without a session, if it is not on this machine."""
    if spark is None:
        return LocalFiles(here(folder))
    path = local_path(folder)
    return HadoopFiles(spark, located(folder)) if path is None else LocalFiles(path)


def here(folder: str | Path) -> Path:
    """Return the folder of this machine. Raises TransferFailed for one elsewhere, which only Spark reaches."""
    path = local_path(folder)
    if path is None:
        raise TransferFailed(f"{folder} is not on this machine, and only Spark reaches it: run it with --engine spark")
    return path.absolute()


def namespaces_in(names: Iterable[str]) -> list[str]:
    """Return the namespaces that files among these name."""
    return sorted(unquote(each.removeprefix(NAMESPACE_FILE)) for each in names if each.startswith(NAMESPACE_FILE))


def check_single(names: Iterable[str], shown: str | Path) -> None:
    """Raise TransferFailed where the messages of a folder, to be read, come from several namespaces."""
    if len(found := namespaces_in(names)) > 1:
        raise TransferFailed(
            f"{shown} holds messages of the namespaces {' and '.join(found)}, and {_WHY}; keep those of each in a "
            f"folder of their own, or delete {NAMESPACE_FILE}{quote(found[-1], safe='')} if both are the same namespace"
        )


def name_of(address: Address, label: str) -> str:
    """Return the name by which a namespace is known. Raises TransferFailed where it can't be reached."""
    try:
        return connections.client(address).namespace()
    except WireError as error:
        raise TransferFailed(f"{label} can't be reached: {error}; check host and port, and that it is up") from None


def claim(
    files: Files, namespace: str, shown: str | Path, is_same: bool, holds_some: Callable[[], bool] = lambda: False
) -> None:
    """Record that a folder's messages come from this namespace. `is_same`: the user says that it is the one that they
    came from; `holds_some`: whether messages that the entity holds now are in the folder. Raises TransferFailed where
    they come from another, or may do so."""
    names = files.root_names()
    others = _others(names, namespace)
    if not is_same:
        _check(others, namespace, shown)
        is_named = namespace in namespaces_in(names)
        if not is_named and any(name.startswith(_HOLDS) for name in names) and holds_some():
            raise TransferFailed(
                f"{shown} was written by an earlier version, which did not record of which namespace, and holds "
                f"messages with the entity, sequence number and enqueued time of some that {namespace} has now: either "
                "a run died before it had removed them, or they are another namespace's; in the first case say so with "
                "same_namespace=True, in the second name another folder"
            )
        if is_named:
            return
    mark = NAMESPACE_FILE + quote(namespace, safe="")
    files.write_root(mark)
    if is_same:
        for each in others:
            files.drop_root(NAMESPACE_FILE + quote(each, safe=""))
    elif others := _others(files.root_names(), namespace):  # another began at the same moment
        files.drop_root(mark)
        _check(others, namespace, shown)


def _others(names: Iterable[str], namespace: str) -> list[str]:
    return [each for each in namespaces_in(names) if each != namespace]


def _check(others: list[str], namespace: str, shown: str | Path) -> None:
    if others:
        raise TransferFailed(
            f"{shown} holds messages of the namespace {' and '.join(others)}, and this is {namespace}: {_WHY}; name "
            "another folder, or say with same_namespace=True that it is the same namespace under another name"
        )


def holds_waiting(spark: SparkSession, address: Address, entity: str, rows: DataFrame) -> bool:
    """Return whether one of the messages that the entity holds now is among these rows."""
    keys = ("lower(entity) AS entity", *IDENTITY[1:])
    waiting = peeked_rows(spark, address, entity).selectExpr(*keys)
    return not waiting.join(rows.selectExpr(*keys), list(IDENTITY), "left_semi").isEmpty()
