"""Writes the report: one HTML file with the findings, charts and styles inside, which fetches nothing.

Pure. No script is needed to read it. Light and dark follow the reader's setting; on paper it is always light, and no
chart is split across pages. Every figure of the audit carries its name (`data-figure`), so that a test can compare the
page with the JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from . import chart
from .chart import Texts
from .findings import Figure, Findings, Table, Tile
from .style import STYLE


def page(found: Findings) -> str:
    parts = [
        _top(found),
        _states(found),
        _sends(found),
        _backlog(found),
        _delay(found),
        _cost(found),
        _audit(found),
        _availability(found),
        _timeline(found),
        _settings(found),
    ]
    title = f"pairbus drill: {found.headline}"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # A page without an icon of its own would ask for one.
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n'
        "<body>\n<main>\n" + "\n".join(parts) + "\n</main>\n</body>\n</html>\n"
    )


def _top(found: Findings) -> str:
    remarks = "".join(f"<p>{escape(each)}</p>" for each in found.remarks)
    tiles = "".join(_tile(each) for each in found.tiles)
    return (
        f"<h1>pairbus drill · {escape(found.held)}</h1>\n"
        f'<div class="verdict{"" if found.is_good else " bad"}" role="status"><strong>{escape(found.headline)}</strong>'
        f'{remarks}</div>\n<div class="tiles">{tiles}</div>'
    )


def _tile(tile: Tile) -> str:
    return (
        f'<div class="tile{"" if tile.is_good else " bad"}"><b data-tile="{escape(tile.key)}">{escape(tile.value)}</b>'
        f"<span>{escape(tile.label)}</span></div>"
    )


def _section(heading: str, lead: str, content: str) -> str:
    return f'<section>\n<h2>{escape(heading)}</h2>\n<p class="lead">{escape(lead)}</p>\n{content}\n</section>'


def _figure(svg: str, legend: Sequence[tuple[str, str]], table: Table) -> str:
    """`legend`: a little drawing and its words. The table says the same to those who can't see the chart."""
    items = "".join(
        f'<li><svg viewBox="0 0 22 14" aria-hidden="true">{drawing}</svg>{escape(words)}</li>'
        for drawing, words in legend
    )
    listed = f'<ul class="legend">{items}</ul>' if items else ""
    figures = f"<details><summary>The same as a table</summary>{_table(table)}</details>"
    return f"<figure>\n{svg}\n{listed}\n{figures}\n</figure>"


def _swatch(style: str, pattern: str = "") -> str:
    fill = f' fill="url(#{pattern})"' if pattern else ""
    return f'<rect class="{style}"{fill} x="1" y="1" width="20" height="12"/>'


_OUTAGE_KEY: Final = (
    '<rect class="outage" x="1" y="0" width="20" height="14"/><path class="edge" d="M1 0V14M21 0V14"/>',
    "the primary is away",
)


def _states(found: Findings) -> str:
    texts = Texts(
        "states",
        "State of each entity over time",
        "One strip for each entity: healthy, suspect, failed over or unreachable; pings as crosses and dots below it.",
    )
    legend = [
        (_swatch("healthy strip"), "healthy: to the primary"),
        (_swatch("strip", "states-hatch"), "failed over: to the backlog"),
        _OUTAGE_KEY,
        ('<path class="ping-bad" d="M8 4l6 6m0 -6l-6 6"/>', "ping unanswered or refused"),
        ('<circle class="ping-good" cx="11" cy="7" r="4"/>', "ping answered"),
    ]
    kept = {state for changes in found.states.values() for _, state in changes}
    if "suspect" in kept:
        legend.insert(1, (_swatch("strip", "states-dots"), "suspect: failing, not yet failed over"))
    if "unreachable" in kept:
        legend.insert(2, (_swatch("strip", "states-cross"), "unreachable: the primary answers and refuses"))
    rows = [
        (entity, stay.state, f"{stay.start:.1f}", f"{stay.end:.1f}", f"{stay.end - stay.start:.1f}")
        for entity, changes in found.states.items()
        for stay in chart.state_spans(changes, found.frame.end_s)
    ]
    svg = chart.states_chart(found.frame, texts, found.states, found.pings)
    return _section(
        "Where new messages went, entity by entity",
        "An entity leaves the primary when a send fails, and comes back when a ping succeeds. Receivers wait "
        "meanwhile: messages are received from the primary only.",
        _figure(svg, legend, Table(("entity", "state", "from, s", "to, s", "seconds"), rows, 2)),
    )


def _sends(found: Findings) -> str:
    texts = Texts(
        "sends",
        "Sends a second by route",
        "Stacked columns: messages confirmed by the primary, by a backlog queue, and sends that failed for callers.",
    )
    legend = [
        (_swatch("primary"), "confirmed by the primary"),
        (_swatch("bar-backlog", "sends-hatch"), "confirmed by a backlog queue"),
        (_swatch("bar-refused", "sends-cross"), "failed for the caller"),
        _OUTAGE_KEY,
    ]
    count = max((len(values) for values in found.sends.values()), default=0)
    routes = list(found.sends)
    rows = [
        (f"{index * found.step_s:g}", *(f"{chart.rate_at(found.sends[route], index):g}" for route in routes))
        for index in range(count)
    ]
    return _section(
        "Sends by route",
        "What the senders' ledgers say was confirmed, and where. Applications went on sending through the outage.",
        _figure(
            chart.rate_chart(found.frame, texts, found.sends, found.step_s), legend, Table(("second", *routes), rows)
        ),
    )


def _backlog(found: Findings) -> str:
    texts = Texts(
        "backlog", "Messages in the backlog", "A line that rises in the outage and falls as the syphon drains."
    )
    rows = [(f"{index * found.step_s:g}", f"{depth:,.0f}") for index, depth in enumerate(found.depths)]
    legend = [
        ('<path class="line-backlog" d="M1 7H21"/>', "messages in the backlog queues of the secondary"),
        ('<path class="moment" d="M11 0V14"/>', "the syphon begins to drain"),
        _OUTAGE_KEY,
    ]
    return _section(
        "Depth of the backlog",
        "Diverted messages wait in the secondary. When the primary is back the syphon carries them home.",
        _figure(
            chart.depth_chart(found.frame, texts, found.depths, found.step_s, found.moments),
            legend,
            Table(("second", "messages"), rows),
        ),
    )


def _delay(found: Findings) -> str:
    texts = Texts(
        "delay",
        "Delivery delay",
        "Half and 99 percent of the messages received in a second took no longer than this, on a logarithmic axis.",
    )
    legend = [
        ('<path class="line-p50" d="M1 7H21"/><circle class="mark-p50" cx="11" cy="7" r="3"/>', "half took no longer"),
        (
            '<path class="line-p99" d="M1 7H21"/><rect class="mark-p99" x="8" y="4" width="6" height="6"/>',
            "99 % took no longer",
        ),
        _OUTAGE_KEY,
    ]
    rows = [(f"{each.t:g}", chart.seconds(each.p50), chart.seconds(each.p99)) for each in found.delays]
    return _section(
        "Delivery delay",
        "From send to receive, by the second of the receive. A gap means that nothing was received: the primary was "
        "away. What took the detour arrives late, not never.",
        _figure(
            chart.delay_chart(found.frame, texts, found.delays, found.step_s),
            legend,
            Table(("second", "p50", "p99"), rows),
        ),
    )


def _cost(found: Findings) -> str:
    texts = Texts("cost", "Billed operations by cause", "One bar for each cause, with operations and money.")
    svg = chart.bars_chart(texts, found.cost, "billed operations")
    return _section(
        "Cost by cause",
        "Every billable operation as the brokers metered it. A message that takes the detour costs four operations in "
        "place of two.",
        _figure(svg, (), found.cost_table)
        + f"<h3>Estimate and report</h3>\n<p class=lead>{escape(found.estimate_remark)}</p>\n{_table(found.estimate)}",
    )


def _audit(found: Findings) -> str:
    rows = "".join(_audit_row(each) for each in found.audit)
    head = '<tr><th class="word">finding</th><th>messages</th><th class="word">means</th></tr>'
    return _section(
        "Audit",
        "Every confirmed message followed through the ledgers of senders, receivers, syphon and brokers.",
        f'<div class="scroll"><table id="audit"><thead>{head}</thead><tbody>{rows}</tbody></table></div>\n'
        + _table(found.audit_by_entity),
    )


def _audit_row(figure: Figure) -> str:
    value = "unknown" if figure.value is None else f"{figure.value:,}"
    bad = ' class="bad"' if figure.key == "lost" and figure.value else ""
    return (
        f'<tr{bad}><td class="word">{escape(figure.label)}</td>'
        f'<td data-figure="{escape(figure.key)}">{value}</td><td class="word means">{escape(figure.meaning)}</td></tr>'
    )


def _availability(found: Findings) -> str:
    return _section(
        "Availability, as the senders saw it",
        "The times are from the outage's beginning to the first message in the backlog, and from the primary's return "
        "to the first new message there.",
        _table(found.availability),
    )


def _timeline(found: Findings) -> str:
    lines = escape("\n".join(found.timeline))
    return _section("Timeline", "As it scrolled by.", f"<pre>{lines}</pre>")


def _settings(found: Findings) -> str:
    rows = [(name, value) for name, value in found.settings]
    notes = "".join(f"<p>{escape(each)}</p>" for each in found.notes)
    return (
        _section("How it was held", "The intervals are short, so that a drill fits into two minutes.",
                 _table(Table(("setting", "value"), rows, 2)))
        + f"\n<footer>{notes}<p>Made by pairbus drill. This file needs nothing else.</p></footer>"
    )  # fmt: skip


def _table(table: Table) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=word' if index < table.words else ''}>{escape(cell)}</{tag}>"
            for index, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in table.rows)
    head = f"<tr>{cells('th', table.heads)}</tr>"
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>'
