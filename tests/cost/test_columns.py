from __future__ import annotations

from pairbus.cost.columns import columns


def test_text_starts_left_and_figures_end_right() -> None:
    assert columns(["term", "USD"], [["a", "1.50"], ["longer", "10.50"]], left=["term"]) == [
        "term      USD",
        "a        1.50",
        "longer  10.50",
    ]
    assert columns(["a", "b"], [["1", ""]], left=["b"]) == ["a  b", "1"], "nothing at a line's end"
