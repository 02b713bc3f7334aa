"""The command `drill`: prints the timeline of a rehearsed outage on stderr and its verdict on stdout, writes a report.

The exit code is 1 if a message was lost, if the ledgers can't account for one, or if a send failed for its caller; the
ids are named. `cli.py` turns errors into one line.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from pairbus.drill.plan import DRILL_FAULTS, ENTITIES, MESSAGES, OUTAGE_S, DrillPlan, Engine, InvalidDrill

if TYPE_CHECKING:
    from pairbus.drill.findings import Findings
    from pairbus.drill.timeline import TimelineEntry

FAILED: Final = 1
INTERRUPTED: Final = 130
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
#: The files of a drill in its folder: an earlier drill's are replaced, other files are not.
RESULT: Final = "result.json"
REPORT: Final = "report.html"
LEAVES: Final = (RESULT, REPORT, "timeline.txt", "ledger", "log")
_option = partial(click.option, show_default=True)
_COLOURS: Final = {"OUTAGE": "red", "RETURN": "green", "raised": "red", "state": "yellow", "syphon": "magenta"}


@click.command()
@_option("--messages", type=int, default=MESSAGES, metavar="N", help="How many are sent in all.")
@_option("--outage", type=float, default=OUTAGE_S, metavar="SECONDS", help="How long the primary is away.")
@_option("--entities", type=int, default=ENTITIES, metavar="N", help="Queues and a topic; 1 is one queue.")
@_option(
    "--fault", default="unreachable", metavar="KIND", help=f"What happens to the primary: {', '.join(DRILL_FAULTS)}."
)
@_option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("pairbus-drill"),
    help="The folder for the report, the ledgers and the logs; an earlier drill's is replaced.",
)
@_option(
    "--engine",
    type=click.Choice(get_args(Engine)),
    default="spark",
    help="What the syphon runs on. The reports are made on Spark either way.",
)
@_option("--seed", type=int, default=1, metavar="N", help="Decides sizes and times of messages.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: the timeline, and at last the result.")
def drill(
    messages: int, outage: float, entities: int, fault: str, out: Path, engine: Engine, seed: int, as_json: bool
) -> None:
    """Rehearse an outage: two namespaces, traffic, a fault, the failover, the way back, the verdict.

    Everything runs on this machine, offline, in processes of its own: nothing of yours is touched. Takes about a
    minute and a half. The exit code is 0 only if no message was lost and no send failed for its caller.

    \b
    Examples:
      pairbus drill
      pairbus drill --fault black-hole --outage 30
      pairbus drill --fault kill --messages 20000 --out /tmp/drill
      pairbus drill --json | tail -1 | jq .lost
    """
    from pairbus.drill.syphon import check_spark

    try:
        plan = DrillPlan(messages, outage, entities, fault, engine, seed)
    except InvalidDrill as error:
        raise click.UsageError(str(error)) from None
    check_spark()  # before anything is made or told
    _make_room(out)
    code = run(plan, out, as_json=as_json)
    if code:
        raise click.exceptions.Exit(code)


def _make_room(out: Path) -> None:
    """Remove what an earlier drill left; raise if the folder holds anything else."""
    if out.is_dir() and any(out.iterdir()):
        strangers = sorted(each.name for each in out.iterdir() if each.name not in LEAVES)
        if strangers:
            raise click.ClickException(
                f"{out} holds {strangers[0]}, which is no drill's; name a folder with --out that is empty or new"
            )
        for name in LEAVES:
            path = out / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(
            f"the folder {out} can't be made: {error.strerror}; name another with --out"
        ) from None


def run(plan: DrillPlan, out: Path, *, as_json: bool, in_outage: Any = None) -> int:
    """Run the drill and return the exit code. Tests pass `in_outage`, which is called at the end of the outage."""
    from pairbus.drill.timeline import introduction

    if not as_json:
        for line in introduction(plan):
            click.echo(line, err=True)
    try:
        findings = asyncio.run(_drill(plan, out, as_json, in_outage))
    except asyncio.CancelledError:
        click.echo("pairbus: interrupted; everything that the drill had started is stopped", err=True)
        return INTERRUPTED
    _show(findings, out, as_json)
    return 0 if findings.is_good else FAILED


async def _drill(plan: DrillPlan, out: Path, as_json: bool, in_outage: Any) -> Findings:
    from pairbus.drill.run import conduct

    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()

    def stop() -> None:
        # Once: a second Ctrl-C must not keep the drill from ending what it has started.
        for number in SIGNALS:
            loop.add_signal_handler(number, lambda: None)
        task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, stop)

    def tell(line: TimelineEntry) -> None:
        if as_json:
            click.echo(json.dumps(line.as_json()))
        else:
            click.secho(str(line), err=True, fg=_COLOURS.get(line.kind))

    return await conduct(plan, out, tell, in_outage=in_outage)


def _show(findings: Findings, out: Path, as_json: bool) -> None:
    from pairbus.drill.page import page

    report = out / REPORT
    report.write_text(page(findings), encoding="utf-8")
    (out / RESULT).write_text(json.dumps(findings.as_json, indent=1, default=str) + "\n")
    (out / "timeline.txt").write_text("\n".join(findings.timeline) + "\n")
    if as_json:
        click.echo(json.dumps({**findings.as_json, "report": str(report)}, default=str))
        return
    click.echo()
    for line in _lines(findings):
        click.echo(line)
    click.echo(f"report: {report}")
    click.echo()
    click.secho(
        findings.headline, bold=True, fg=("green" if findings.is_good else "red") if sys.stdout.isatty() else None
    )
    for remark in findings.remarks:
        click.echo(remark)


def _lines(findings: Findings) -> list[str]:
    """Return the lines of the audit, and of estimate and report side by side."""
    from pairbus.cost.columns import aligned

    audit = [
        f"{figure.label:>14}  {'unknown' if figure.value is None else format(figure.value, ',')}"
        for figure in findings.audit
    ]
    cost = aligned([findings.estimate.heads, *findings.estimate.rows])
    return ["audit", *audit, "", "cost, before and after", *cost, findings.estimate_remark, ""]
