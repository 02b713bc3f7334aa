"""The rules of the house that a machine can check. Which room may import which stands in `tests/architecture.py`."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests import architecture
from tests.architecture import ROOMS

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "pairbus"
LINES_MAX = 800
FUNCTION_LINES_MAX = 60

# Decisions take `now` and bytes and give answers. A folder in this list is pure, every module of it. In other folders a
# module whose docstring says "Pure." is held to the same.
PURE_FOLDERS = {
    "amqp", "broker/format", "broker/model", "broker/sql", "pairing/backlog", "pairing/routing", "syphon/core",
}  # fmt: skip
IO_MODULES = {
    "asyncio", "concurrent", "http", "logging", "multiprocessing", "os", "queue", "random", "secrets", "select",
    "selectors", "shutil", "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time",
}  # fmt: skip
# Every exception has its reason.
IO_ALLOWED = {"journal/errors": {"os"}}  # os.strerror: the words for an errno
FILES_MAX = 16  # of a folder, its __init__ not counted

# Test files that prove a behaviour across modules rather than mirror one module.
ACROSS = re.compile(
    r"test_(tidy|behaviour|examples|docs|document_blocks|wrong_calls|packaging|benchmarks|sdk_\w+|crash\w*|broker|rabbitmq|weather|fuzz\w*|soak\w*|p\d+\w*|interop\w*|\w+_proof)"
)


@functools.cache
def modules() -> dict[str, Path]:
    return {path.relative_to(SRC).with_suffix("").as_posix(): path for path in sorted(SRC.rglob("*.py"))}


@functools.cache
def tree(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text())


@functools.cache
def nodes(name: str) -> list[ast.AST]:
    return list(ast.walk(tree(name)))


def tracked() -> list[Path]:
    """The files of the work tree that are or could be committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


@functools.cache
def imports(name: str) -> list[str]:
    """Everything that a module imports, relative imports made absolute; `from x import y` as x.y."""
    package = ["pairbus", *name.split("/")][:-1]
    found: list[str] = []
    for node in nodes(name):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base += node.module.split(".") if node.module else []
            found += [".".join([*base, alias.name]) for alias in node.names]
    return found


def is_package_file(name: str) -> bool:
    return name.endswith("__init__") or name == "__main__"


@pytest.fixture(scope="module")
def repository() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    return tracked()


@functools.cache
def pure_modules() -> frozenset[str]:
    return frozenset(
        name
        for name in modules()
        if not is_package_file(name)
        and (name.rpartition("/")[0] in PURE_FOLDERS or re.search(r"\bPure\.", ast.get_docstring(tree(name)) or ""))
    )


def test_decisions_do_no_io_and_ask_for_no_time() -> None:
    clocks_and_dice = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "uuid.uuid1", "uuid.uuid4"}
    wrong: dict[str, set[str]] = {}
    for name in pure_modules():
        found = imports(name)
        wrong[name] = {each for each in found if each.split(".")[0] in IO_MODULES - IO_ALLOWED.get(name, set())}
        for parts in (each.split(".")[1:] for each in found if each.startswith("pairbus.")):
            own = {"/".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
            wrong[name] |= {each for each in own if each in modules() and each not in pure_modules()}
        wrong[name] |= clocks_and_dice & {
            f"{node.value.id}.{node.attr}"
            for node in nodes(name)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        }
    assert {name: found for name, found in wrong.items() if found} == {}, "a decision that needs a shell is none"


def room_of(path: str) -> str:
    """Return the room that a module's path lies in: the longest key of ROOMS that it begins with."""
    parts = path.split("/")
    return next((room for n in range(len(parts), 0, -1) if (room := "/".join(parts[:n])) in ROOMS), "")


def test_rooms_import_only_what_they_may() -> None:
    wrong: dict[str, list[str]] = {}
    used: dict[str, set[str]] = {room: set() for room in ROOMS}
    for name in modules():
        room = room_of(name.removesuffix("__init__").strip("/"))
        for path in ("/".join(each.split(".")[1:]) for each in imports(name) if each.startswith("pairbus.")):
            rules = [each for each in ROOMS[room] | {room} if each and (path == each or path.startswith(f"{each}/"))]
            used[room].update(rules)
            if not rules and room_of(path) != "":
                wrong.setdefault(name, []).append(path)
    assert wrong == {}, "these must not be imported there"
    needless = {room: rest for room, allowed in ROOMS.items() if (rest := allowed - used[room] - {""})}
    assert needless == {}, "nothing needs these rules any more"


def test_the_architecture_says_what_each_room_may_import() -> None:
    text = architecture.PAGE.read_text()
    assert set(architecture.rooms_of(text)) == ROOMS.keys() - {"", "__main__"}
    assert architecture.page(text) == text, "run `python -m tests.architecture`"


def test_the_tree_of_errors_says_where_each_error_is() -> None:
    said = dict(
        re.findall(r"^ *[│ ]*[├└]── (\w+) .*?(?:\((\S+)\))?$", ast.get_docstring(tree("errors")) or "", re.MULTILINE)
    )
    drawn_there = {"pairing/errors.py", "wire/errors.py"}
    homes = {
        node.name: f"{name}.py"
        for name in modules()
        for node in tree(name).body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id in {"PairbusError", *said} for base in node.bases)
        and (node.name in said or f"{name}.py" not in drawn_there)
    }
    assert homes.keys() == said.keys()
    assert {name: home for name, home in homes.items() if not home.startswith(said[name] or "errors.py")} == {}


def test_no_module_is_named_after_nothing() -> None:
    nothing = r"(?:.*/)?(?:utils?|common|helpers?|misc|base_[^/]*)"
    assert [name for name in modules() if re.fullmatch(nothing, name)] == []


def test_every_module_says_what_it_is() -> None:
    silent = [name for name, path in modules().items() if path.stat().st_size and not ast.get_docstring(tree(name))]
    assert silent == []


def test_only_the_command_line_prints() -> None:
    printing = [
        name
        for name in modules()
        if name != "cli"
        for node in nodes(name)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert printing == []


def test_tests_mirror_src() -> None:
    present = modules()
    strays = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        relative = path.relative_to(ROOT / "tests")
        stem = relative.stem.removeprefix("test_")
        is_beside = path.with_name(f"{stem}.py").exists()  # a test of the tests' own tools
        if (relative.parent / stem).as_posix() not in present and not is_beside and not ACROSS.fullmatch(relative.stem):
            strays.append(relative.as_posix())
    assert strays == [], "name a test file after its module, or after the behaviour that it proves (ACROSS)"


def test_no_file_grows_past_the_limit(repository: list[Path]) -> None:
    grown = {
        path.relative_to(ROOT).as_posix(): lines
        for path in repository
        if path.suffix == ".py" and (lines := path.read_text().count("\n")) > LINES_MAX
    }
    assert grown == {}, "look for the second idea in it"


# Hot paths, in as few calls as can be.
LONG_FUNCTIONS = {"broker/format/content.delivery", "broker/operations/enqueue.send"}


def test_no_function_is_longer_than_a_screen() -> None:
    long = {
        f"{name}.{node.name}"
        for name in modules()
        for node in nodes(name)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    }
    assert long == LONG_FUNCTIONS, "look for the second idea in it, or say here why it is one"


@pytest.fixture(scope="module")
def texts(repository: list[Path]) -> list[tuple[str, str]]:
    found = []
    for path in repository:
        try:
            found.append((path.relative_to(ROOT).as_posix(), path.read_text()))
        except UnicodeDecodeError:
            continue
    return found


def test_nothing_is_left_for_later_in_a_comment(texts: list[tuple[str, str]]) -> None:
    marks = re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X])\b")
    assert [name for name, text in texts if name.endswith(".py") and marks.search(text)] == []


def test_no_machine_and_no_registry_is_named(texts: list[tuple[str, str]]) -> None:
    # A letter in brackets keeps this file, and the commit, free of what it looks for.
    hosts = [r"pyp[i]\.org", "pythonhoste[d]", r"npmj[s]\.(?:org|com)", r"debia[n]\.org"]
    homes = [r"(?:^|[^A-Za-z0-9_./])/(?:wor[k]|far[m]|roo[t]|hom[e])/"]
    pattern = re.compile("|".join(hosts + homes), re.MULTILINE)
    found = [f"{name}: {match.group().strip()}" for name, text in texts if (match := pattern.search(text))]
    assert found == []


def test_requirements_are_pinned_with_hashes() -> None:
    for name in ("requirements.txt", "requirements-dev.txt", "requirements-docs.txt"):
        text = (ROOT / name).read_text()
        entries = re.findall(r"^[A-Za-z0-9][^\n]*", text, re.MULTILINE)
        assert entries
        assert [entry for entry in entries if not re.match(r"[A-Za-z0-9._-]+==[^ ]+ ", entry)] == []
        assert text.count("--hash=sha256:") >= len(entries)
        assert re.findall(r"^-.*", text, re.MULTILINE) == [], "an option in the file may name an index"


@pytest.mark.parametrize("name", [".ci/run"])
def test_scripts_can_be_run(name: str) -> None:
    path = ROOT / name
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in path.read_text()
