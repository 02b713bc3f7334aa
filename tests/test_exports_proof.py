"""`import pairbus` is cheap and names everything that users need; type checkers see the same names."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pairbus
import pairbus.aio

SRC = Path(pairbus.__file__).parent


def test_every_name_of_pairbus_is_shown() -> None:
    """That each is there, and what it is: tests/frozen/test_outside_proof.py."""
    assert set(pairbus.__all__) <= set(dir(pairbus))


def test_an_unknown_name_is_the_usual_error() -> None:
    for module in (pairbus, pairbus.aio):
        with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
            module.Nothing  # noqa: B018


@pytest.mark.parametrize(
    ("file", "names"), [("__init__.py", pairbus.__all__), ("aio/__init__.py", pairbus.aio.__all__)]
)
def test_type_checkers_see_the_same_names(file: str, names: list[str]) -> None:
    tree = ast.parse((SRC / file).read_text())
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    seen = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(names) - {"__version__"}


def test_every_error_and_event_of_pairing_is_exported() -> None:
    from pairbus.pairing import errors, events

    for module, root in ((errors, errors.PairingError), (events, events.Event)):
        for name, found in vars(module).items():
            if isinstance(found, type) and issubclass(found, root):
                assert getattr(pairbus, name, None) is found, name


def test_importing_pairbus_imports_nothing_of_the_sdk() -> None:
    code = (
        "import sys; before = set(sys.modules); import pairbus; pairbus.__version__;"
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == ["pairbus"]
