"""Queues as DataFrames, and the syphon at scale. Comes with the extra `spark`; nothing else in pairbus imports pyspark.

from pairbus.spark import register, session, syphon
"""

from .archive import archive, archived, restore
from .engine import SparkEngine
from .move import move
from .options import InvalidOption
from .pipeline import carry, locked
from .session import session
from .source import register
from .starting import RunningSyphon, syphon

__all__ = [
    "InvalidOption", "RunningSyphon", "SparkEngine", "archive", "archived", "carry", "locked", "move", "register",
    "restore", "session", "syphon",
]  # fmt: skip
