"""Draws the charts of the report as SVG text. Pure.

Every chart over time has the same width, margins and time axis, so that they line up under each other and a moment is
on one vertical line; the outage is shaded in each of them. Colours come from the page's style sheet by class, so that
one chart serves light, dark and print; whatever a colour shows, a pattern, a shape or a word shows too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

WIDTH: Final = 960
LEFT: Final = 92
RIGHT: Final = 18
TOP: Final = 30
BOTTOM: Final = 40
#: A segment narrower than so many units a letter has no word in it.
LETTER: Final = 6.6


class TimeMark(NamedTuple):
    """A vertical line with a label at a time when something happened."""

    t: float
    text: str


class Frame(NamedTuple):
    """The time axis that all charts share: seconds since the drill began."""

    end_s: float
    outage: tuple[float, float] | None = None

    def x(self, t: float) -> float:
        share = min(1.0, max(0.0, t / self.end_s if self.end_s > 0 else 0.0))
        return LEFT + share * (WIDTH - LEFT - RIGHT)


class Texts(NamedTuple):
    """`name` is unique in the page; `title` and `desc` are what a screen reader says."""

    name: str
    title: str
    desc: str


# -- what the charts are made of


def ticks(high: float, most: int = 5) -> list[float]:
    """0 to `high` or just above in at most `most` steps of 1, 2 or 5 times a power of ten."""
    if not high > 0:
        return [0.0, 1.0]
    raw = high / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999_999)
    return [step * index for index in range(math.ceil(high / step - 1e-9) + 1)]


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def seconds(value: float) -> str:
    """As a person says it: 5 ms, 0.25 s, 12 s."""
    if value < 0.0995:
        return f"{value * 1000:.2g} ms"
    return f"{value:.2f} s" if value < 0.995 else f"{value:.1f} s" if value < 9.95 else f"{value:.0f} s"


def _svg(texts: Texts, height: float, parts: Sequence[str]) -> str:
    name = escape(texts.name)
    body = "\n".join(parts)
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height:g}" role="img" aria-labelledby="{name}-title {name}-desc">\n'
        f'<title id="{name}-title">{escape(texts.title)}</title>\n<desc id="{name}-desc">{escape(texts.desc)}</desc>\n'
        f"{_patterns(name)}\n{body}\n</svg>"
    )


def _patterns(name: str) -> str:
    """A hatch for what goes to the backlog, a denser one for what is refused: told apart without colour, too."""
    return (
        "<defs>"
        f'<pattern id="{name}-hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect class="pale backlog" width="6" height="6"/><rect class="backlog" width="1.8" height="6"/></pattern>'
        f'<pattern id="{name}-cross" width="5" height="5" patternUnits="userSpaceOnUse">'
        '<rect class="pale refused" width="5" height="5"/><path class="thin-refused" d="M0 0L5 5M5 0L0 5"/></pattern>'
        f'<pattern id="{name}-dots" width="6" height="6" patternUnits="userSpaceOnUse">'
        '<rect class="pale suspect" width="6" height="6"/><circle class="suspect" cx="3" cy="3" r="1.3"/></pattern>'
        "</defs>"
    )


def _text(x: float, y: float, text: str, classes: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{_class(classes)}>{escape(text)}</text>'


def _class(classes: str) -> str:
    return f' class="{classes}"' if classes else ""


def _time_axis(frame: Frame, bottom: float, moments: Sequence[TimeMark] = ()) -> list[str]:
    """The shade first: everything else is drawn over it."""
    parts = []
    if frame.outage is not None:
        left, right = (frame.x(t) for t in frame.outage)
        parts.append(
            f'<rect class="outage" x="{left:.1f}" y="{TOP:g}" width="{right - left:.1f}" height="{bottom - TOP:.1f}"/>'
        )
        parts.append(f'<path class="edge" d="M{left:.1f} {TOP:g}V{bottom:.1f}M{right:.1f} {TOP:g}V{bottom:.1f}"/>')
        away = frame.outage[1] - frame.outage[0]
        parts.append(_text((left + right) / 2, TOP - 8, f"outage, {away:.1f} s", "outage-word", "middle"))
    for at in (each for each in ticks(frame.end_s, 10) if each <= frame.end_s):
        x = frame.x(at)
        parts.append(f'<path class="axis" d="M{x:.1f} {bottom:.1f}v5"/>')
        parts.append(_text(x, bottom + 19, f"{at:g}", "tick", "middle"))
    parts.append(f'<path class="axis" d="M{LEFT} {bottom:.1f}H{WIDTH - RIGHT}"/>')
    parts.append(_text(WIDTH - RIGHT, bottom + 35, "seconds since the drill began", "unit", "end"))
    for moment in moments:
        x = frame.x(moment.t)
        parts.append(f'<path class="moment" d="M{x:.1f} {TOP:g}V{bottom:.1f}"/>')
        # on the left of its line where there is no room on the right
        beside = (x + 5, "start") if x < WIDTH - RIGHT - 80 else (x - 5, "end")
        parts.append(_text(beside[0], TOP + 11, moment.text, "moment-word", beside[1]))
    return parts


def _value_axis(marks: Sequence[tuple[float, str]], unit: str) -> list[str]:
    """`marks`: height in the chart and its word."""
    parts = []
    for y, text in marks:
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(LEFT - 8, y + 4, text, "tick", "end"))
    parts.append(_text(LEFT - 8, TOP - 14, unit, "unit", "end"))
    return parts


# -- the charts


class StateSpan(NamedTuple):
    """A state of an entity from `start` to `end`."""

    state: str
    start: float
    end: float


def state_spans(changes: Sequence[tuple[float, str]], end_s: float) -> list[StateSpan]:
    """Return the spans between changes, each a time and the new state; before the first one all was healthy."""
    found, since, state = [], 0.0, "healthy"
    for t, new in sorted(changes):
        if new != state:
            if t > since:
                found.append(StateSpan(state, since, t))
            since, state = max(t, 0.0), new
    return [*found, StateSpan(state, since, max(since, end_s))]


_FILLS: Final = {"healthy": "healthy", "suspect": "dots", "failed over": "hatch", "unreachable": "cross"}


def states_chart(
    frame: Frame,
    texts: Texts,
    changes: Mapping[str, Sequence[tuple[float, str]]],
    pings: Mapping[str, Sequence[tuple[float, bool]]],
) -> str:
    """A strip for each entity, its state by fill and word; its pings under the strip, a cross or a dot each."""
    row, strip = 46.0, 24.0
    bottom = TOP + row * len(changes) + 4
    parts = _time_axis(frame, bottom)
    for index, (entity, known) in enumerate(changes.items()):
        y = TOP + 8 + row * index
        parts.append(_text(LEFT - 8, y + strip / 2 + 4, entity, "label", "end"))
        for stay in state_spans(known, frame.end_s):
            x, width = frame.x(stay.start), frame.x(stay.end) - frame.x(stay.start)
            fill = _FILLS.get(stay.state, "cross")
            style = 'class="healthy strip"' if fill == "healthy" else f'class="strip" fill="url(#{texts.name}-{fill})"'
            words = f"{stay.state}, {stay.end - stay.start:.1f} s"
            parts.append(
                f'<rect {style} x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{strip:g}">'
                f"<title>{escape(f'{entity}: {words}, from second {stay.start:.1f}')}</title></rect>"
            )
            for text in (words, stay.state):
                if len(text) * LETTER + 8 < width:
                    parts.append(_text(x + width / 2, y + strip / 2 + 4, text, "inside", "middle"))
                    break
        for t, is_good in pings.get(entity, ()):
            x, below = frame.x(t), y + strip + 7
            parts.append(
                f'<circle class="ping-good" cx="{x:.1f}" cy="{below:.1f}" r="3.4"/>'
                if is_good
                else f'<path class="ping-bad" d="M{x - 2.6:.1f} {below - 2.6:.1f}l5.2 5.2m0 -5.2l-5.2 5.2"/>'
            )
    return _svg(texts, bottom + BOTTOM, parts)


def rate_chart(frame: Frame, texts: Texts, routes: Mapping[str, Sequence[float]], step_s: float) -> str:
    """Columns stacked: what went to the primary, to the backlog, and what failed for its caller, each second."""
    height = 190.0
    bottom = TOP + height
    count = max((len(values) for values in routes.values()), default=0)
    totals = [sum(rate_at(values, index) for values in routes.values()) / step_s for index in range(count)]
    marks = ticks(max(totals, default=0.0))
    scale = height / marks[-1]
    parts = _time_axis(frame, bottom)
    parts += _value_axis([(bottom - mark * scale, number(mark)) for mark in marks], "messages/s")
    for index in range(count):
        left, right = frame.x(index * step_s), frame.x((index + 1) * step_s)
        y = bottom
        for route, values in routes.items():
            rate = rate_at(values, index) / step_s
            if not rate:
                continue
            tall = rate * scale
            y -= tall
            fill = {"backlog": f'fill="url(#{texts.name}-hatch)"', "refused": f'fill="url(#{texts.name}-cross)"'}
            style = f'class="bar-{route}" {fill[route]}' if route in fill else f'class="{route}"'
            parts.append(
                f'<rect {style} x="{left + 0.6:.1f}" y="{y:.1f}" width="{max(0.8, right - left - 1.2):.1f}" '
                f'height="{tall:.1f}"><title>second {index * step_s:g}: {number(rate)} a second, {escape(route)}'
                "</title></rect>"
            )
    return _svg(texts, bottom + BOTTOM, parts)


def rate_at(values: Sequence[float], index: int) -> float:
    return values[index] if index < len(values) else 0.0


def depth_chart(
    frame: Frame, texts: Texts, depths: Sequence[float], step_s: float, moments: Sequence[TimeMark] = ()
) -> str:
    height = 150.0
    bottom = TOP + height
    marks = ticks(max(depths, default=0.0))
    scale = height / marks[-1]
    points = [(frame.x(index * step_s), bottom - depth * scale) for index, depth in enumerate(depths)]
    parts = _time_axis(frame, bottom, moments)
    parts += _value_axis([(bottom - mark * scale, number(mark)) for mark in marks], "messages")
    if points:
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(
            f'<polygon class="area" points="{points[0][0]:.1f},{bottom} {line} {points[-1][0]:.1f},{bottom}"/>'
        )
        parts.append(f'<polyline class="line-backlog" points="{line}"/>')
        deepest = max(range(len(depths)), key=lambda index: depths[index])
        if depths[deepest]:
            x, y = points[deepest]
            parts.append(f'<circle class="dot-backlog" cx="{x:.1f}" cy="{y:.1f}" r="4"/>')
            parts.append(_text(x - 9, y + 4, f"{number(depths[deepest])} at most", "inside", "end"))
    return _svg(texts, bottom + BOTTOM, parts)


class Delay(NamedTuple):
    """How long messages took from send to receive, of those that were received in the step that begins at `t`."""

    t: float
    p50: float
    p99: float


def delay_chart(frame: Frame, texts: Texts, delays: Sequence[Delay], step_s: float) -> str:
    """On a logarithmic axis, since a detour takes a thousand times what the straight way does."""
    height = 190.0
    bottom = TOP + height
    known = [value for each in delays for value in (each.p50, each.p99) if value > 0]
    low = math.floor(math.log10(max(1e-3, min(known, default=1e-3))))
    high = max(low + 1, math.ceil(math.log10(max(known, default=1.0))))

    def y(value: float) -> float:
        share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return bottom - share * height

    parts = _time_axis(frame, bottom)
    parts += _value_axis([(y(10.0**power), _decade(power)) for power in range(low, high + 1)], "delay, log")
    for which in ("p99", "p50"):
        for run in _runs(delays, step_s):
            points = " ".join(f"{frame.x(each.t + step_s / 2):.1f},{y(getattr(each, which)):.1f}" for each in run)
            parts.append(f'<polyline class="line-{which}" points="{points}"/>')
    for each in delays:
        x = frame.x(each.t + step_s / 2)
        said = f"second {each.t:g}: half within {seconds(each.p50)}, 99 % within {seconds(each.p99)}"
        parts.append(
            f'<rect class="mark-p99" x="{x - 3:.1f}" y="{y(each.p99) - 3:.1f}" width="6" height="6">'
            f"<title>{said}</title></rect>"
        )
        parts.append(
            f'<circle class="mark-p50" cx="{x:.1f}" cy="{y(each.p50):.1f}" r="3"><title>{said}</title></circle>'
        )
    return _svg(texts, bottom + BOTTOM, parts)


def _runs(delays: Sequence[Delay], step_s: float) -> list[list[Delay]]:
    """Where nothing was received for a while the line has a gap: there is nothing to join."""
    runs: list[list[Delay]] = []
    for each in delays:
        if runs and each.t - runs[-1][-1].t <= step_s * 1.5:
            runs[-1].append(each)
        else:
            runs.append([each])
    return runs


def _decade(power: int) -> str:
    return f"{10.0 ** (power + 3):g} ms" if power < 0 else f"{10.0**power:g} s"


class Bar(NamedTuple):
    """`style` is a class of the style sheet, `words` stands behind the bar."""

    label: str
    value: float
    words: str
    style: str


def bars_chart(texts: Texts, bars: Sequence[Bar], unit: str) -> str:
    """Lying bars with their figures behind them."""
    row, thick, label_width, figure_width = 32.0, 18.0, 150.0, 240.0
    marks = ticks(max((each.value for each in bars), default=0.0))
    scale = (WIDTH - label_width - figure_width) / marks[-1]
    bottom = TOP + row * len(bars)
    parts = []
    for mark in marks:
        x = label_width + mark * scale
        parts.append(f'<path class="grid" d="M{x:.1f} {TOP:g}V{bottom:.1f}"/>')
        parts.append(_text(x, bottom + 16, number(mark), "tick", "middle"))
    parts.append(_text(WIDTH - figure_width, bottom + 34, unit, "unit", "end"))
    for index, each in enumerate(bars):
        y = TOP + row * index + (row - thick) / 2
        parts.append(_text(label_width - 10, y + thick / 2 + 4, each.label, "label", "end"))
        parts.append(
            f'<rect class="{each.style}" x="{label_width:g}" y="{y:.1f}" width="{max(1.0, each.value * scale):.1f}" '
            f'height="{thick:g}"/>'
        )
        parts.append(_text(label_width + each.value * scale + 8, y + thick / 2 + 4, each.words, "figure"))
    return _svg(texts, bottom + BOTTOM, parts)
