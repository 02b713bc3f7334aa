from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.cost.price_file import read_prices
from pairbus.cost.prices import EXAMPLE, EXAMPLE_TOML, PriceError


def test_without_a_file_the_example() -> None:
    assert read_prices(None) is EXAMPLE


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(EXAMPLE_TOML.replace("USD", "EUR"))
    assert read_prices(file).currency == "EUR"
    file.write_text("x = 1")
    with pytest.raises(PriceError, match=r"^mine\.toml: x is not a key"):
        read_prices(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(PriceError, match=r"mine\.toml is no TOML: it is not UTF-8 text"):
        read_prices(file)
    with pytest.raises(PriceError, match=r"gone\.toml can't be read: No such file"):
        read_prices(tmp_path / "gone.toml")
