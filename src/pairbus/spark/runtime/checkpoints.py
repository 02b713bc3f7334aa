"""Lets a session write checkpoints in local files without starting a process for each of them.

By default Spark has Hadoop run the command `readlink` eight times a micro-batch. Spark's other class renames files
itself after checking whether the target exists: that is not safe if two queries share a checkpoint by mistake. So it is
used only for a checkpoint that no other query knows, and that may be lost.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTING: Final = "spark.sql.streaming.checkpointFileManagerClass"
_PACKAGE: Final = "org.apache.spark.sql.execution.streaming"
#: Its names in Spark 4.3 and in 4.0.
_CLASSES: Final = tuple(f"{_PACKAGE}.{name}FileSystemBasedCheckpointFileManager" for name in ("checkpointing.", ""))


def write_quickly(spark: SparkSession) -> None:
    """Have the queries of this session write their checkpoints so, where its Spark can."""
    assert spark._jvm is not None
    for name in _CLASSES:
        with contextlib.suppress(Exception):  # a Spark that names it differently: checkpoints are written as usual
            spark._jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
            spark.conf.set(_SETTING, name)
            return
