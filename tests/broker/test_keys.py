from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest

from pairbus.broker.keys import ROOT_RULE, load_rule
from pairbus.errors import BrokerError


def test_a_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    rule = load_rule(tmp_path)
    assert rule.key_name == ROOT_RULE
    assert set(rule.rights) == {"Manage", "Send", "Listen"}
    assert len(base64.b64decode(rule.primary_key)) == len(base64.b64decode(rule.secondary_key)) == 32
    assert rule.primary_key != rule.secondary_key
    assert load_rule(tmp_path) == rule
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_namespaces_have_different_keys(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    assert load_rule(tmp_path / "a").primary_key != load_rule(tmp_path / "b").primary_key


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"key_name": 1', "null"])
def test_a_damaged_file_is_named_and_not_overwritten(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys.json").write_text(text)
    with pytest.raises(BrokerError, match=r"keys\.json"):
        load_rule(tmp_path)
    assert (tmp_path / "keys.json").read_text() == text
