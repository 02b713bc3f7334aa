from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .calls import call

SHELLS = ["bash", "zsh", "fish"]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_asks_pairbus(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    done = call(capsys, "completion", shell)
    assert (done.code, done.err) == (0, "")
    assert f"_PAIRBUS_COMPLETE={shell}_complete" in done.out


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("pairbus pu", ["purge"]),
        ("pairbus completion ", SHELLS),
        ("pairbus peek @x orders --from", ["--from-sequence"]),
        ("pairbus fault --data d contoso no-", ["no-send", "no-receive", "no-manage"]),
        ("pairbus syphon --engine ", ["spark", "in-process", "auto"]),
    ],
)
def test_what_is_offered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, offered: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pairbus"])
    monkeypatch.setenv("_PAIRBUS_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - (not typed.endswith(" "))))
    assert [line.partition(",")[2] for line in call(capsys).out.splitlines()] == offered


def test_bash_completes(capsys: pytest.CaptureFixture[str]) -> None:
    bash = shutil.which("bash")
    assert bash is not None, "the Makefile's recipes and .ci/run need it too"
    script = call(capsys, "completion", "bash").out
    typed = 'COMP_WORDS=(pairbus comp); COMP_CWORD=1; _pairbus_completion pairbus comp pairbus; echo "${COMPREPLY[@]}"'
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [bash, "-c", f"{script}\n{typed}"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "completion\n", done.stderr
