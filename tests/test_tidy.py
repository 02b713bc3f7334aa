"""The house's rules that a machine can keep: ARCHITECTURE.md says them in words, this file in tables."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "pairbus"
LINES_MAX = 800

# Decisions take `now` and bytes and give answers. A new module goes into one of the two tables, or the test fails.
DECISIONS = {
    "billing", "errors",
    "amqp/codec", "amqp/composite", "amqp/connection", "amqp/decoding", "amqp/encoding", "amqp/errors", "amqp/events",
    "amqp/limits", "amqp/link", "amqp/message", "amqp/performative_types", "amqp/performatives", "amqp/sasl",
    "amqp/session", "amqp/types",
    "broker/address", "broker/arguments", "broker/atom", "broker/authorization", "broker/bounds", "broker/clock",
    "broker/commands",
    "broker/config", "broker/config_table", "broker/content", "broker/copies", "broker/description",
    "broker/duplicates", "broker/entity", "broker/fates", "broker/faults", "broker/line", "broker/message",
    "broker/metering", "broker/metrics", "broker/outcomes", "broker/plan", "broker/publication", "broker/queue",
    "broker/readable", "broker/records", "broker/refusal", "broker/replay", "broker/reprints", "broker/requests",
    "broker/rule_codec", "broker/rule_description", "broker/rule_xml", "broker/rules", "broker/sas", "broker/sessions",
    "broker/strangers", "broker/survivors",
    "broker/timetable", "broker/topic", "broker/xml_text",
    "commands/message_text", "commands/progress_bar",
    "cost/columns", "cost/estimate", "cost/prices",
    "drill/chart", "drill/findings", "drill/page", "drill/plan", "drill/reckoning", "drill/staging", "drill/story",
    "drill/style", "drill/traffic",
    "journal/errors", "journal/options", "journal/record", "journal/relocation",
    "pairing/aliases", "pairing/backlog", "pairing/budget", "pairing/coordinator", "pairing/dispatch",
    "pairing/diversion", "pairing/errors", "pairing/events", "pairing/failover", "pairing/halt", "pairing/options",
    "pairing/ping", "pairing/provision", "pairing/rotation", "pairing/sending", "pairing/sizes", "pairing/states",
    "pairing/terms", "pairing/verdicts",
    "spark/allowance", "spark/arrow_rows", "spark/entities", "spark/lock_pace", "spark/options", "spark/row_ids",
    "spark/schema",
    "spark/pipelines/rounds", "spark/pipelines/selection",
    "spark/reports/audit_rules", "spark/reports/copies", "spark/reports/cost_text", "spark/reports/coverage",
    "spark/reports/effort", "spark/reports/outages", "spark/reports/places", "spark/reports/report_text",
    "spark/reports/strips",
    "syphon/arrival", "syphon/books", "syphon/destinations", "syphon/draining", "syphon/meter", "syphon/parcels",
    "syphon/partnership", "syphon/progress", "syphon/rate", "syphon/roster", "syphon/underway",
    "wire/backoff", "wire/batches", "wire/confirms", "wire/connection_string", "wire/credentials", "wire/errors",
    "wire/received", "wire/requests",
}  # fmt: skip
SHELLS = {
    "cli", "ledger", "telemetry",
    "aio/client", "aio/concurrency", "aio/engine_loop", "aio/guarded_sender", "aio/health_monitor", "aio/provisioning",
    "aio/receiver", "aio/sender", "aio/syphon",
    "broker/admin_api", "broker/amqp_connection", "broker/catalogue", "broker/cbs", "broker/certificates",
    "broker/construction", "broker/control", "broker/deliveries", "broker/dispatcher", "broker/durable_files",
    "broker/hosts", "broker/http_server", "broker/intake", "broker/keys", "broker/links", "broker/listener",
    "broker/management", "broker/namespace", "broker/observation", "broker/placement", "broker/publishing",
    "broker/registry", "broker/server", "broker/session_access", "broker/session_door", "broker/settlement",
    "broker/stocktaking", "broker/store", "broker/tokens", "broker/topics", "broker/upkeep", "broker/websocket",
    "commands/broker", "commands/completion", "commands/cost", "commands/drill", "commands/entities", "commands/move",
    "commands/namespace_argument", "commands/reports", "commands/spark_options", "commands/status_line",
    "commands/syphon",
    "cost/price_file",
    "drill/conducting", "drill/processes", "drill/rehearsal", "drill/syphoning", "drill/worker",
    "journal/compaction", "journal/files", "journal/journal", "journal/log", "journal/memory_files", "journal/segment",
    "journal/writer",
    "pairing/clients", "pairing/health_monitor", "pairing/observers", "pairing/sdk",
    "spark/batch_reader", "spark/carrier", "spark/connections", "spark/engine", "spark/hosting", "spark/java",
    "spark/listing", "spark/locations", "spark/lock_reader", "spark/noticeboard", "spark/refused_rows",
    "spark/session", "spark/sink", "spark/source", "spark/starting", "spark/stream_reader", "spark/syphon",
    "spark/watcher", "spark/writer",
    "spark/pipelines/archive", "spark/pipelines/choosing", "spark/pipelines/lock_batches", "spark/pipelines/move",
    "spark/pipelines/pipeline", "spark/pipelines/restoring", "spark/pipelines/transfer",
    "spark/reports/audit", "spark/reports/availability", "spark/reports/cost_report", "spark/reports/ledgers",
    "spark/reports/reconciliation", "spark/reports/series",
    "sync/client", "sync/concurrency", "sync/engine_loop", "sync/fork", "sync/guarded_sender", "sync/health_monitor",
    "sync/interrupts", "sync/provisioning", "sync/receiver", "sync/sender", "sync/syphon", "sync/watchdog",
    "syphon/daemon_thread", "syphon/endpoint", "syphon/engine", "syphon/hosting", "syphon/inspection", "syphon/lanes",
    "syphon/listing", "syphon/sources",
    "testing/clock", "testing/faults", "testing/fixtures",
    "wire/client", "wire/exchange", "wire/links", "wire/receiver", "wire/sender", "wire/sync", "wire/tokens",
    "wire/transport",
}  # fmt: skip
IO_MODULES = {
    "asyncio", "concurrent", "http", "logging", "multiprocessing", "os", "queue", "random", "secrets", "select",
    "selectors", "shutil", "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time",
}  # fmt: skip
# Every exception has its reason.
IO_ALLOWED = {"journal/errors": {"os"}}  # os.strerror: the words for an errno

# Room → what it may import of pairbus besides itself. "" is the package itself, for its version.
ROOMS: dict[str, set[str]] = {
    "": {"errors", "pairing", "sync"},  # what the package hands out, imported when it is asked for
    "billing": set(),
    "errors": set(),
    "amqp": set(),
    "journal": set(),
    "ledger": {"", "billing", "errors"},
    "broker": {"", "amqp", "billing", "errors", "journal", "ledger"},
    "wire": {"", "amqp", "billing", "errors", "broker/sas"},
    "pairing": {"", "amqp", "billing", "errors", "ledger", "wire/credentials"},
    "syphon": {"", "amqp", "billing", "errors", "ledger", "pairing", "wire"},
    "sync": {"", "errors", "ledger", "pairing", "syphon", "wire"},
    "aio": {"", "errors", "ledger", "pairing", "syphon"},
    "cost": {"billing", "errors"},
    "spark": {"", "amqp", "billing", "cost", "errors", "ledger", "pairing", "syphon", "wire"},
    "telemetry": {"", "errors", "pairing"},
    "testing": {"", "broker", "errors", "wire"},
    "drill": {"", "aio", "broker", "cost", "errors", "ledger", "pairing", "spark", "syphon"},
    "commands": {"", "amqp", "broker", "cost", "drill", "errors", "ledger", "pairing", "spark", "sync", "syphon",
        "wire"},
    "cli": {"", "commands", "errors"},
    "__main__": {"cli"},
}  # fmt: skip

# Test files that prove a behaviour across modules rather than mirror one module.
ACROSS = re.compile(
    r"test_(tidy|behaviour|examples|docs|document_blocks|wrong_calls|packaging|benchmarks|sdk_\w+|crash\w*|power_cut|broker|rabbitmq|weather|fuzz\w*|soak\w*|p\d+\w*|interop\w*|\w+_proof)"
)


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


def test_every_module_is_a_decision_or_a_shell() -> None:
    present = {name for name in modules() if not is_package_file(name)}
    assert not DECISIONS & SHELLS
    assert present - DECISIONS - SHELLS == set(), "put it into DECISIONS or SHELLS"
    assert (DECISIONS | SHELLS) - present == set(), "gone: take it out of the tables"


@pytest.mark.parametrize("name", sorted(DECISIONS))
def test_decisions_do_no_io_and_ask_for_no_time(name: str) -> None:
    path = SRC / f"{name}.py"
    found = imports(name, path)
    forbidden = IO_MODULES - IO_ALLOWED.get(name, set())
    assert [each for each in found if each.split(".")[0] in forbidden] == []
    own = {
        "/".join(each.split(".")[1 : 1 + depth]) for each in found if each.startswith("pairbus.") for depth in (1, 2, 3)
    }
    assert own & SHELLS == set(), "a decision that needs a shell is none"
    calls = {
        f"{node.func.value.id}.{node.func.attr}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
    }
    clocks_and_dice = {"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "uuid.uuid1", "uuid.uuid4"}
    assert calls & clocks_and_dice == set()


def room_of(parts: list[str]) -> str:
    return parts[0] if parts and parts[0] in ROOMS else ""


@pytest.mark.parametrize("name", sorted(modules()))
def test_rooms_import_only_what_they_may(name: str) -> None:
    room = room_of(name.removesuffix("__init__").strip("/").split("/"))
    for each in imports(name, modules()[name]):
        if each != "pairbus" and not each.startswith("pairbus."):
            continue
        parts = each.split(".")[1:]
        other = room_of(parts)
        allowed = other == room or other in ROOMS[room] or "/".join(parts[:2]) in ROOMS[room]
        assert allowed, f"{room or 'the package'} must not import {each}"


def test_the_architecture_names_every_room() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for room in ROOMS.keys() - {"", "__main__"}:
        assert f"`{room}" in text, room


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
        mirrored = (relative.parent / relative.stem.removeprefix("test_")).as_posix()
        if mirrored not in present and not ACROSS.fullmatch(relative.stem):
            strays.append(relative.as_posix())
    assert strays == [], "name a test file after its module, or after the behaviour that it proves (ACROSS)"


def test_no_file_grows_past_the_limit(repository: list[Path]) -> None:
    grown = {
        path.relative_to(ROOT).as_posix(): lines
        for path in repository
        if path.suffix == ".py" and (lines := path.read_text().count("\n")) > LINES_MAX
    }
    assert grown == {}, "look for the second idea in it"


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
