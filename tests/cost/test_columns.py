from __future__ import annotations

from pairbus.cost.columns import aligned


def test_text_starts_left_and_figures_end_right() -> None:
    assert aligned([["term", "USD"], ["a", "1.50"], ["longer", "10.50"]]) == [
        "term      USD",
        "a        1.50",
        "longer  10.50",
    ]
    assert aligned([["a", "b"], ["1", ""]], left=(1,)) == ["a  b", "1"], "nothing at a line's end"
