"""What users see is what it was: a difference from the snapshots is a change on purpose, or a mistake."""

from __future__ import annotations

import json

import pytest

from tests.frozen.subjects import SUBJECTS, leaves, snapshot_file


@pytest.mark.parametrize("subject", [*SUBJECTS])
def test_the_outside_is_as_it_was(subject: str) -> None:
    before, now = leaves(json.loads(snapshot_file(subject).read_text())), leaves(SUBJECTS[subject]())
    removed = [f"removed: {at}: {before[at]}" for at in before.keys() - now.keys()]
    changed = [f"changed: {at}: {before[at]} → {now[at]}" for at in before.keys() & now.keys() if before[at] != now[at]]
    added = [f"added: {at}: {now[at]}" for at in now.keys() - before.keys()]
    renew = f"On purpose? Then renew it, and say so in the changelog: python -m tests.frozen --write {subject}"
    assert not (removed or changed or added), "\n".join([*sorted(removed), *sorted(changed), *sorted(added), renew])
