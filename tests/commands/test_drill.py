from __future__ import annotations

from pathlib import Path

from pairbus.commands.drill import LEAVES, _make_room


def test_what_an_earlier_drill_left_makes_room(tmp_path: Path) -> None:
    for name in LEAVES:
        if "." in name:
            (tmp_path / name).touch()
        else:
            (tmp_path / name).mkdir()
    _make_room(tmp_path)
    assert list(tmp_path.iterdir()) == []
