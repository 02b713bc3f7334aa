"""The house's rules that a machine can keep: ARCHITECTURE.md says them in words, this file in tables."""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
from pathlib import Path

import pytest

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

# Folder, or file at the top of one → what it may import of pairbus besides itself. A folder stands for what lies in it.
# "" is the package itself, for its version.
ROOMS: dict[str, set[str]] = {
    "": {"errors", "pairing", "sync"},  # what the package hands out, imported when it is asked for
    "billing": set(),
    "errors": set(),
    "moved": set(),
    "sas": {"errors"},
    "connection_string": {"errors"},
    "credentials": {"amqp", "connection_string", "sas"},
    "amqp": set(),
    "journal": set(),
    "ledger": {"", "billing", "errors"},
    "broker/refusal": set(),
    "broker/clock": set(),
    "broker/slices": set(),
    "broker/format": {"amqp"},
    "broker/sql": {"amqp"},
    "broker/model": {"amqp", "errors", "sas", "broker/format", "broker/refusal", "broker/slices", "broker/sql"},
    "broker/storage": {"amqp", "journal", "broker/format", "broker/model", "broker/refusal", "broker/slices"},
    "broker/operations": {"amqp", "journal", "broker/format", "broker/model", "broker/refusal", "broker/slices",
        "broker/storage"},
    "broker/telemetry": {"amqp", "billing", "ledger", "broker/format", "broker/model", "broker/operations",
        "broker/refusal"},
    "broker/access": {"amqp", "errors", "sas", "broker/model", "broker/operations", "broker/refusal", "broker/storage"},
    "broker/amqp": {"amqp", "billing", "journal", "sas", "broker/access", "broker/model", "broker/operations",
        "broker/refusal", "broker/server", "broker/slices", "broker/telemetry"},
    "broker/http": {"amqp", "errors", "sas", "broker/access", "broker/model", "broker/operations", "broker/refusal",
        "broker/slices"},
    "broker/net": {"errors", "journal", "broker/access", "broker/http", "broker/storage"},
    "broker/config": {"amqp", "errors", "broker/access", "broker/http", "broker/model", "broker/operations"},
    "broker/control": {"errors", "broker/access", "broker/model", "broker/refusal"},
    "broker": {"", "amqp", "errors", "journal", "ledger", "sas"},
    "wire": {"", "amqp", "billing", "connection_string", "credentials", "errors"},
    "pairing": {"", "amqp", "billing", "credentials", "errors", "ledger", "moved"},
    "syphon/core": {"amqp", "pairing/backlog", "wire/batches", "wire/errors"},
    "syphon": {"", "amqp", "billing", "credentials", "errors", "ledger", "pairing", "wire"},
    "sync": {"", "errors", "ledger", "pairing", "syphon", "wire"},
    "aio": {"", "errors", "ledger", "pairing", "syphon"},
    "cost": {"billing", "errors"},
    "spark/runtime": {"", "errors", "syphon", "wire", "spark/connector"},
    "spark/connector": {"", "amqp", "billing", "errors", "pairing", "syphon", "wire", "spark/runtime"},
    "spark/syphon": {"", "amqp", "billing", "credentials", "errors", "ledger", "pairing", "syphon", "wire",
        "spark/connector", "spark/runtime"},
    "spark/pipelines": {"", "amqp", "billing", "errors", "ledger", "syphon", "wire", "spark/connector",
        "spark/runtime", "spark/syphon"},
    "spark/reports": {"", "billing", "cost", "errors", "ledger", "moved", "pairing", "spark/runtime"},
    "spark": {"", "moved"},
    "telemetry": {"", "errors", "pairing"},
    "testing": {"", "broker", "errors", "wire"},
    "drill": {"", "aio", "broker", "cost", "errors", "ledger", "pairing", "spark", "syphon"},
    "commands": {"", "amqp", "broker", "connection_string", "cost", "drill", "errors", "ledger", "pairing", "spark",
        "sync", "syphon", "wire"},
    "cli": {"", "commands", "errors"},
    "__main__": {"cli"},
}  # fmt: skip

# Test files that prove a behaviour across modules rather than mirror one module.
ACROSS = re.compile(
    r"test_(tidy|behaviour|examples|docs|document_blocks|wrong_calls|packaging|benchmarks|sdk_\w+|crash\w*|broker|rabbitmq|weather|fuzz\w*|soak\w*|p\d+\w*|interop\w*|\w+_proof)"
)


@functools.cache
def modules() -> dict[str, Path]:
    return {path.relative_to(SRC).with_suffix("").as_posix(): path for path in sorted(SRC.rglob("*.py"))}


def tracked() -> list[Path]:
    """The files of the work tree that are or could be committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def imports(name: str, path: Path) -> list[str]:
    """Everything that a module imports, relative imports made absolute; `from x import y` as x.y."""
    package = ("pairbus/" + name).split("/")[:-1]
    if path.name == "__init__.py":
        package = ("pairbus/" + name).removesuffix("/__init__").split("/")
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
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


def is_pure(name: str) -> bool:
    if name.rpartition("/")[0] in PURE_FOLDERS:
        return True
    return bool(re.search(r"\bPure\.", ast.get_docstring(ast.parse(modules()[name].read_text())) or ""))


PURE = sorted(name for name in modules() if not is_package_file(name) and is_pure(name))


@pytest.mark.parametrize("name", PURE)
def test_decisions_do_no_io_and_ask_for_no_time(name: str) -> None:
    path = SRC / f"{name}.py"
    found = imports(name, path)
    forbidden = IO_MODULES - IO_ALLOWED.get(name, set())
    assert [each for each in found if each.split(".")[0] in forbidden] == []
    present = modules()
    own = {
        "/".join(parts[:depth])
        for parts in (each.split(".")[1:] for each in found if each.startswith("pairbus."))
        for depth in range(1, len(parts) + 1)
    }
    shells = {each for each in own if each in present and each not in PURE}
    assert shells == set(), "a decision that needs a shell is none"
    calls = {
        f"{node.func.value.id}.{node.func.attr}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
    }
    clocks_and_dice = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "uuid.uuid1", "uuid.uuid4"}
    assert calls & clocks_and_dice == set()


def room_of(path: str) -> str:
    """Return the room that a module's path lies in: the longest key of ROOMS that it begins with."""
    parts = path.split("/")
    return next((room for n in range(len(parts), 0, -1) if (room := "/".join(parts[:n])) in ROOMS), "")


def may_import(room: str, path: str) -> bool:
    allowed = ROOMS[room] | {room}
    return room_of(path) == "" or any(path == each or path.startswith(f"{each}/") for each in allowed if each)


@pytest.mark.parametrize("name", sorted(modules()))
def test_rooms_import_only_what_they_may(name: str) -> None:
    room = room_of(name.removesuffix("__init__").strip("/"))
    wrong = [
        each
        for each in imports(name, modules()[name])
        if each.startswith("pairbus.") and not may_import(room, "/".join(each.split(".")[1:]))
    ]
    assert wrong == [], f"{room or 'the package'} must not import these"


def test_a_folder_holds_one_idea() -> None:
    folders = [path for path in [SRC, *SRC.rglob("*")] if path.is_dir() and path.name != "__pycache__"]
    crowded = {
        str(each.relative_to(SRC)): count for each in folders if (count := len(list(each.glob("*.py"))) - 1) > FILES_MAX
    }
    assert crowded == {}


def test_the_architecture_names_every_room() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for room in ROOMS.keys() - {"", "__main__"}:
        assert f"{room.rpartition('/')[2]}" in text, room


@pytest.mark.parametrize("name", sorted(modules()))
def test_no_module_is_named_after_nothing(name: str) -> None:
    assert not re.fullmatch(r"utils?|common|helpers?|misc|base_.*", name.rsplit("/", 1)[-1])


def test_every_module_says_what_it_is() -> None:
    silent = [
        name
        for name, path in modules().items()
        if path.stat().st_size and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_only_the_command_line_prints() -> None:
    printing = [
        name
        for name, path in modules().items()
        if name != "cli"
        for node in ast.walk(ast.parse(path.read_text()))
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


# Each is a hot path, which a call per part would slow down.
LONG_FUNCTIONS = {"amqp/performatives._hot_flow", "broker/format/content.delivery"}


def test_no_function_is_longer_than_a_screen() -> None:
    long = {
        f"{name}.{node.name}"
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    }
    assert long == LONG_FUNCTIONS, "look for the second idea in it, or say here why it is one"


def texts(repository: list[Path]) -> list[tuple[str, str]]:
    found = []
    for path in repository:
        try:
            found.append((path.relative_to(ROOT).as_posix(), path.read_text()))
        except UnicodeDecodeError:
            continue
    return found


def test_nothing_is_left_for_later_in_a_comment(repository: list[Path]) -> None:
    marks = re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X])\b")
    assert [name for name, text in texts(repository) if name.endswith(".py") and marks.search(text)] == []


def test_no_machine_and_no_registry_is_named(repository: list[Path]) -> None:
    # A letter in brackets keeps this file, and the commit, free of what it looks for.
    hosts = [r"pyp[i]\.org", "pythonhoste[d]", r"npmj[s]\.(?:org|com)", r"debia[n]\.org"]
    homes = [r"(?:^|[^A-Za-z0-9_./])/(?:wor[k]|far[m]|roo[t]|hom[e])/"]
    pattern = re.compile("|".join(hosts + homes), re.MULTILINE)
    found = [f"{name}: {match.group().strip()}" for name, text in texts(repository) if (match := pattern.search(text))]
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
