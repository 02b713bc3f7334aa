from __future__ import annotations

import pytest

from pairbus.commands import status_line


def test_on_a_terminal_it_is_written_over(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    status_line.starting(1.4)
    status_line.say("10 moved")
    status_line.end()
    status_line.end()
    status_line.say("gone")
    status_line.clear()
    status_line.clear()
    assert capsys.readouterr().err == "\rstarting Spark, 1 s\r10 moved           \n\rgone\r    \r"


def test_elsewhere_it_is_lines(capsys: pytest.CaptureFixture[str]) -> None:
    status_line.say("10 moved")
    status_line.clear()
    status_line.end()
    assert capsys.readouterr().err == "10 moved\n"


def test_of_a_start_a_log_hears_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        for seconds in range(1, 25):
            status_line.starting(seconds + 0.3)
    assert capsys.readouterr().err.splitlines() == [f"starting Spark, {seconds} s" for seconds in (1, 11, 21)] * 2
