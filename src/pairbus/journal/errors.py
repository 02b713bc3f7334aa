"""The errors of the journal. Pure.

JournalError
├── JournalLocked     another process holds the folder
├── FormatError       the folder was written in another format version, or is no journal
├── JournalCorrupt    records that were synced no longer read back; start-up refuses (way out: Options.salvage)
├── JournalBusy       more bytes wait for the disk than Options.pending_bytes_max
├── JournalFull       no room on the disk (ENOSPC, EDQUOT); the journal resumes by itself when there is
├── JournalFailed     the disk refused a write or a sync, or the writer thread is dead
│   └── JournalStalled  the disk does not answer; the journal resumes by itself when it does
├── JournalClosed     the journal is closed or not started
└── RecordTooLarge    one record beyond the format's limit; raised by append() itself
"""

from __future__ import annotations

import errno as errnos
import os


class JournalError(Exception):
    """Base of all journal errors.

    `unknown` is True when the record may still turn up after a restart: the disk failed in such a way that the journal
    could neither keep the record nor durably mark it as refused. Everywhere else a refused record never comes back.
    """

    def __init__(self, message: str, *, errno: int | None = None, unknown: bool = False) -> None:
        super().__init__(message)
        self.errno = errno
        self.unknown = unknown


class JournalLocked(JournalError):
    """Another process holds the folder."""


class FormatError(JournalError):
    """The folder was written in another format version, or is no journal."""


class JournalCorrupt(JournalError):
    """Records that were synced can no longer be read; the journal opens only with `Options.salvage`."""

    def __init__(self, message: str, *, segment: int, offset: int) -> None:
        super().__init__(message)
        self.segment = segment
        self.offset = offset


class JournalBusy(JournalError):
    """More bytes wait for the disk than `Options.pending_bytes_max`."""


class JournalFull(JournalError):
    """The disk has no room; the journal resumes by itself when it has."""


class JournalFailed(JournalError):
    """The disk refused a write or a sync, or the writer thread is dead."""


class JournalStalled(JournalFailed):
    """The disk does not answer: a file operation has not returned; the journal resumes by itself when it has."""


class JournalClosed(JournalError):
    """The journal is closed or not started."""


class RecordTooLarge(JournalError, ValueError):
    """One record is beyond the limit of the format; `append` raises it."""


_REMEDIES = {
    errnos.EROFS: "the disk is read-only: make it writable; sends are refused until it is",
    errnos.ESTALE: (
        "the journal's folder or its file was deleted, moved or replaced while it was in use: put it back as it was, "
        "or stop the broker and restore the folder from a copy; sends are refused until then"
    ),
}


def no_room(error: OSError) -> bool:
    """Return whether the disk or a quota is full."""
    return error.errno in (errnos.ENOSPC, errnos.EDQUOT)


def from_os_error(error: OSError, doing: str, *, unknown: bool = False, of_send: bool = True) -> JournalError:
    """Return a JournalFull or JournalFailed that names the errno. `of_send`: a send would meet it, too."""
    number = error.errno or 0
    name = errnos.errorcode.get(number, str(number))
    if number == errnos.ETIMEDOUT:
        text = f"{doing}: the disk does not answer ({name})" + ("; sends are refused until it does" if of_send else "")
        return JournalStalled(text, errno=number, unknown=unknown)
    text = f"{doing}: {name} ({os.strerror(number)})"
    if number in _REMEDIES:
        text = f"{text}; {_REMEDIES[number]}"
    if no_room(error):
        return JournalFull(f"{text}; sends are refused until there is room", errno=number, unknown=unknown)
    return JournalFailed(text, errno=number, unknown=unknown)
