"""Makes temporary Parquet of the lines that are read for a report, on this machine, before Spark sees them.

Parquet is read again as often as the reports ask, a few columns at a time, and is not kept in Java's memory. A file
that Arrow may read differently from Spark is left to Spark.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pairbus.ledger import COMPACTED

from .line_blocks import NotAsIs, blocks, line_schema, opened, parquet_writer, rows_of, rows_of_last


class Stage:
    """A folder of temporary Parquet. `files`: by its path, the ledger file that each was made of."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Stage all that can be; `left` are the others."""
        self.folder = Path(tempfile.mkdtemp(prefix="pairbus-ledgers-"))
        atexit.register(self.remove)
        drafts = [self.folder / f"{number:06d}{COMPACTED}" for number in range(len(files))]
        with ThreadPoolExecutor(max(1, min(os.cpu_count() or 1, len(files)))) as pool:
            staged = list(pool.map(_staged, files, drafts))
        self.files = {str(draft): file for draft, file, is_there in zip(drafts, files, staged, strict=True) if is_there}
        self.left = [file for file, is_there in zip(files, staged, strict=True) if not is_there]

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.remove)


def _staged(file: Path, draft: Path) -> bool:
    """Return whether the Parquet could be made. Without room on the disk it can't, and Spark reads the lines itself."""
    schema = line_schema()
    try:
        with opened(file) as source, parquet_writer(draft, schema, "snappy") as writer:
            for block in blocks(source):
                is_whole = block.endswith(b"\n")
                writer.write_table(rows_of(block, schema) if is_whole else rows_of_last(block, schema))
    except (NotAsIs, OSError):
        draft.unlink(missing_ok=True)
        return False
    return True
