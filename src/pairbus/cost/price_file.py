"""Reads a price book from a file; does not check its content."""

from __future__ import annotations

from pathlib import Path

from .prices import EXAMPLE, PriceBook, PriceError, parse


def read_prices(path: Path | None) -> PriceBook:
    """None: the example."""
    if path is None:
        return EXAMPLE
    try:
        return parse(path.read_text(encoding="utf-8"), path.name)
    except OSError as error:
        raise PriceError(f"the price book {path} can't be read: {error.strerror}; name another") from None
    except UnicodeDecodeError:
        raise PriceError(f"{path.name} is no TOML: it is not UTF-8 text") from None
