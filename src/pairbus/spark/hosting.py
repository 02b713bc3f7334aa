"""The syphon inside an application, on Spark (P38): the same host, another engine."""

from __future__ import annotations

from pairbus.syphon import hosting

from .engine import SparkEngine


class HostedSyphon(hosting.HostedSyphon):
    make_engine = SparkEngine
    #: The batch under way is finished first.
    stop_s = 75.0
