from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SHELLS = ["bash", "zsh", "fish"]


def pairbus(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "pairbus"), *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_asks_pairbus(shell: str) -> None:
    done = pairbus("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"_PAIRBUS_COMPLETE={shell}_complete" in done.stdout


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
def test_what_is_offered(typed: str, offered: list[str]) -> None:
    words = str(len(typed.split()) - (not typed.endswith(" ")))
    done = pairbus(_PAIRBUS_COMPLETE="bash_complete", COMP_WORDS=typed, COMP_CWORD=words)
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == offered


def test_bash_completes() -> None:
    bash = shutil.which("bash")
    assert bash is not None, "the Makefile's recipes and .ci/run need it too"
    script = pairbus("completion", "bash").stdout
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
