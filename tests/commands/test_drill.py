from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pairbus.commands.drill import LEAVES, drill

WRONG = [
    (["--fault", "flood"], 2, "there is no fault 'flood' for a drill; the kinds are unreachable, black-hole, no-send"),
    (["--fault", "no-manage"], 2, "the fault no-manage leaves sends alone"),
    (["--messages", "0"], 2, "0 messages are out of bounds"),
    (["--messages", "many"], 2, "'many' is not a valid integer"),
    (["--outage", "0"], 2, "an outage of 0 s is out of bounds: 1 to 3600 seconds"),
    (["--entities", "99"], 2, "99 entities are out of bounds: 1 to 10"),
    (["--engine", "flink"], 2, "'flink' is not one of 'spark', 'in-process'"),
    (["--out", "here"], 1, "here holds mine.txt, which is no drill's; name a folder with --out that is empty or new"),
]


@pytest.mark.parametrize(("arguments", "code", "said"), WRONG, ids=[" ".join(each[0]) for each in WRONG])
def test_wrong_calls_say_what_is_right(
    arguments: list[str], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    (Path("here") / "mine.txt").touch()
    done = CliRunner().invoke(drill, arguments)
    assert done.exit_code == code
    assert said in " ".join(done.output.split())
    assert (Path("here") / "mine.txt").exists()
    assert not Path("pairbus-drill").exists(), "nothing was begun"


def test_what_an_earlier_drill_left_makes_room(tmp_path: Path) -> None:
    from pairbus.commands.drill import _make_room

    for name in LEAVES:
        if "." in name:
            (tmp_path / name).touch()
        else:
            (tmp_path / name).mkdir()
    _make_room(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_help_has_examples() -> None:
    shown = CliRunner().invoke(drill, ["--help"]).output
    assert "Examples:" in shown
    for word in ("unreachable", "black-hole", "throttle", "kill", "--json", "--seed"):
        assert word in shown
