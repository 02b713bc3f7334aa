"""docs/behaviour.md is true: its modules and tests exist, and every requirement that is built has a test."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
NUMBERS = range(1, 59)
#: What this release must have; the others may say "not yet".
REQUIRED = [*range(1, 47), *range(51, 59)]
NOT_YET = "not yet"


class Row(NamedTuple):
    number: int
    sentence: str
    modules: list[str]
    tests: list[str]


def _rows() -> Iterator[Row]:
    text = (ROOT / "docs" / "behaviour.md").read_text()
    for section in re.split(r"^## P", text, flags=re.MULTILINE)[1:]:
        number, sentence, *rest = (part for part in re.split(r"\n{2,}", section.strip()))
        modules, tests = (*rest, "", "")[:2]
        yield Row(int(number), sentence, re.findall(r"`([^`]+)`", modules), re.findall(r"`([^`]+)`", tests))


ROWS = list(_rows())


@cache
def written_tests() -> dict[str, set[str]]:
    """File → names of its test functions, those in classes too."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found[path.relative_to(ROOT / "tests").as_posix()].add(node.name)
    return found


def carries(name: str, number: int) -> bool:
    return re.search(rf"(^|_)p{number}(_|$)", name) is not None


def test_every_number_has_its_row_in_order() -> None:
    assert [row.number for row in ROWS] == list(NUMBERS)


def test_every_row_is_true() -> None:
    assert [row for row in ROWS if len(row.sentence) <= 20] == []
    gone = [module for row in ROWS for module in row.modules if not (ROOT / f"src/pairbus/{module}.py").is_file()]
    assert gone == []
    named = [(row.number, *test.partition("::")[::2]) for row in ROWS for test in row.tests]
    assert [(file, name) for _, file, name in named if name not in written_tests().get(file, set())] == []
    assert [(number, name) for number, _, name in named if not carries(name, number)] == []


def test_what_is_built_has_modules_and_a_test() -> None:
    built = [row for row in ROWS if row.number in REQUIRED]
    assert [row for row in built if not (row.modules and row.tests) or NOT_YET in row.sentence] == []


def test_numbers_in_test_names_are_requirements() -> None:
    named = {
        int(number)
        for names in written_tests().values()
        for name in names
        for number in re.findall(r"(?:^|_)p(\d+)(?=_|$)", name)
    }
    assert named - set(NUMBERS) <= {50, 99}, "p50 and p99 may be percentiles"
