"""`python -m benchmarks [--only TABLE[.CASE]] [--rounds 9] [--quick]`: measure, print, keep.

Progress goes to stderr, the tables to stdout, everything to results.json, where a table not measured this time keeps
what an earlier run wrote. `--report` measures nothing: it puts the kept tables into docs/benchmarks.md.
`--against CHECKOUT` measures that checkout beside this one, without rivals; kept nowhere unless `--out` says where.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import resource
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import (
    against,
    brokers,
    fanout,
    growth,
    long_turns,
    machine,
    outage,
    pairing,
    reports,
    rounds,
    scale,
    sdk,
    spark,
    syphon,
)
from benchmarks.figures import ROUNDS_MIN, Table, span
from benchmarks.settings import Settings

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
DOCS = HERE.parent / "docs" / "benchmarks.md"
FORMAT = 1
TABLES = (brokers, sdk, growth, long_turns, fanout, pairing, outage, syphon, spark, scale, reports)
FIGURES_START, FIGURES_END = "<!-- figures: start -->", "<!-- figures: end -->"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    names = ", ".join(table.NAME for table in TABLES)
    parser.add_argument(
        "--only", metavar="NAME", help=f"one table ({names}), or one case: brokers.window, growth.depth"
    )
    parser.add_argument("--rounds", type=int, help=f"interleaved rounds (default {ROUNDS_MIN}; fewer are not quotable)")
    parser.add_argument("--quick", action="store_true", help="everything tiny: does the benchmark still run?")
    parser.add_argument(
        "--out", type=Path, help=f"where results go (default {RESULTS.name}; --quick, --against: nowhere)"
    )
    parser.add_argument("--data", type=Path, default=HERE / ".data", help="folder for the servers' data")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="another checkout with a .venv of its own beside this one, as ratios",
    )
    parser.add_argument("--lines", type=int, metavar="N", help="of the ledgers in the table reports")
    parser.add_argument("--turns", action="store_true", help=argparse.SUPPRESS)  # see against.py
    parser.add_argument("--report", action="store_true", help="put the kept results into docs/benchmarks.md")
    options = parser.parse_args(arguments)
    if options.only and options.only.partition(".")[0] not in [table.NAME for table in TABLES]:
        parser.error(f"--only {options.only}: there is {names}")
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds: at least 1")
    if options.lines is not None and options.lines < 1000:
        parser.error("--lines: at least 1000")
    if options.against and (reason := against.why_not(options.against)):
        parser.error(f"--against {options.against}: {reason}")
    if options.report:
        return report(options.out or RESULTS, DOCS)
    try:
        return run(options)
    except (KeyboardInterrupt, EOFError):
        print("stopped; its servers too", file=sys.stderr)
        return 130


def run(options: argparse.Namespace) -> int:
    # a folder of its own for each run: two at once don't meet, and a run that was killed leaves nothing in the way
    data: Path = (options.data / f"run-{time.time_ns():x}").absolute()
    data.mkdir(parents=True, mode=0o700)
    if options.quick:
        settings = Settings.tiny(data, options.rounds or 1, options.only, rivals=not options.turns)
    else:
        settings = Settings(data, options.rounds or ROUNDS_MIN, only=options.only, rivals=not options.turns)
    if options.lines:
        settings = replace(settings, ledger_lines=options.lines)
    if options.turns:
        rounds.turn = against.turn
    # the page shows rivals and this checkout, so a comparison of versions must not take its place
    out: Path | None = options.out or (None if options.quick or options.against else RESULTS)
    _allow_many_sockets()
    gc.freeze()
    started = time.perf_counter()
    failures: list[str] = []
    results = _kept(out)
    try:
        about = machine.describe(data)
        if about["file_system"] == "tmpfs":
            print(f"warning: {data} is on tmpfs, where a sync costs nothing; choose another --data", file=sys.stderr)
        for module in TABLES:
            if not settings.wants(module.NAME):
                continue
            if options.against:
                told = ["--only", options.only or module.NAME, "--rounds", str(settings.rounds)]
                told += ["--data", str(data.parent), *(["--quick"] if options.quick else [])]
                told += ["--lines", str(settings.ledger_lines)]
                table, failed = against.measure(module.NAME, options.against, data, told)
            else:
                table, failed = _loop_run(module.measure(settings))
            failures += failed
            if not options.turns:  # then nothing but the asking for turns goes to stdout
                print(table.render(), flush=True)
            measured = {**table.to_json(), "measured_at": _now(), "machine": about}
            if "." in (options.only or ""):
                measured = with_other_cases(measured, results["tables"].get(module.NAME))
            results["tables"][module.NAME] = measured
            if out:
                _write(out, results)
    finally:
        shutil.rmtree(data, ignore_errors=True)
        with contextlib.suppress(OSError):
            data.parent.rmdir()
    if not options.turns:
        print(f"done in {span(time.perf_counter() - started)}" + (f", see {out}" if out else ""), file=sys.stderr)
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _loop_run(work: Any) -> Any:
    """On uvloop where there is one, as the broker is: the same loop for every driver."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def _allow_many_sockets() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _kept(path: Path | None) -> dict[str, Any]:
    if path and path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        if found.get("format") == FORMAT:
            return found
    return {"format": FORMAT, "tables": {}}


def _write(path: Path, results: dict[str, Any]) -> None:
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def with_other_cases(measured: dict[str, Any], kept: dict[str, Any] | None) -> dict[str, Any]:
    """Return a table in which some cases were measured now, with the rows of the other cases that were kept; those say
    when they were measured."""
    if kept is None:
        return measured
    rows = {(row["case"], row["who"]): {"measured_at": kept["measured_at"], **row} for row in kept["rows"]}
    rows |= {(row["case"], row["who"]): row for row in measured["rows"]}
    return {**measured, "rows": list(rows.values())}


def report(results: Path, docs: Path) -> int:
    if not results.exists():
        print(f"{results} is not there: run `python -m benchmarks` first", file=sys.stderr)
        return 1
    docs.write_text(with_figures(docs.read_text(), _kept(results)))
    return 0


def with_figures(text: str, results: dict[str, Any]) -> str:
    """The page with everything between its two markers replaced by the kept tables."""
    before, start, rest = text.partition(FIGURES_START)
    _, end, after = rest.partition(FIGURES_END)
    if not start or not end:
        raise ValueError(f"the page has no {FIGURES_START} … {FIGURES_END}")
    parts = []
    for module in TABLES:
        kept = results["tables"].get(module.NAME)
        if kept:
            table = Table.from_json(kept)
            about = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in kept["machine"].items())
            parts.append(f"{table.render()}\nMeasured {kept['measured_at']}, {table.rounds()} rounds, on: {about}.\n")
            earlier = sorted({(row["measured_at"], row["case"]) for row in kept["rows"] if "measured_at" in row})
            parts += [f"Measured {when} already: {case}.\n" for when, case in earlier]
    return f"{before}{start}\n\n{chr(10).join(parts)}\n{end}{after}"


if __name__ == "__main__":
    sys.exit(main())
