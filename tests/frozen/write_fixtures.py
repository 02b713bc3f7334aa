"""`python -m tests.frozen.write_fixtures` writes what this version leaves on disk to data/VERSION-DATE, and with
`features` only the data folder of the second story (feature_story.py) to feature_data/VERSION-DATE, with `standby` that
of the third (standby_story.py) to standby_data/VERSION-DATE.

Run it before a release that changes a format; the folder is committed and never changed again.
"""

from __future__ import annotations

import datetime as dt
import shutil
import sys
import tempfile
from pathlib import Path

from pairbus import __version__
from pairbus.testing import ManualClock
from tests.frozen import feature_story, standby_story
from tests.frozen.scenario import archive, carry, examine, examine_with_spark, play, served
from tests.frozen.subjects import HERE, text_of

#: Made anew at every start, and large.
LEFT_OUT = shutil.ignore_patterns("reserve", "lock", "control.sock")


def opened(fixture: Path, folder: Path) -> Path:
    """Return a copy of a fixture with the modes that the broker asks for, which git does not keep."""
    copy = Path(shutil.copytree(fixture, folder / "copy", ignore=LEFT_OUT))
    for path in copy.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return copy


def write(fixture: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        now = play(made := Path(name, "made"))["now"]
        for each in ("broker", "ledger"):
            shutil.copytree(made / each, fixture / each, ignore=LEFT_OUT)
        with served(made / "broker", ManualClock(now)) as broker:
            archive(broker, fixture)
            carry(broker, fixture, Path(name, "streamed"))
        tell(fixture, Path(name), now)


def tell(fixture: Path, folder: Path, now: float) -> None:
    """Write down what today's code finds in the fixture."""
    told = {
        "now": now,
        "broker": examine(opened(fixture, folder / "1") / "broker", now),
        "spark": examine_with_spark(opened(fixture, folder / "2"), folder / "out", now),
    }
    (fixture / "expected.json").write_text(text_of(told))


def write_features(fixture: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        now = feature_story.play(made := Path(name, "broker"))
        shutil.copytree(made, fixture / "broker", ignore=LEFT_OUT)
        copy = opened(fixture, Path(name)) / "broker"
        told = {"now": now, "kinds": feature_story.kinds(copy), "broker": feature_story.examine(copy, now)}
        (fixture / "expected.json").write_text(text_of(told))


def write_standby(fixture: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        now = standby_story.play(Path(name))
        shutil.copytree(name, fixture, ignore=LEFT_OUT)
        for pledge in (path for path in fixture.rglob("standby") if path.is_file()):
            # The folder has been moved since: the fixture knows nothing of the machine on which it was written.
            pledge.write_text(pledge.read_text().replace(name, "/mnt"))
        copy = opened(fixture, Path(name))
        told = {"now": now, "orders": standby_story.examine(copy, now, copy / standby_story.STANDBY)}
        (fixture / "expected.json").write_text(text_of(told))


if __name__ == "__main__":
    today = f"{__version__}-{dt.date.today()}"
    if sys.argv[1:] == ["features"]:
        write_features(HERE / "feature_data" / today)
    elif sys.argv[1:] == ["standby"]:
        write_standby(HERE / "standby_data" / today)
    else:
        write(HERE / "data" / today)
