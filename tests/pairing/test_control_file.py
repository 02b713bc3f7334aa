"""Looks at real files: what is read when, links that are swapped as Kubernetes does it, files that can't be read."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from pairbus.pairing import control_file
from pairbus.pairing.control_file import ControlFileReader
from pairbus.pairing.errors import ControlFileError
from pairbus.pairing.routing.pins import BYTES_MAX, Pins


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.toml"


def later() -> float:
    """A clock by which every change is a moment old."""
    return time.time() + 2.0


def pin(found: object, entity: str = "orders") -> str | None:
    assert isinstance(found, Pins), found
    return found.of(entity)


def test_p23_an_unchanged_file_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text('orders = "failed-over"')
    reader = ControlFileReader(path, later)
    assert pin(reader.look()) == "failed-over"
    opened: list[Any] = []
    real = os.open
    monkeypatch.setattr(control_file.os, "open", lambda *args: opened.append(args) or real(*args))
    assert [reader.look() for _ in range(5)] == [None] * 5
    assert opened == []
    path.write_text('orders = "healthy"    ')
    assert pin(reader.look()) == "healthy"
    assert len(opened) == 1


def test_p23_a_config_map_is_swapped_by_its_link(tmp_path: Path) -> None:
    """The mounted file is a link to ..data/control.toml, and ..data a link to a folder, which is replaced at once."""
    mount = tmp_path / "config"
    mount.mkdir()
    for number, word in enumerate(("failed-over", "healthy")):
        folder = mount / f"..2026_{number}"
        folder.mkdir()
        (folder / "control.toml").write_text(f'orders = "{word}"' + " " * (11 - len(word)))
        os.utime(folder / "control.toml", (1000, 1000))
    (mount / "..data").symlink_to("..2026_0")
    (mount / "control.toml").symlink_to("..data/control.toml")
    reader = ControlFileReader(mount / "control.toml", later)
    assert pin(reader.look()) == "failed-over"
    assert reader.look() is None
    (mount / "..data_tmp").symlink_to("..2026_1")
    os.replace(mount / "..data_tmp", mount / "..data")
    assert pin(reader.look()) == "healthy", "though size and time are the same"


def test_p23_what_cant_be_read_is_told_once_and_then_read_anew(path: Path) -> None:
    reader = ControlFileReader(path, later)
    assert isinstance(reader.look(), FileNotFoundError)
    assert reader.look() is None
    path.write_text("orders = ")
    error = reader.look()
    assert isinstance(error, ControlFileError) and "no TOML" in str(error)
    assert reader.look() is None
    path.unlink()
    assert isinstance(reader.look(), FileNotFoundError)
    path.write_text('orders = "healthy"')
    assert pin(reader.look()) == "healthy"
    assert "orders=healthy" in repr(reader)


def test_p23_what_is_no_file_or_too_large_is_refused_without_reading_all_of_it(path: Path, tmp_path: Path) -> None:
    assert "is no file" in str(ControlFileReader(tmp_path).look())
    os.mkfifo(path)
    assert "is no file" in str(ControlFileReader(path).look()), "and nobody waits for who would write to it"
    path.unlink()
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert f"larger than the {BYTES_MAX} bytes" in str(ControlFileReader(path).look())


def test_p23_a_file_that_changes_while_it_is_read_waits_for_the_next_look(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text('orders = "failed-over"')
    reader = ControlFileReader(path, later)
    real = control_file._read

    def read_while_written(descriptor: int) -> bytes:
        content = real(descriptor)
        path.write_text('orders = "failed-over"\nnews = "healthy"')
        return content

    with monkeypatch.context() as patched:
        patched.setattr(control_file, "_read", read_while_written)
        assert reader.look() is None
        assert reader.is_changing, "the next look comes soon"
    assert pin(reader.look(), "news") == "healthy"
    assert not reader.is_changing


def test_p23_a_file_that_was_changed_a_moment_ago_waits_until_it_stands_still(path: Path) -> None:
    """Its writer may have emptied it, and be about to write: an empty file would lift all pins."""
    now = time.time()
    path.write_text('orders = "failed-over"')
    reader = ControlFileReader(path, lambda: now)
    assert pin(reader.look()) == "failed-over", "the first look lifts nothing"
    path.write_text("")
    assert reader.look() is None and reader.is_changing
    path.write_text('orders = "heal')
    assert reader.look() is None and reader.is_changing
    path.write_text('orders = "healthy"')
    assert reader.look() is None and reader.is_changing
    assert pin(reader.look()) == "healthy", "as at the look before, whatever the clocks say"
    assert not reader.is_changing
    path.write_text("")
    now += 3600.0
    assert pin(reader.look()) is None, "by now it has stood still for long enough"


def test_p23_a_file_that_never_stands_still_is_told_once_and_followed_when_it_does(path: Path) -> None:
    now = time.time()
    path.write_text("")
    reader = ControlFileReader(path, lambda: now)
    reader.look()
    told = []
    for number in range(3 * control_file.CHANGING_LOOKS_MAX):
        path.write_text(f'orders = "failed-over"  # {number:03}')
        told.append(reader.look())
        assert reader.is_changing
    assert [index for index, each in enumerate(told) if each is not None] == [control_file.CHANGING_LOOKS_MAX - 1]
    with pytest.raises(ControlFileError, match="has stood still for 1 s"):
        raise told[control_file.CHANGING_LOOKS_MAX - 1]
    assert pin(reader.look()) == "failed-over"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_p23_a_function_that_ends_its_thread_is_told_like_one_that_fails(error: BaseException) -> None:
    raises = True

    def control() -> str:
        if raises:
            raise error
        return ""

    reader = ControlFileReader(control)
    told = reader.look()
    assert isinstance(told, ControlFileError) and repr(error) in str(told) and told.__cause__ is error
    assert reader.look() is None, "told once"
    raises = False
    assert isinstance(reader.look(), Pins)


def test_p23_a_look_that_hangs_is_told_once_and_so_is_the_first_that_does_not() -> None:
    hangs = 2
    reader: ControlFileReader

    def control() -> str:
        nonlocal hangs
        if hangs:
            hangs -= 1
            told.append(reader.hangs())
        return 'orders = "healthy"'

    told: list[Exception | None] = []
    reader = ControlFileReader(control)
    assert pin(reader.look()) == "healthy", "what came late is followed all the same"
    assert reader.look() is None
    assert "the function that stands for it has taken longer than 10 s" in str(told[0])
    assert told[1:] == [None], "a function that is always slow is told once"
    assert pin(reader.look()) == "healthy", "it can be followed again: told, though nothing changed"
    assert reader.look() is None


def test_p23_a_function_is_asked_each_time_and_its_failures_are_told_once() -> None:
    answers: list[Any] = [
        'orders = "healthy"',
        'orders = "healthy"',
        {"orders": "auto"},
        {"orders": "auto"},
        None,
        None,
    ]
    reader = ControlFileReader(lambda: answers.pop(0))
    assert pin(reader.look()) == "healthy"
    assert reader.look() is None
    assert pin(reader.look()) is None
    assert reader.look() is None
    assert isinstance(reader.look(), ControlFileError)
    assert reader.look() is None
    assert isinstance(reader.look(), IndexError)
    assert reader.look() is None
