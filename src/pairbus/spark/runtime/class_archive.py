"""Keeps an archive of Spark's Java classes in the user's cache folder, with which Java starts in about half the time.

Java reads some twenty thousand classes from Spark's jars, checks and links them, each time it starts. An archive (class
data sharing, `-XX:SharedArchiveFile`) has them as they are in memory. `find` names the archive of a Java and a Spark;
`options` is how Java uses it; `train_at_exit` has it made once, by `archive_training`, in a process of its own after
this one has ended. Java checks by itself that an archive is for it and these jars, and goes on without it where it is
not; but Java 17 believes one that was cut off, and crashes, so that a file that is not as it was made is not used. Why
it is made so: docs/decisions/0007-class-archive.md.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SWITCH: Final = "PAIRBUS_CLASS_ARCHIVE"
_OFF: Final = ("off", "0", "no", "false")
_FORMAT: Final = "1"
#: What Java says of an archive that does not fit goes to stdout, which is the command's.
QUIET: Final = ("-Xshare:auto", "-Xlog:cds*=off", "-Xlog:class+path=off")
#: An archive that could not be made is tried for again, so many times and no sooner than that.
ATTEMPTS_MAX: Final = 3
ATTEMPT_S: Final = 24 * 3600.0
#: Archives kept, the ones used last: one for each Java and Spark that somebody changes between.
KEPT_MAX: Final = 3
#: An archive is about 200 MB large, and no reason to fill a disk.
FREE_BYTES_MIN: Final = 1024**3
_TRAINING: Final = "pairbus.spark.runtime.archive_training"

#: Whether this process has an archive made when it has ended.
is_to_train = False

_log = logging.getLogger("pairbus.spark")


class ClassArchive:
    """The archive in one folder, whether or not it is there yet. `java`: the home of the Java that it is for."""

    def __init__(self, folder: Path, java: Path) -> None:
        self.folder, self.java = folder, java
        self.classes = folder / "classes.jsa"
        #: Of Java's own classes; some Javas, such as the packaged one, bring none.
        self.base = folder / "base.jsa"
        self.lock = folder / "lock"
        self._attempts = folder / "attempts"
        #: What the files were like when they were whole; written last, and touched when they are used.
        self._whole = folder / "whole"

    def __repr__(self) -> str:
        return f"<ClassArchive {self.folder.name}{'' if self.is_whole() else ', not made yet'}>"

    def options(self) -> list[str]:
        """Return the options with which Java uses the archive; none where there is no whole archive, or where others
        could have written it."""
        try:
            if not _is_private(self.folder) or not self.is_whole():
                return []
            os.utime(self._whole)
        except OSError:
            return []
        return [f"-XX:SharedArchiveFile={self._files(self.classes)}", *QUIET]

    def is_whole(self) -> bool:
        """Return whether the files are there as they were made."""
        with contextlib.suppress(OSError, ValueError):
            return self._whole.read_text() == self._as_they_are()
        return False

    def seal(self, classes: Path) -> None:
        """Put the file with the classes, which is whole, in its place. Raises OSError."""
        self._whole.unlink(missing_ok=True)
        put(classes, self.classes)
        noted = self.folder / "whole.new"
        noted.write_text(self._as_they_are())
        put(noted, self._whole)

    def _as_they_are(self) -> str:
        """Return sizes and times of the files: whatever happens to one of them, one of the two changes."""
        found = [(file.name, file.stat()) for file in (self.base, self.classes) if file.exists()]
        return "".join(f"{name} {about.st_size} {about.st_mtime_ns}\n" for name, about in found)

    def training_options(self, made: Path) -> list[str]:
        """Return the options with which Java writes the archive when it ends."""
        base = [f"-XX:SharedArchiveFile={self.base}"] if self.base.exists() else []
        return [*base, f"-XX:ArchiveClassesAtExit={made}", *QUIET]

    def using(self, made: Path) -> list[str]:
        """Return the options with which Java uses an archive that is not in its place yet."""
        return [f"-XX:SharedArchiveFile={self._files(made)}", "-Xshare:auto", "-XX:+SuppressFatalErrorMessage"]

    def _files(self, classes: Path) -> str:
        return f"{self.base}:{classes}" if self.base.exists() else str(classes)

    def wants_training(self, now: float) -> bool:
        """Return whether the archive is to be made: it is not there, and it was not tried for lately or too often."""
        try:
            if self.is_whole():
                return False
            with contextlib.suppress(FileNotFoundError):
                tried_at = self._attempts.stat().st_mtime
                if self._attempts_made() >= ATTEMPTS_MAX or now - tried_at < ATTEMPT_S:
                    return False
            return shutil.disk_usage(_existing(self.folder)).free >= FREE_BYTES_MIN
        except OSError:
            return False

    def begin_attempt(self) -> None:
        """Note that the archive is being made. Raises OSError where the folder can't be written."""
        self._attempts.write_text(f"{self._attempts_made() + 1}\n")

    def _attempts_made(self) -> int:
        try:
            return int(self._attempts.read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def drop_others(self) -> None:
        """Delete the archives that were not among the last used."""
        found = []
        for folder in self.folder.parent.iterdir():
            with contextlib.suppress(OSError):
                found.append(((folder / self._whole.name).stat().st_mtime, folder))
        for _, folder in sorted(found, reverse=True)[KEPT_MAX:]:
            shutil.rmtree(folder, ignore_errors=True)


def find(environ: Mapping[str, str], java: Path, spark: Path) -> ClassArchive | None:
    """Return the archive for the Java and the Spark in these folders; None where it is switched off, where there is no
    folder to keep it in, or one with a name that Java's options can't hold."""
    if environ.get(SWITCH, "").strip().lower() in _OFF:
        return None
    cache = cache_folder(environ)
    if cache is None or any(each in str(cache) for each in ":\"'\\\n"):
        return None
    try:
        key = key_of(java, spark)
    except (OSError, ValueError):  # what `release` says may be no UTF-8
        return None
    return ClassArchive(cache / "pairbus" / "spark-classes" / key, java)


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the user's folder for caches; None where the user has none. A relative one counts for nothing."""
    given = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given)
    home = environ.get("HOME", "")
    return Path(home, ".cache") if os.path.isabs(home) else None


def key_of(java: Path, spark: Path) -> str:
    """Return what tells archives apart: which Java it is, and Spark's jars with their sizes and times. Raises OSError
    where one of the two is not there."""
    digest = hashlib.sha256(f"{_FORMAT}\n{java}\n{(java / 'release').read_text()}\n{spark}\n".encode())
    files = [java / "lib" / "server" / "libjvm.so", *sorted((spark / "jars").glob("*.jar"))]
    for file in files:
        about = file.stat()
        digest.update(f"{file.name} {about.st_size} {about.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def as_text(options: list[str]) -> str:
    """Return Java's options as a setting of Spark's, which is cut at spaces outside of quotes."""
    return " ".join(f'"{each}"' for each in options)


def make_private(folder: Path) -> None:
    """Make the folder, for the user alone. Raises OSError where it can't be, or belongs to somebody else."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_private(folder):
        raise PermissionError(f"{folder} is open to others")


def _is_private(folder: Path) -> bool:
    about = folder.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o077


def put(made: Path, place: Path) -> None:
    """Rename a file that is whole, for the user alone. Raises OSError."""
    made.chmod(0o600)
    with open(made, "rb") as file:
        os.fsync(file.fileno())  # a name for something that is not on the disk would outlast a crash
    made.replace(place)


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def train_at_exit(archive: ClassArchive) -> None:
    """Have the archive made when this process has ended, so that it takes nothing from what runs here."""
    global is_to_train
    if not is_to_train:
        is_to_train = True
        atexit.register(_train, archive.java, os.getpid())
        _log.info("%s: Spark's classes will be archived there; %s=off prevents it", archive.folder, SWITCH)


def _train(java: Path, owner: int) -> None:
    if os.getpid() != owner:
        return
    with contextlib.suppress(OSError):
        subprocess.Popen(
            [sys.executable, "-m", _TRAINING],
            env={**os.environ, "JAVA_HOME": str(java)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
