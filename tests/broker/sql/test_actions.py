from __future__ import annotations

from typing import Any

import pytest

from pairbus.amqp.types import Described, Int, Timestamp
from pairbus.broker.sql.actions import Action, Draft
from pairbus.broker.sql.kinds import TIMESPAN, EvaluationError

from .message import NEW_ID, FakeMessage

PROPERTIES = {"Color": "red", "n": Int(5), "gone": 1}
SYSTEM = {"Label": "news", "MessageId": "m1"}


def changed(text: str, **parameters: Any) -> Draft:
    draft = Draft(FakeMessage(PROPERTIES, SYSTEM), PROPERTIES)
    Action(text, parameters).apply(draft)
    draft.finish()
    return draft


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("SET new = 1", PROPERTIES | {"new": 1}),
        ("SET New = 'a' SET NEW = New + 'b'", PROPERTIES | {"New": "ab"}),
        ("SET color = 'blue'", PROPERTIES | {"Color": "blue"}),
        ("SET color = 5", PROPERTIES | {"Color": "5"}),
        ("SET n = '7'; SET n = n + 1", PROPERTIES | {"n": Int(8)}),
        ("SET n = 'many'", PROPERTIES | {"n": "many"}),
        ("SET new = missing", PROPERTIES | {"new": None}),
        ("SET n = NULL", PROPERTIES | {"n": None}),
        ("SET new = sys.Label + '!'", PROPERTIES | {"new": "news!"}),
        ("SET new = newid()", PROPERTIES | {"new": NEW_ID}),
        ("SET new = @p", PROPERTIES | {"new": 2.5}),
        ("REMOVE GONE", {"Color": "red", "n": Int(5)}),
        ("REMOVE missing", PROPERTIES),
        ("REMOVE gone SET gone = 'back'", {"Color": "red", "n": Int(5), "gone": "back"}),
    ],
)
def test_application_properties(text: str, properties: dict[str, Any]) -> None:
    draft = changed(text, p=2.5)
    assert draft.properties == properties
    assert {name: type(value) for name, value in draft.properties.items()} == {
        name: type(value) for name, value in properties.items()
    }
    assert draft.system_set == {}


@pytest.mark.parametrize(
    ("text", "system"),
    [
        ("SET sys.To = 'Entity'", {"To": "Entity"}),
        ("SET sys.subject = 5", {"Label": "5"}),
        ("SET sys.Label = sys.MessageId SET sys.To = sys.Label", {"Label": "m1", "To": "m1"}),
        ("REMOVE sys.Label", {"Label": None}),
        ("SET sys.ReplyTo = missing", {"ReplyTo": None}),
        ("SET sys.TimeToLive = '00:01:00'", {"TimeToLive": Described(TIMESPAN, 600_000_000)}),
        ("SET sys.ScheduledEnqueueTimeUtc = '1970-01-01T00:00:01Z'", {"ScheduledEnqueueTimeUtc": Timestamp(1000)}),
    ],
)
def test_system_properties(text: str, system: dict[str, Any]) -> None:
    draft = changed(text)
    assert draft.system_set == system
    assert draft.properties == PROPERTIES


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("SET sys.NoSuch = 1", "messages have no system property 'NoSuch'"),
        ("REMOVE sys.NoSuch", "messages have no system property 'NoSuch'"),
        ("SET a = sys.NoSuch", "messages have no system property 'NoSuch'"),
        ("SET sys.SequenceNumber = 1", "'SequenceNumber' can't be set"),
        ("REMOVE sys.Size", "'Size' can't be set"),
        ("REMOVE sys.MessageId", "can't be without a MessageId"),
        ("SET sys.SessionId = @long", "SessionId may have 128 characters; this one has 32000"),
        ("SET sys.TimeToLive = 5", "a number can't become a duration"),
        ("SET sys.TimeToLive = '-00:00:01'", "TimeToLive is longer than nothing"),
        ("SET a = @long + @long", "longer than a property may be"),
        ("SET a = @wide", "the property 'a' becomes longer than 32768 bytes"),
        ("SET a = @long SET b = @long SET c = @long", "the properties take 96... bytes; 65536 are allowed"),
        ("SET a = 1 / 0", "divided by zero"),
    ],
)
def test_actions_that_fail(text: str, problem: str) -> None:
    with pytest.raises(EvaluationError, match=problem):
        changed(text, long="x" * 32000, wide="é" * 20000)
