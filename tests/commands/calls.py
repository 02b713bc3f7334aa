"""A command as a user calls it, within this process."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest

from pairbus.cli import main


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it printed, as lines of JSON."""
        return [json.loads(line) for line in self.out.splitlines()]

    def ends(self, code: int, *words: str) -> None:
        """Assert that it ended with this code, and said these words on stderr."""
        assert self.code == code, self.err
        for each in words:
            assert each in self.err


def call(capsys: pytest.CaptureFixture[str], *arguments: str, secrets: tuple[str, ...] = ()) -> Result:
    """Run the command to its end; none of the `secrets` may be in what it prints."""
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    printed = capsys.readouterr()
    assert not [each for each in secrets if each in printed.out + printed.err]
    assert isinstance(left.value.code, int)
    return Result(left.value.code, printed.out, printed.err)
