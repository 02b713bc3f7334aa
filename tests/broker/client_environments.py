"""Virtual environments with clients of other versions than ours, one each, in `.venv/clients`.

They are made from the pinned requirements in `tests/broker/clients` when a test first needs them, several at a time,
and kept until those change.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .broker_process import ROOT

PINNED = Path(__file__).parent / "clients"
INSTALL_S_MAX = 300


def environments(*names: str) -> dict[str, Path]:
    """The Python of each environment. Raises RuntimeError with pip's last words where one can't be made."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(names, pool.map(_environment, names), strict=True))


def _environment(name: str) -> Path:
    pinned = PINNED / f"{name}.txt"
    folder = ROOT / ".venv" / "clients" / name
    python, stamp = folder / "bin" / "python", folder / ".installed"
    wanted = hashlib.sha256(pinned.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    venv.create(folder, clear=True)
    command = [
        *(sys.executable, "-m", "pip", "--python", str(python), "install", "-qq", "--disable-pip-version-check"),
        *("--require-hashes", "-r", str(pinned)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S_MAX)
    if done.returncode:
        raise RuntimeError(f"pip could not install {pinned.name}: {done.stderr.strip()[-400:]}")
    stamp.write_text(wanted)
    return python
