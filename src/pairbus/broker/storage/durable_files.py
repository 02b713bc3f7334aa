"""Writes files that survive a power cut: under another name, synced, renamed, and the folder synced."""

from __future__ import annotations

import os
from pathlib import Path

from pairbus.journal.files import sync_folder


def write_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file whole or not at all; at no moment can others read it."""
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(str(path.parent))
