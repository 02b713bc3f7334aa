"""The options of every command that runs on Spark: the cluster, and the settings of the session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
PY_FILES: Final = "spark.submit.pyFiles"
PACKAGES: Final = "spark.jars.packages"


min_partitions_option = click.option(
    "--min-partitions",
    type=click.IntRange(1, 1000),
    default=1,
    metavar="N",
    help="Tasks of a batch at least: several receivers compete for the messages of a queue.",
)


def _check_conf(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> list[tuple[str, str]]:
    found = []
    for value in values:
        name, is_given, setting = value.partition("=")
        if not is_given or not name.startswith("spark."):
            raise click.BadParameter(f"{value!r} is no NAME=VALUE such as spark.executor.memory=2g")
        found.append((name, setting))
    return found


def _listed(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> list[str]:
    """Split values that are given several times, or with commas between them as spark-submit takes them."""
    return [each for value in values for each in value.split(",") if each]


def _check_files(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[str]:
    found = _listed(context, parameter, values)
    for each in found:
        if "://" not in each and not Path(each).is_file():
            raise click.BadParameter(f"{each} is no file; name a .py, .zip or .egg file, or its URL")
    return found


def spark_options(command: F) -> F:
    """Add --master, --conf, --py-files and --packages; the command takes `master` and `conf`, which holds the rest."""

    @wraps(command)
    def call(*given: Any, conf: list[tuple[str, str]], py_files: list[str], packages: list[str], **more: Any) -> Any:
        return command(*given, conf=gathered(conf, py_files, packages), **more)

    for add in (
        click.option("--packages", multiple=True, callback=_listed, metavar="G:A:V", help="Maven packages for Spark."),
        click.option(
            "--py-files", multiple=True, callback=_check_files, metavar="FILE", help="Python files for the executors."
        ),
        click.option(
            "--conf", multiple=True, callback=_check_conf, metavar="NAME=VALUE", help="A setting of Spark's session."
        ),
        click.option("--master", metavar="URL", help="The Spark cluster; by default this machine."),
    ):
        call = add(call)
    return call  # type: ignore[return-value]


def gathered(conf: Sequence[tuple[str, str]], py_files: Sequence[str], packages: Sequence[str]) -> dict[str, str]:
    """Return the settings of a session; files and packages are added to those that --conf names."""
    found = dict(conf)
    for name, more in ((PY_FILES, py_files), (PACKAGES, packages)):
        if more:
            found[name] = ",".join([*filter(None, [found.get(name)]), *more])
    return found
