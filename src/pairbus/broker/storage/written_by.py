"""Records which version of pairbus last wrote a namespace's data, and names one that reads data that this one can't."""

from __future__ import annotations

from pathlib import Path

from pairbus import __version__

from .durable_files import write_file

_CHARS_MAX = 100


def note_version(folder: Path) -> None:
    """Note that this version writes the data from now on."""
    if _noted(folder) != __version__:
        write_file(folder / "version.txt", f"{__version__}\n".encode())


def who_reads(folder: Path) -> str:
    """Return what to do about data that this version can't read."""
    noted = _noted(folder)
    if noted in (None, __version__):
        return f"This is pairbus {__version__}; start it with the version that wrote this data, or a later one"
    return f"pairbus {noted} wrote this data last, and this is {__version__}; start it with {noted} or a later one"


def _noted(folder: Path) -> str | None:
    try:
        text = (folder / "version.txt").read_text(errors="replace").strip()
    except OSError:
        return None
    return text[:_CHARS_MAX] or None
