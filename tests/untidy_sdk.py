"""For tests under which connections of the SDK fail: it leaves sockets and coroutines behind.

pytestmark = UNTIDY_SDK
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

UNTIDY_SDK = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True)
def swept() -> Iterator[None]:
    """What the SDK left behind is collected in the test that forgives it; imported by name where it is wanted."""
    yield
    gc.collect()
