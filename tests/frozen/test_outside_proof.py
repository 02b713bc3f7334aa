"""What users see is what it was: a difference from the snapshots is a change on purpose, or a mistake."""

from __future__ import annotations

import pytest

from tests.frozen.subjects import SUBJECTS, difference


@pytest.mark.parametrize("subject", [*SUBJECTS])
def test_the_outside_is_as_it_was(subject: str) -> None:
    assert (said := difference(subject, SUBJECTS[subject]())) == "", said
