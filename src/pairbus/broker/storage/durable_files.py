"""Files that are there after a power cut: written whole under another name, synced, renamed, and the folder synced."""

from __future__ import annotations

import os
from pathlib import Path

from pairbus.journal.files import sync_folder


def write_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Whole or not at all; never readable by others for a moment."""
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
