from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from pairbus.drill.chart import (
    LEFT,
    RIGHT,
    WIDTH,
    Bar,
    Delay,
    Frame,
    StateSpan,
    Texts,
    TimeMark,
    bars_chart,
    delay_chart,
    depth_chart,
    number,
    rate_chart,
    seconds,
    state_spans,
    states_chart,
    ticks,
)

FRAME = Frame(60.0, (14.0, 34.0))
TEXTS = Texts("it", "A title with <angles> & signs", "What it shows")


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def all_of(svg: str, tag: str, style: str = "") -> list[ET.Element]:
    return [each for each in parsed(svg).iter(tag) if style in each.get("class", "").split() or not style]


@pytest.mark.parametrize(
    ("high", "expected"),
    [
        (0, [0, 1]),
        (1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (61, [0, 20, 40, 60, 80]),
        (100, [0, 20, 40, 60, 80, 100]),
        (1640, [0, 500, 1000, 1500, 2000]),
        (0.03, [0, 0.01, 0.02, 0.03]),
    ],
)
def test_ticks_are_round_and_reach_the_top(high: float, expected: list[float]) -> None:
    assert ticks(high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "expected"), [(0.005, "5 ms"), (0.05, "50 ms"), (0.25, "0.25 s"), (2.34, "2.3 s"), (31.6, "32 s")]
)
def test_seconds_as_a_person_says_them(value: float, expected: str) -> None:
    assert seconds(value) == expected


@pytest.mark.parametrize(("value", "expected"), [(0, "0"), (0.25, "0.25"), (7, "7"), (12_345.6, "12,346")])
def test_numbers(value: float, expected: str) -> None:
    assert number(value) == expected


def test_time_runs_from_margin_to_margin() -> None:
    assert FRAME.x(0) == LEFT
    assert FRAME.x(60) == FRAME.x(99) == WIDTH - RIGHT
    assert FRAME.x(-1) == LEFT


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], [StateSpan("healthy", 0, 60)]),
        ([(10.0, "failed over")], [StateSpan("healthy", 0, 10), StateSpan("failed over", 10, 60)]),
        ([(10.0, "failed over"), (10.0, "failed over"), (30.0, "healthy")],
         [StateSpan("healthy", 0, 10), StateSpan("failed over", 10, 30), StateSpan("healthy", 30, 60)]),
        ([(70.0, "failed over")], [StateSpan("healthy", 0, 70), StateSpan("failed over", 70, 70)]),
    ],
)  # fmt: skip
def test_stays(changes: list[tuple[float, str]], expected: list[StateSpan]) -> None:
    assert state_spans(changes, 60.0) == expected


CHARTS = {
    "states": states_chart(
        FRAME, TEXTS, {"orders": [(15.0, "failed over"), (35.0, "healthy")]}, {"orders": [(16.0, False), (35.0, True)]}
    ),
    "rate": rate_chart(FRAME, TEXTS, {"primary": [50, 40], "backlog": [0, 10], "refused": [1]}, 1.0),
    "depth": depth_chart(FRAME, TEXTS, [0, 100, 50, 0], 1.0, [TimeMark(36.0, "syphon")]),
    "delay": delay_chart(FRAME, TEXTS, [Delay(1, 0.005, 0.05), Delay(2, 0.006, 0.06), Delay(40, 12.0, 20.0)], 1.0),
}


@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_over_time_shades_the_outage_and_names_its_axes(name: str) -> None:
    svg = CHARTS[name]
    (shade,) = all_of(svg, "rect", "outage")
    assert float(shade.get("x", "")) == pytest.approx(FRAME.x(14), abs=0.1)
    assert float(shade.get("width", "")) == pytest.approx(FRAME.x(34) - FRAME.x(14), abs=0.1)
    words = [each.text for each in all_of(svg, "text")]
    assert "outage, 20.0 s" in words
    assert "seconds since the drill began" in words
    units = {"rate": "messages/s", "depth": "messages", "delay": "delay, log"}
    assert name == "states" or units[name] in words


@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_speaks_to_those_who_can_t_see_it(name: str) -> None:
    root = parsed(CHARTS[name])
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == "it-title it-desc"
    assert root.findtext("title") == TEXTS.title
    assert root.findtext("desc") == TEXTS.desc


@pytest.mark.parametrize("name", CHARTS)
def test_no_chart_names_a_colour_or_fetches_anything(name: str) -> None:
    assert not re.search(r"#[0-9a-f]{3,8}\b|rgb\(|https?:|style=", CHARTS[name])


def test_states_have_words_and_pings_have_shapes() -> None:
    svg = CHARTS["states"]
    assert [each.text for each in all_of(svg, "text", "inside")] == [
        "healthy, 15.0 s", "failed over, 20.0 s", "healthy, 25.0 s"
    ]  # fmt: skip
    assert len(all_of(svg, "circle", "ping-good")) == 1
    assert len(all_of(svg, "path", "ping-bad")) == 1


def test_columns_stand_on_each_other() -> None:
    blue = all_of(CHARTS["rate"], "rect", "primary")[1]
    hatched = next(each for each in all_of(CHARTS["rate"], "rect") if each.get("fill") == "url(#it-hatch)")
    assert float(hatched.get("y", "")) + float(hatched.get("height", "")) == pytest.approx(
        float(blue.get("y", "")), abs=0.2
    )


def test_the_deepest_backlog_is_named() -> None:
    assert "100 at most" in [each.text for each in all_of(CHARTS["depth"], "text")]


@pytest.mark.parametrize(("share", "anchor"), [(0.5, "start"), (0.99, "end")])
def test_the_word_of_a_moment_stays_in_the_chart(share: float, anchor: str) -> None:
    svg = depth_chart(FRAME, TEXTS, [0, 1], 1.0, [TimeMark(share * FRAME.end_s, "syphon")])
    assert re.search(rf'text-anchor="{anchor}" class="moment-word">syphon<', svg)


def test_a_delay_has_a_gap_where_nothing_was_received() -> None:
    assert len(all_of(CHARTS["delay"], "polyline", "line-p50")) == 2


def test_a_delay_is_drawn_by_decades() -> None:
    assert [each.text for each in all_of(CHARTS["delay"], "text", "tick")][-6:] == [
        "1 ms", "10 ms", "100 ms", "1 s", "10 s", "100 s"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "svg",
    [
        states_chart(Frame(0.0), TEXTS, {}, {}),
        rate_chart(Frame(0.0), TEXTS, {}, 1.0),
        depth_chart(Frame(10.0), TEXTS, [], 1.0),
        delay_chart(Frame(10.0), TEXTS, [], 1.0),
        bars_chart(TEXTS, [], "operations"),
    ],
)
def test_nothing_at_all_is_a_chart_too(svg: str) -> None:
    assert parsed(svg).tag == "svg"


def test_bars_carry_their_figures() -> None:
    svg = bars_chart(TEXTS, [Bar("app", 200, "200 operations", "app"), Bar("ping", 0, "0", "ping")], "operations")
    assert [each.text for each in all_of(svg, "text", "figure")] == ["200 operations", "0"]
    wide, narrow = all_of(svg, "rect", "app"), all_of(svg, "rect", "ping")
    assert float(wide[0].get("width", "")) > 100 * float(narrow[0].get("width", ""))
