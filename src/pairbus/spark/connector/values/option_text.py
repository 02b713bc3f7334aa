"""Writes a value as text for the options of our own sources and sinks, which is all that Spark passes to its tasks."""

from __future__ import annotations

import base64
import pickle
import zlib
from typing import Any


def as_text(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def of_text(text: str) -> Any:
    return pickle.loads(zlib.decompress(base64.b64decode(text)))
