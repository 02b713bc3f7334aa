"""Queues as DataFrames, and the syphon at scale. Comes with the extra `spark`; nothing else in pairbus imports pyspark.

from pairbus.spark import register, session, syphon
"""

from .engine import SparkEngine
from .options import InvalidOption
from .pipelines.archive import archive, archived, restore
from .pipelines.move import move
from .pipelines.pipeline import carry, locked
from .session import session
from .source import register
from .starting import RunningSyphon, syphon

__all__ = [
    "InvalidOption", "RunningSyphon", "SparkEngine", "archive", "archived", "carry", "locked", "move", "register",
    "restore", "session", "syphon",
]  # fmt: skip
