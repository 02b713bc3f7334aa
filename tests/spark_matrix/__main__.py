"""`make spark-matrix`: the story on the oldest and the newest supported Spark, each in an environment of its own.

python -m tests.spark_matrix [VERSION …]. The environments stand in a temporary folder and are taken away again; nothing
is cached in the repository.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
#: What the extra `spark` allows at both ends.
VERSIONS = ("4.0.0", "4.3.0")


def run(version: str, folder: Path) -> int:
    print(f"making an environment with pyspark {version}", file=sys.stderr, flush=True)
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    quiet = ["-qq", "--disable-pip-version-check", "--no-cache-dir"]
    made = subprocess.run([python, "-m", "pip", "install", *quiet, f"{ROOT}[spark]", f"pyspark=={version}"])
    if made.returncode:
        return made.returncode
    # in an empty folder, so that what is installed is what runs
    return subprocess.run([python, ROOT / "tests" / "spark_matrix" / "story.py"], cwd=folder, timeout=900).returncode


def main(versions: list[str]) -> int:
    failed: list[str] = []
    for version in versions or VERSIONS:
        with tempfile.TemporaryDirectory(prefix="pairbus-matrix-") as folder:
            if run(version, Path(folder)):
                failed.append(version)
    print(f"failed on {', '.join(failed)}" if failed else f"well on {', '.join(versions or VERSIONS)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
