"""A table as lines of text: columns as wide as their widest cell. Decides nothing else. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def columns(heads: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[str] = ()) -> list[str]:
    """The columns named in `left` start at the left, the others, which are figures, end at the right."""
    table = [heads, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(heads))]
    return [
        "  ".join(
            cell.ljust(width) if head in left else cell.rjust(width)
            for head, cell, width in zip(heads, row, widths, strict=True)
        ).rstrip()
        for row in table
    ]
