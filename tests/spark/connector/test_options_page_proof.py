"""The reference page lists exactly the options that the code knows, with their defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pairbus.spark.connector.options import NAMES, InvalidOption, check_batch, check_stream, parse

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "connector.md").read_text()
ROWS = [
    (name, default, set(scope.split(", ")), since)
    for name, default, scope, since in re.findall(
        r"^\| `(\w+)` \| (?:`(.*)`)? ?\| ([a-z, ]+) \| (\S+) \|",
        PAGE.split("## Options")[1].split("\n## ")[0],
        re.MULTILINE,
    )
]
DEFAULTS = {name: default for name, default, _, _ in ROWS if default}
HOST = {"fullyQualifiedNamespace": "contoso.servicebus.windows.net"}
SETTLED = {**HOST, "settleFullyQualifiedNamespace": "backup.servicebus.windows.net"}


def test_the_table_names_each_option_once() -> None:
    assert sorted(name for name, _, _, _ in ROWS) == sorted(NAMES)
    assert {word for _, _, scope, _ in ROWS for word in scope} == {"batch", "stream", "sink"}
    assert all(re.fullmatch(r"\d+\.\d+", since) for _, _, _, since in ROWS)


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_default_is_what_holds_without_the_option(name: str) -> None:
    assert parse({**SETTLED, name: DEFAULTS[name]}, {}) == parse(SETTLED, {})


def test_the_others_have_no_default() -> None:
    found = parse(HOST, {})
    assert (
        found.entity is found.columns is found.rate_max is found.refused_path is found.mailbox is found.settle is None
    )
    assert found.address.ca_file is None
    have_none = {name for name in NAMES if name not in DEFAULTS}
    ways = {"connectionString", "connectionStringEnv", "fullyQualifiedNamespace"}
    settle = {name for name in NAMES if name.startswith("settle") and name != "settleCredential"}
    assert have_none == {"entity", "maxRate", "columns", "refusedPath", "board", "caFile"} | ways | settle


def test_what_is_refused_outside_its_scope_is_listed_without_it() -> None:
    scopes = {name: scope for name, _, scope, _ in ROWS}
    with pytest.raises(InvalidOption, match="failOnDataLoss"):
        check_batch(parse({**HOST, "failOnDataLoss": "true"}, {}))
    with pytest.raises(InvalidOption, match="endingPosition"):
        check_stream(parse({**HOST, "endingPosition": "2026-01-31T08:00:00Z"}, {}))
    with pytest.raises(InvalidOption, match=r"sessions is for streams with mode=lock; spark.read reads by sequence"):
        check_batch(parse({**HOST, "sessions": "true"}, {}))
    with pytest.raises(InvalidOption, match="sessions is for streams with mode=lock; mode=delete reads by sequence"):
        check_stream(parse({**HOST, "sessions": "true", "mode": "delete"}, {}))
    with pytest.raises(InvalidOption, match="mode=delete is for streams"):
        check_batch(parse({**HOST, "mode": "delete"}, {}))
    assert scopes["sessions"] == scopes["mode"] == {"stream"}
    assert scopes["failOnDataLoss"] == {"stream"} and scopes["endingPosition"] == {"batch"}
