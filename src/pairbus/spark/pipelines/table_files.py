"""Accesses the files of a table: on this machine by the operating system, elsewhere through Spark's file systems.

On this machine a file is on the disk before it is in the table: it is synced, renamed, and its folder is synced.
Elsewhere a file appears under its name only when it is complete, as far as the file system promises that for a rename.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from pairbus.spark.runtime.locations import local_path, located

from .message_table import DATE, LOCK_FILE, STAGING
from .preflight import TransferFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Less than this, and a batch would fill the disk.
FREE_BYTES_MIN: Final = 64 * 1024 * 1024
#: Elsewhere a lock is a file that is written again and again; one so old belongs to nobody.
LEASE_S: Final = 120.0
RENEW_S: Final = 20.0
#: The logs of Delta and Hudi tables, and of a stream of Spark's into files.
LOGS: Final = ("_delta_log", "_spark_metadata", ".hoodie")


class TableFiles(Protocol):
    def root_names(self) -> list[str]:
        """Return the names in the folder of the table itself."""

    def write_root(self, name: str) -> None:
        """Write a small file into the folder of the table itself."""

    def drop_root(self, name: str) -> None:
        """Remove it."""

    def names(self, date: str) -> list[str]:
        """Return the names in the folder of a day."""

    def commit(self, staged: str, date: str, name: str) -> None:
        """Move a staged file, as Spark names it, into the folder of a day."""

    def clear(self, below: str = "") -> None:
        """Remove what is staged, or a part of it."""

    def check_owned(self) -> None:
        """Raise TransferFailed where the lock is no longer ours."""


def folder_of(date: str) -> str:
    return f"{DATE}={date}"


# -- of this machine


class LocalFiles:
    def __init__(self, table: Path) -> None:
        self._table = table
        #: The days whose folders are known to outlast a power cut; a run that was killed may have made others.
        self._synced: set[str] = set()

    def names(self, date: str) -> list[str]:
        try:
            return os.listdir(self._table / folder_of(date))
        except FileNotFoundError:
            return []

    def commit(self, staged: str, date: str, name: str) -> None:
        source, folder = Path(unquote(urlsplit(staged).path)), self._table / folder_of(date)
        if date not in self._synced:
            folder.mkdir(exist_ok=True)
            sync(self._table)
            self._synced.add(date)
        sync(source)
        source.rename(folder / name)
        sync(folder)

    def root_names(self) -> list[str]:
        """Return the names in the folder of the table itself."""
        return os.listdir(self._table) if self._table.is_dir() else []

    def write_root(self, name: str) -> None:
        """Write a small file into the folder of the table itself, so that it outlasts a power cut."""
        make_folder(self._table)
        (self._table / name).write_text(name)
        sync(self._table / name)
        sync(self._table)

    def drop_root(self, name: str) -> None:
        (self._table / name).unlink(missing_ok=True)

    def clear(self, below: str = "") -> None:
        shutil.rmtree(self._table / STAGING / below, ignore_errors=True)

    def check_owned(self) -> None:
        """The kernel keeps the lock as long as this process lives."""


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_table(given: str | Path) -> Path | None:
    """Make the folder where it is missing and return it, or None for one elsewhere. Raises TransferFailed where it is
    no table, can't be written to, or has no room."""
    table = local_path(given)
    if table is None:
        return None
    table = table.absolute()
    try:
        make_folder(table)
        _check_foreign([each.name for each in table.iterdir()], given)
        with open(table / LOCK_FILE, "ab"):
            pass
        free = shutil.disk_usage(table).free
    except OSError as error:
        raise TransferFailed(f"the table {given} can't be written to: {error.strerror}; name another folder") from None
    if free < FREE_BYTES_MIN:
        raise TransferFailed(
            f"the disk of {given} has only {free // 2**20} MB left, and an ingest wants at least "
            f"{FREE_BYTES_MIN // 2**20}; make room, or name another folder"
        )
    return table


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, so that they outlast a power cut."""
    if folder.is_dir():
        return
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(PermissionError):  # a folder that we may write to and not read can't be synced
        sync(folder.parent)


def _check_foreign(names: list[str], given: str | Path) -> None:
    """Raise TransferFailed for a folder with anything that `ingest` did not put there. Of a table that has a log,
    readers see only the files that the log names, and never ours."""
    logs = sorted(name for name in names if name in LOGS)
    foreign = sorted(name for name in names if not name.startswith((f"{DATE}=", "_", ".")))
    if logs:
        kind = f"a table with a log ({logs[0]})"
    elif foreign:
        kind = "an archive" if foreign[0].startswith("batch=") else f"something else ({foreign[0]})"
    else:
        return
    raise TransferFailed(f"{given} holds {kind} and is no table of `ingest`; name an empty folder, or one of its own")


@contextlib.contextmanager
def owned(table: Path, shown: str | Path) -> Iterator[LocalFiles]:
    """Hold the table's lock, which ends with the process at the latest. Raises TransferFailed where another has it."""
    with open(table / LOCK_FILE, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TransferFailed(_taken(shown)) from None
        yield LocalFiles(table)


def _taken(shown: str | Path) -> str:
    return f"another ingest writes to {shown}; stop it first, or give each its own table"


# -- elsewhere


class HadoopFiles:
    """`root`: the table as Spark names it."""

    def __init__(self, spark: SparkSession, root: str, lease: Lease | None = None) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._root = root
        self._fs = self._path("").getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
        self.lease = lease

    def _path(self, below: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{below}" if below else self._root)

    def names(self, date: str) -> list[str]:
        return self._names_in(self._path(folder_of(date)))

    def root_names(self) -> list[str]:
        """Return the names in the folder of the table itself."""
        return self._names_in(self._path(""))

    def _names_in(self, folder: Any) -> list[str]:
        return [each.getPath().getName() for each in self._statuses(folder)]

    def _statuses(self, folder: Any) -> list[Any]:
        return list(self._fs.listStatus(folder)) if self._fs.exists(folder) else []

    def commit(self, staged: str, date: str, name: str) -> None:
        self.check_owned()
        folder = self._path(folder_of(date))
        self._fs.mkdirs(folder)
        source = self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI(staged))
        target = self._path(f"{folder_of(date)}/{name}")
        # A file system that tries again, since the first answer was lost, finds nothing to rename.
        if not self._fs.rename(source, target) and not self._fs.exists(target):
            raise OSError(f"{staged} could not be renamed")

    def clear(self, below: str = "") -> None:
        if below or self._is_owned():  # else it is the next owner's
            self._fs.delete(self._path(f"{STAGING}/{below}" if below else STAGING), True)

    def _is_owned(self) -> bool:
        return self.lease is None or self.lease.holds()

    def check_owned(self) -> None:
        if not self._is_owned():
            raise TransferFailed(
                f"the lock of {self._root} was not renewed in time, and another may have it; run again"
            )

    # -- the files of the lock

    def locks(self) -> dict[str, float]:
        """Return the lock's files, and when each was written, in seconds of the file system's own clock."""
        found = ((each.getPath().getName(), each) for each in self._statuses(self._path("")))
        return {name: each.getModificationTime() / 1000 for name, each in found if name.startswith(LOCK_FILE)}

    def write_root(self, name: str) -> None:
        stream = self._fs.create(self._path(name), True)
        try:
            stream.write(bytearray(name.encode()))
        finally:
            stream.close()

    def drop_root(self, name: str) -> None:
        self._fs.delete(self._path(name), False)


class Lease:
    """A lock for file systems that know none: each who wants it writes a file of its own, and has it if there is none
    of another that is younger than LEASE_S; the owner writes it again every RENEW_S.

    Of two who write theirs before they look, one at least sees the other's, so that two never have it: at worst both
    are refused. An owner that stalls ceases to commit long before others take it for dead, except for a rename that it
    has begun. The next owner first clears what is staged, and looks into the table after that: there is nothing to
    rename then, or the file is there to be found. (A rename that is a copy, as in an object store, may end later.)
    """

    def __init__(self) -> None:
        self.name = f"{LOCK_FILE}.{secrets.token_hex(8)}"
        self._renewed_at = time.monotonic()
        self._ended = threading.Event()

    def holds(self) -> bool:
        """Return whether nobody can have taken it: it was renewed a while before others take it for abandoned."""
        return time.monotonic() - self._renewed_at < LEASE_S / 2

    def take(self, files: HadoopFiles, given: str | Path) -> None:
        """Raises TransferFailed where another has it."""
        files.write_root(self.name)
        found = files.locks()
        written = found.pop(self.name, None)
        if written is None or any(written - each < LEASE_S for each in found.values()):
            raise TransferFailed(f"{_taken(given)} (a killed one's lock ends {LEASE_S:.0f} s after its last renewal)")
        for abandoned in found:
            files.drop_root(abandoned)

    def renew_on(self, files: HadoopFiles) -> None:
        """Renew it until `end`. What comes too late does not count: another may have it by then."""
        from py4j.protocol import Py4JError

        while not self._ended.wait(RENEW_S):
            with contextlib.suppress(Py4JError):  # tried again; `holds` tells when that was too long
                begun = time.monotonic()
                files.write_root(self.name)
                if not self.holds():
                    self._renewed_at = -math.inf
                    return
                self._renewed_at = begun

    def end(self) -> None:
        self._ended.set()


@contextlib.contextmanager
def leased(spark: SparkSession, given: str | Path) -> Iterator[HadoopFiles]:
    """Hold the lock of a table that is not on this machine. Raises TransferFailed where another has it."""
    from py4j.protocol import Py4JError

    lease = Lease()
    with contextlib.ExitStack() as stack:
        try:
            files = HadoopFiles(spark, located(given), lease)
            _check_foreign(files.root_names(), given)
            stack.callback(_drop, files, lease)
            lease.take(files, given)
        except Py4JError as error:
            raise TransferFailed(f"the table {given} can't be written to: {str(error).splitlines()[0]}") from None
        thread = threading.Thread(target=lease.renew_on, args=(files,), name="pairbus-table-lease", daemon=True)
        thread.start()
        stack.callback(thread.join, RENEW_S)
        stack.callback(lease.end)
        yield files


def _drop(files: HadoopFiles, lease: Lease) -> None:
    from py4j.protocol import Py4JError

    with contextlib.suppress(Py4JError):
        files.drop_root(lease.name)
