from __future__ import annotations

from math import inf
from typing import Any

import pytest

from pairbus.spark.reports.ledger_files.file_facts import FileFacts, MissingFiles, missing_files


def file(name: str, started: float, last: float, **more: Any) -> FileFacts:
    known: dict[str, Any] = {"writer": "client", "pid": 7, "ended": True, "rotated": True, "gap_events": 0}
    return FileFacts(**{**known, "file": name, "started": started, "last": last, "bad_lines": 0, "gap": None, **more})


def numbered(number: int, **more: Any) -> FileFacts:
    at = 10.0 * number
    return file(f"{number}", at, at + 10, **{"series": "s", "number": number, **more})


LAST = numbered(4, rotated=False)
CUT = numbered(4, rotated=False, ended=False)


@pytest.mark.parametrize(
    ("there", "missing"),
    [
        ([numbered(1), numbered(2), numbered(3), LAST], []),
        ([numbered(1), numbered(2), numbered(3), CUT], []),
        ([numbered(2), numbered(3), LAST], [MissingFiles("client", 1, None, "2", -inf, 20.0)]),
        ([LAST], [MissingFiles("client", 3, None, "4", -inf, 40.0)]),
        ([numbered(1), LAST], [MissingFiles("client", 2, "1", "4", 20.0, 40.0)]),
        # killed where it began a file, a broker takes the number again
        ([numbered(1), numbered(2, rotated=False), numbered(2, pid=8, rotated=False)], []),
        ([numbered(1), numbered(2)], [MissingFiles("client", None, "2", None, 30.0, inf)]),
        # of two writers with the same process id, each has its own numbers
        ([numbered(1, rotated=False), numbered(1, series="t", rotated=False)], []),
        ([numbered(1, rotated=False), numbered(2, series="t", rotated=False)],
         [MissingFiles("client", 1, None, "2", -inf, 20.0)]),
        # before there were numbers
        ([file("a", 0, 10), file("b", 10.2, 20), file("c", 20, 30, rotated=False)], []),
        ([file("a", 0, 10), file("b", 15, 20, rotated=False)], [MissingFiles("client", None, "a", "b", 10.0, 15.0)]),
        ([file("a", 0, 10), file("b", 10, 20, pid=8, rotated=False)],
         [MissingFiles("client", None, "a", None, 10.0, inf)]),
        ([file("b", 10, 20, rotated=False)], []),
    ],
)  # fmt: skip
def test_which_files_are_missing(there: list[FileFacts], missing: list[MissingFiles]) -> None:
    assert missing_files(there) == missing


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (MissingFiles("client", 1, "a", "b", 1, 2), "1 file of a ledger (client) missing after a and before b: "),
        (MissingFiles("broker", 2, None, "b", 1, 2), "2 files of a ledger (broker) missing before b: "),
        (MissingFiles("broker", None, "a", None, 1, 2), "at least one file of a ledger (broker) missing after a: "),
    ],
)
def test_what_is_said_of_missing_files(missing: MissingFiles, said: str) -> None:
    assert missing.note == said + "what is in there is unknown; audit again with it"
