"""Chooses how much Spark optimises and compiles a query, by the size of the ledgers. Pure.

Spark compiles a program for every query, and Java compiles that once more while it runs. For a million events both pay
off; for ten thousand they take several times as long as the query itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Up to so many bytes of JSON lines, some 100,000 events, ledgers are small.
SMALL_MAX: Final = 16 * 1024 * 1024
#: For the questions: asked without a program made for each, and in one piece.
SQL: Final[Mapping[str, str]] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
#: For the start of Java: its quick compiler alone. An audit of a million events takes
#: half as long again with it, one of 20,000 half as long.
JAVA: Final[Mapping[str, str]] = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1"}
#: For large ledgers: Parquet is dense, and what a task reads of it has to stay in its memory where it is grouped.
LARGE: Final[Mapping[str, str]] = {"spark.sql.files.maxPartitionBytes": "8m"}


def is_small(size: int | None) -> bool:
    """Return whether ledgers of `size` bytes, None where that is not known, are small."""
    return size is not None and size <= SMALL_MAX


def at_start(size: int | None) -> dict[str, str]:
    """Return the settings of a session that is started for the reports alone."""
    return {**JAVA, **SQL} if is_small(size) else dict(LARGE)
