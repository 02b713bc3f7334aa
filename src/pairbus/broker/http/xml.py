"""Parses XML of the management API within bounds, and reads and writes numbers, times and durations in it. Pure.

It knows nothing about descriptions (atom.py, rule_xml.py). The only attribute that it keeps is `xsi:type`, under the
name `type`.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from pairbus.amqp.types import Timestamp
from pairbus.broker.model.rule_description import UnzonedTimestamp
from pairbus.errors import PairbusError

INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"

INFINITE: Final = "P10675199DT2H48M5.4775807S"
NEVER: Final = "0001-01-01T00:00:00Z"
SHOWN_CHARS_MAX: Final = 80

_INFINITE_DAYS: Final = 10675199
_ELEMENTS_MAX: Final = 4000
_DEPTH_MAX: Final = 16
_TYPE: Final = INSTANCE + "}type"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class BadDocument(PairbusError, ValueError):
    """The XML can't be read as what it should be."""


def parse(body: bytes) -> Element:
    """Parse a document, or raise BadDocument. By expat, since ElementTree's parser can't refuse a DOCTYPE, and with it
    every entity bomb."""
    builder = TreeBuilder()
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    depth = elements = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth, elements
        depth += 1
        elements += 1
        if depth > _DEPTH_MAX or elements > _ELEMENTS_MAX:
            raise BadDocument(f"the XML is larger than {_ELEMENTS_MAX} elements or deeper than {_DEPTH_MAX}")
        kept = {"type": attributes[_TYPE]} if _TYPE in attributes else {}
        builder.start("{" + tag if "}" in tag else tag, kept)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end("{" + tag if "}" in tag else tag)

    def doctype(*_: object) -> None:
        raise BadDocument("the XML has a DOCTYPE; send it without: neither it nor entities are read")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = doctype
    parser.EntityDeclHandler = doctype
    try:
        parser.Parse(body, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        if isinstance(error, BadDocument):
            raise
        raise BadDocument(f"the body is not well-formed XML: {error}") from None
    return builder.close()


def local_name(element: Element) -> str:
    return element.tag.rpartition("}")[2][:SHOWN_CHARS_MAX]


def type_of(element: Element) -> str:
    """Return the `xsi:type` without its prefix, which every client chooses for itself; empty when there is none."""
    return element.get("type", "").rpartition(":")[2]


_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escaped(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    return _NOT_XML.sub("�", text).replace("\r", "&#13;")


_DURATION = re.compile(
    r"(?P<sign>-?)P(?:(?P<years>\d{1,9})Y)?(?:(?P<months>\d{1,9})M)?(?:(?P<days>\d{1,9})D)?"
    r"(?P<time>T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9}(?:\.\d{1,9})?)S)?)?",
    re.ASCII,
)


def read_duration(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None or text.endswith(("P", "T")):
        raise ValueError
    part = {name: float(value) for name, value in match.groupdict().items() if value and name not in ("sign", "time")}
    # A year is 365 days and a month 30, as .NET reads them.
    days = part.get("years", 0.0) * 365 + part.get("months", 0.0) * 30 + part.get("days", 0.0)
    seconds = part.get("hours", 0.0) * 3600 + part.get("minutes", 0.0) * 60 + part.get("seconds", 0.0)
    if match["sign"]:
        return -(days * 86400 + seconds)
    # The SDKs give the service's "infinite" back with its fraction rounded, each in its own way.
    return math.inf if days >= _INFINITE_DAYS else days * 86400 + seconds


def write_duration(seconds: float) -> str:
    if seconds == math.inf or seconds >= _INFINITE_DAYS * 86400:
        return INFINITE
    if seconds < 0:
        return "-" + write_duration(-seconds)
    ticks = round(seconds * 10_000_000)
    whole, fraction = divmod(ticks, 10_000_000)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    clock = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    if rest or fraction:
        clock += f"{rest}.{fraction:07d}".rstrip("0").rstrip(".") + "S"
    text = (f"{days}D" if days else "") + (f"T{clock}" if clock else "")
    return "P" + (text or "T0S")


def write_time(unix: float) -> str:
    if unix <= 0:
        return NEVER
    return datetime.fromtimestamp(round(unix, 3), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_timestamp(text: str) -> Timestamp:
    """Read an `xsd:dateTime`. One without a zone counts as UTC and stays without."""
    time = datetime.fromisoformat(text)
    kind = UnzonedTimestamp if time.tzinfo is None else Timestamp
    try:
        return kind((time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) // timedelta(milliseconds=1))
    except OverflowError:
        raise ValueError from None


def write_timestamp(value: Timestamp) -> str:
    time = _EPOCH + timedelta(milliseconds=value)
    text = time.isoformat(timespec="milliseconds" if value % 1000 else "seconds").replace("+00:00", "")
    return text if isinstance(value, UnzonedTimestamp) else text + "Z"


def read_flag(text: str) -> bool:
    value = {"true": True, "false": False, "1": True, "0": False}.get(text.lower())
    if value is None:
        raise ValueError
    return value


def read_whole(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII):
        raise ValueError
    return int(text)


def read_double(text: str) -> float:
    if "_" in text or not text.isascii():
        raise ValueError
    return float(text)
