import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.types import Timestamp
from pairbus.broker.http import xml
from pairbus.broker.http.xml import (
    BadDocument,
    escaped,
    local_name,
    parse,
    read_double,
    read_duration,
    read_flag,
    read_timestamp,
    read_whole,
    type_of,
    write_duration,
    write_time,
    write_timestamp,
)
from pairbus.broker.model.rule_description import UnzonedTimestamp

NOW = 1_700_000_000.25


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT1M", 60), ("PT5S", 5), ("P1D", 86400), ("P1DT2H3M4.5S", 93784.5), ("PT0.001S", 0.001), ("PT0S", 0),
        ("PT13S", 13), ("PT90M", 5400), ("P25D", 2160000), ("P1Y", 31536000), ("P2M", 5184000), ("-PT1M", -60),
        (xml.INFINITE, math.inf), ("P10675199DT2H48M5.477581S", math.inf), ("P10675199DT2H48M5.47758S", math.inf),
        ("P10675199DT2H48M5.477539S", math.inf), ("P10675199D", math.inf), ("P99999999D", math.inf),
    ],
)  # fmt: skip
def test_durations_read(text, seconds):
    assert read_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "1M", "PT1", "P1S", "PT1M ", "PT٣S", "PT1.S", "P1DT", "00:01:00", "P1W2"]
)
def test_durations_that_are_none(text):
    with pytest.raises(ValueError):
        read_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (60, "PT1M"), (0.5, "PT0.5S"), (93784.5, "P1DT2H3M4.5S"), (86400, "P1D"), (0, "PT0S"), (-90, "-PT1M30S"),
        (math.inf, xml.INFINITE),
    ],
)  # fmt: skip
def test_durations_written(seconds, text):
    assert write_duration(seconds) == text


@given(st.integers(-10_000_000_000_000_000, 10_000_000_000_000_000).map(lambda ticks: ticks / 10_000_000))
def test_durations_go_round(seconds):
    assert read_duration(write_duration(seconds)) == pytest.approx(seconds, abs=1e-6)


def test_times():
    assert write_time(NOW) == "2023-11-14T22:13:20.250Z"
    assert write_time(0) == "0001-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("text", "value", "written"),
    [
        ("2020-07-05T11:12:13", UnzonedTimestamp(1593947533000), "2020-07-05T11:12:13"),
        ("2020-07-05T11:12:13Z", Timestamp(1593947533000), "2020-07-05T11:12:13Z"),
        ("2020-07-05T13:12:13.5+02:00", Timestamp(1593947533500), "2020-07-05T11:12:13.500Z"),
        ("2020-07-05T11:12:13.1234567Z", Timestamp(1593947533123), "2020-07-05T11:12:13.123Z"),
        ("1969-12-31T23:59:59.999Z", Timestamp(-1), "1969-12-31T23:59:59.999Z"),
        ("0001-01-01T00:00:00", UnzonedTimestamp(-62135596800000), "0001-01-01T00:00:00"),
    ],
)
def test_times_of_filters_keep_whether_they_have_a_zone(text, value, written):
    assert read_timestamp(text) == value and type(read_timestamp(text)) is type(value)
    assert write_timestamp(value) == written


@pytest.mark.parametrize("text", ["", "now", "2020-13-01T00:00:00Z", "2020-07-05T11:12:13 Z x"])
def test_times_that_are_none(text):
    with pytest.raises(ValueError):
        read_timestamp(text)


@given(st.integers(-62135596800000, 253402300799999))
def test_times_go_round(value):
    for kind in (Timestamp, UnzonedTimestamp):
        back = read_timestamp(write_timestamp(kind(value)))
        assert back == value and type(back) is kind


def test_flags_and_numbers():
    assert [read_flag(text) for text in ("true", "False", "1", "0")] == [True, False, True, False]
    assert [read_whole(text) for text in ("0", "-7", "9223372036854775807")] == [0, -7, 2**63 - 1]
    assert [read_double(text) for text in ("1.5", "1e3", "inf", "-2")] == [1.5, 1000.0, math.inf, -2.0]
    for read, text in (
        (read_flag, "yes"), (read_flag, ""), (read_whole, "1.5"), (read_whole, "١"), (read_whole, "9" * 30),
        (read_double, "1_0"), (read_double, "x"), (read_double, "١"), (read_double, ""),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            read(text)


def test_of_attributes_only_the_type_is_kept():
    root = parse(
        f'<a xmlns="urn:x" xmlns:p="{xml.INSTANCE}" p:type="d6p1:int" p:nil="true" type="y"><b/> c </a>'.encode()
    )
    assert root.attrib == {"type": "d6p1:int"} and type_of(root) == "int" and local_name(root) == "a"
    assert type_of(root[0]) == "" and local_name(root[0]) == "b"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "well-formed"),
        (b"<a></b>", "well-formed"),
        (b"<!DOCTYPE a><a/>", "DOCTYPE"),
        (b"<a>" * 17 + b"</a>" * 17, "deeper"),
        (b"<a>" + b"<b/>" * 4000 + b"</a>", "larger"),
    ],
)
def test_what_is_not_read(body, said):
    with pytest.raises(BadDocument, match=said):
        parse(body)


@given(st.text(max_size=30))
def test_any_text_can_be_written(text):
    back = parse(f'<a x="{escaped(text)}">{escaped(text)}</a>'.encode()).text or ""
    assert back == "".join(c if xml._NOT_XML.sub("", c) else "�" for c in text)
