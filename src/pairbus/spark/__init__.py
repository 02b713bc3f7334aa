"""Queues as DataFrames, and the syphon at scale. Comes with the extra `spark`; nothing else in pairbus imports pyspark.

from pairbus.spark import register, session, syphon
"""

from .engine import SparkEngine
from .options import InvalidOption
from .session import session
from .source import register
from .starting import RunningSyphon, syphon

__all__ = ["InvalidOption", "RunningSyphon", "SparkEngine", "register", "session", "syphon"]
