from __future__ import annotations

import pytest

from .pair import ConnectionPair


@pytest.fixture
def pair() -> ConnectionPair:
    return ConnectionPair()
