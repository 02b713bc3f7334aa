"""The syphon inside an application, on Spark (P38): the same host, another engine."""

from __future__ import annotations

from pairbus.syphon import hosting

from .engine import SparkEngine


class HostedSyphon(hosting.HostedSyphon):
    # A batch that takes longer than `stop_s` is finished by the engine's own thread, which nobody waits for.
    make_engine = SparkEngine
