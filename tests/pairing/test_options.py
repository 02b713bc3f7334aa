"""P2: every option's default and bounds, refused at once with words that name option, value and bounds."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.pairing.errors import AlreadyPaired, InvalidOptions
from pairbus.pairing.options import (
    OPTIONS,
    PairedNamespaceOptions,
    PairingOptions,
    SendAvailabilityPairedNamespaceOptions,
    Settings,
    refuse_unknown,
    settings_from,
)
from pairbus.pairing.routing.verdicts import AS_DESCRIBED, DEFAULT, Verdict

from .reference_pages import REFERENCE, in_sync, options_page


class Client:
    def get_queue_sender(self, name: str) -> None: ...


class Manager:
    def list_queues(self) -> None: ...

    def create_queue(self, name: str) -> None: ...


def options(**given: Any) -> SendAvailabilityPairedNamespaceOptions:
    return SendAvailabilityPairedNamespaceOptions(Manager(), Client(), **given)


def test_p2_two_arguments_suffice_and_these_are_the_defaults() -> None:
    made = options()
    assert made.settings == Settings()
    assert (made.backlog_queue_count, made.failover_interval, made.enable_syphon) == (10, 60.0, False)
    assert (made.ping_primary_interval, made.settings.send_timeout) == (60.0, 60.0)
    assert (made.settings.backlog_retry_interval, made.settings.pings_to_return) == (30.0, 1)
    assert made.settings.classifier is DEFAULT


def test_p2_the_first_options_may_be_given_by_position() -> None:
    made = SendAvailabilityPairedNamespaceOptions(None, Client(), 3, 0, True)
    assert (made.backlog_queue_count, made.failover_interval, made.enable_syphon) == (3, 0.0, True)
    assert isinstance(made, PairedNamespaceOptions)


def test_one_table_one_constructor_one_settings() -> None:
    names = [option.name for option in OPTIONS]
    assert names == [field.name for field in dataclasses.fields(Settings)]
    parameters = inspect.signature(SendAvailabilityPairedNamespaceOptions).parameters
    assert list(parameters) == ["secondary_namespace_manager", "messaging_factory", *names, "unknown"]
    for option in OPTIONS:
        assert parameters[option.name].default == option.default
        assert option.checked(option.default) == option.default


TIMES = {
    "failover_interval": (0, 3600),
    "ping_primary_interval": (1, 1800),
    "send_timeout": (0.1, 3600),
    "backlog_retry_interval": (0.1, 3600),
    "busy_failover_after": (0, 3600),
    "return_ramp": (0, 3600),
}


@pytest.mark.parametrize("name", TIMES)
def test_p2_times_are_taken_up_to_their_bounds_as_numbers_or_timedelta(name: str) -> None:
    for bound in TIMES[name]:
        assert getattr(options(**{name: bound}).settings, name) == float(bound)
        assert getattr(options(**{name: timedelta(seconds=bound)}).settings, name) == float(bound)
    assert isinstance(getattr(options(**{name: 5}).settings, name), float)


@pytest.mark.parametrize("name", TIMES)
def test_p2_times_past_their_bounds_are_refused_and_the_bounds_said(name: str) -> None:
    low, high = TIMES[name]
    for value in (low - 0.01, high + 0.01, -1, timedelta(seconds=high + 1), timedelta(-1), 1e400, 10**400):
        with pytest.raises(InvalidOptions, match=rf"^{name} may not be .*{low:g} to {high:g}") as caught:
            options(**{name: value})
        assert isinstance(caught.value, ValueError)
        assert repr(value) in str(caught.value)


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("value", [True, "60", math.nan, b"60", [60], object(), 1j])
def test_p2_what_is_no_time_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidOptions, match=name):
        options(**{name: value})


@pytest.mark.parametrize("name", [name for name in TIMES if name != "busy_failover_after"])
def test_p2_none_is_no_time(name: str) -> None:
    with pytest.raises(InvalidOptions, match=name):
        options(**{name: None})


@pytest.mark.parametrize(("name", "low", "high"), [("backlog_queue_count", 1, 1000), ("pings_to_return", 1, 100)])
def test_p2_counts(name: str, low: int, high: int) -> None:
    for good in (low, high):
        assert getattr(options(**{name: good}).settings, name) == good
    for bad in (low - 1, high + 1, True, 2.0, "2", None):
        with pytest.raises(InvalidOptions, match=f"{name} may not be .*{low} to {high}"):
            options(**{name: bad})


CHOICES = {
    "on_secondary_unavailable": ("raise", "degrade"),
    "while_suspect": ("raise", "divert"),
    "when_unreachable": ("divert", "raise"),
    "probe": ("ping", "trial"),
    "syphon_engine": ("spark", "in-process"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choices(name: str) -> None:
    for choice in CHOICES[name]:
        assert getattr(options(**{name: choice}).settings, name) == choice
    for bad in ("other", None, True, ("raise",)):
        with pytest.raises(InvalidOptions, match=f'{name} may not be .*"{CHOICES[name][0]}" or "{CHOICES[name][1]}"'):
            options(**{name: bad})


FLAGS = [option.name for option in OPTIONS if isinstance(option.default, bool)]


@pytest.mark.parametrize("name", FLAGS)
def test_switches_are_true_or_false(name: str) -> None:
    for flag in (True, False):
        assert getattr(options(**{name: flag}).settings, name) is flag
    for bad in (1, 0, "yes", None):
        with pytest.raises(InvalidOptions, match=name):
            options(**{name: bad})


def test_there_are_the_switches_that_p14_names() -> None:
    assert {"assign_message_id", "check_aliases", "check_size"} <= set(FLAGS)


def test_p18_the_classifier_is_a_table_or_a_function() -> None:
    def mine(error: BaseException) -> Verdict:
        return Verdict.REFUSED

    assert options(classifier=mine).settings.classifier is mine
    assert options(classifier=AS_DESCRIBED).settings.classifier is AS_DESCRIBED
    for bad in (None, "DEFAULT", Verdict.BUSY, Verdict):
        with pytest.raises(InvalidOptions, match="classifier"):
            options(classifier=bad)


def test_p8_the_primary_name() -> None:
    for good in ("contoso", "con-toso.2_x", "c", "C" * 230):
        assert options(primary_name=good).settings.primary_name == good
    for bad in ("", "a/b", "-a", "a-", "a b", "ü", "c" * 231, 7, "a\n"):
        with pytest.raises(InvalidOptions, match="primary_name"):
            options(primary_name=bad)


def test_p23_the_control_file_is_a_path_or_a_function(tmp_path: Path) -> None:
    path = tmp_path / "control.toml"
    assert options(control_file=str(path)).settings.control_file == path
    assert options(control_file=path).settings.control_file == path
    returns_text = lambda: 'orders = "auto"'  # noqa: E731
    assert options(control_file=returns_text).settings.control_file is returns_text
    for bad in ("", 3, b"path", dict, ["path"]):
        with pytest.raises(InvalidOptions, match=r"control_file may not be .* a function without arguments"):
            options(control_file=bad)


def test_the_ledger_is_a_folder(tmp_path: Path) -> None:
    assert options(ledger=str(tmp_path)).settings.ledger == tmp_path
    assert options(ledger=tmp_path).settings.ledger == tmp_path
    for bad in ("", 7, b"bytes", True):
        with pytest.raises(InvalidOptions, match="ledger"):
            options(ledger=bad)


def test_p35_contradictions_are_refused() -> None:
    with pytest.raises(InvalidOptions, match=r"pings_to_return=2 and probe='trial' contradict"):
        options(pings_to_return=2, probe="trial")


def test_unknown_names_are_refused_with_those_that_look_like_them() -> None:
    with pytest.raises(TypeError, match="no option 'failover_intervall'; did you mean failover_interval"):
        options(failover_intervall=3)
    with pytest.raises(TypeError, match="no option 'zzz'; there are: assign_message_id, "):
        options(zzz=3)
    with pytest.raises(TypeError, match="did you mean credential"):
        refuse_unknown({"credentials": 1}, ("credential",))
    refuse_unknown({"credential": 1, "probe": "ping"}, ("credential",))
    with pytest.raises(TypeError, match="failover_interval"):
        settings_from({"failoverinterval": 1})


def test_p4_the_secondary_is_a_client_and_a_manager_or_none() -> None:
    client, manager = Client(), Manager()
    made = SendAvailabilityPairedNamespaceOptions(manager, client)
    assert made.messaging_factory is client
    assert made.secondary_namespace_manager is manager
    assert SendAvailabilityPairedNamespaceOptions(None, client).secondary_namespace_manager is None
    with pytest.raises(InvalidOptions, match=r"messaging_factory may not be a Manager \(is it the other argument\?\)"):
        SendAvailabilityPairedNamespaceOptions(client, manager)
    with pytest.raises(InvalidOptions, match="messaging_factory may not be a NoneType; allowed: the ServiceBusClient"):
        SendAvailabilityPairedNamespaceOptions(manager, None)
    with pytest.raises(InvalidOptions, match="secondary_namespace_manager may not be a str"):
        SendAvailabilityPairedNamespaceOptions("Endpoint=sb://…", client)


def test_p6_options_serve_one_pairing_and_again_after_one_that_failed() -> None:
    made = options(backlog_queue_count=5)
    made.claim()
    assert made.claimed
    with pytest.raises(AlreadyPaired, match="in use by another pairing"):
        made.claim()
    made.found(3)  # then it failed after all
    assert made.backlog_queue_count == 3
    made.release()
    assert made.backlog_queue_count == 5
    made.release()
    made.claim()
    with pytest.raises(AlreadyPaired):
        made.claim()


OTHER_VALUES: dict[str, Any] = {
    **{name: timedelta(seconds=7) for name in TIMES},
    **{name: choices[1] for name, choices in CHOICES.items()},
    **{option.name: not option.default for option in OPTIONS if isinstance(option.default, bool)},
    "backlog_queue_count": 3,
    "pings_to_return": 2,
    "primary_name": "contoso",
    "classifier": AS_DESCRIBED,
    "ledger": "folder",
    "control_file": "control.toml",
    "syphon_spark": SimpleNamespace(sparkContext=None),
    "syphon_master": "spark://host:7077",
    "syphon_checkpoint": "s3a://bucket/checkpoint",
    "profile": "interactive",
    "while_throttled": "divert",
    "primary_patience": 1.5,
    "brownout": (0.5, 20, 2),
}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_p2_every_option_can_be_set_as_an_attribute_until_pairing_begins(option: Any) -> None:
    name, value = option.name, OTHER_VALUES[option.name]
    made = options()
    assert getattr(made, name) == option.default
    setattr(made, name, value)
    assert getattr(made, name) == option.checked(value) != option.default
    assert made.settings == options(**{name: value}).settings

    with pytest.raises(InvalidOptions) as by_attribute:
        setattr(made, name, object())
    assert str(by_attribute.value).startswith(f"{name} may not be <object") and option.allowed in str(
        by_attribute.value
    )
    assert made.settings == options(**{name: value}).settings, "what was refused changed nothing"

    made.claim()
    with pytest.raises(AlreadyPaired, match=f"^{name} can't be set any more: .* make new ones"):
        setattr(made, name, option.default)
    assert getattr(made, name) == option.checked(value)
    made.release()
    setattr(made, name, option.default)
    assert made.settings == Settings()


def test_p2_options_set_one_after_the_other_may_not_contradict() -> None:
    made = options(pings_to_return=2)
    with pytest.raises(InvalidOptions, match="contradict"):
        made.probe = "trial"
    assert made.probe == "ping"


def test_p2_an_attribute_that_is_no_option_is_refused_with_those_that_look_like_it() -> None:
    made = options()
    with pytest.raises(AttributeError, match="no option 'ping_interval'; did you mean ping_primary_interval"):
        made.ping_interval = 3  # type: ignore[attr-defined]
    for name in ("secondary_namespace_manager", "messaging_factory", "settings"):
        with pytest.raises(AttributeError):
            setattr(made, name, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.settings.failover_interval = 3.0
    with pytest.raises(AttributeError):
        del made.failover_interval


def test_p2_the_base_holds_the_secondary_and_the_interval() -> None:
    base = PairedNamespaceOptions(None, Client(), timedelta(seconds=5))
    assert base.failover_interval == 5.0
    with pytest.raises(InvalidOptions, match="failover_interval"):
        PairedNamespaceOptions(None, Client(), 3601)
    base.failover_interval = 7
    assert base.failover_interval == 7.0
    with pytest.raises(AttributeError, match=r"no option 'probe'; there are: failover_interval$"):
        base.probe = "trial"  # type: ignore[attr-defined]


def test_options_read_well() -> None:
    assert repr(options()) == "<SendAvailabilityPairedNamespaceOptions defaults>"
    made = options(failover_interval=0, probe="trial")
    made.claim()
    assert repr(made) == "<SendAvailabilityPairedNamespaceOptions failover_interval=0.0, probe='trial', in use>"


@given(st.data())
def test_p2_no_value_gets_past_the_checks(data: st.DataObject) -> None:
    """Whatever is given: settings whose every field holds what its option takes, or an error that names the option."""
    option = data.draw(st.sampled_from(OPTIONS))
    value = data.draw(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.timedeltas(), st.binary())
    )
    try:
        made = options(**{option.name: value})
    except InvalidOptions as error:
        words = str(error)
    else:
        assert option.checked(getattr(made.settings, option.name)) == getattr(made.settings, option.name)
        return
    assert words.startswith(f"{option.name} may not be ")
    assert option.allowed in words


def test_the_page_says_what_the_table_says() -> None:
    assert in_sync(REFERENCE / "options.md", options_page())
    page = (REFERENCE / "options.md").read_text()
    for option in OPTIONS:
        assert re.search(rf"^\| `{option.name}` \|", page, re.MULTILINE)


def test_paired_is_typed_with_every_option_and_no_other() -> None:
    """So that mypy and editors see a wrong name: PEP 692."""
    hints = get_type_hints(PairingOptions)
    assert list(hints) == [option.name for option in OPTIONS]
    assert PairingOptions.__required_keys__ == frozenset()
    constructor = inspect.signature(SendAvailabilityPairedNamespaceOptions).parameters
    assert hints == {name: constructor[name].annotation for name in hints}


@pytest.mark.parametrize("module", ["pairbus", "pairbus.aio"])
def test_a_type_checker_sees_a_wrong_name(module: str, tmp_path: Path) -> None:
    wait = "" if module == "pairbus" else "await "
    lines = [
        f"from {module} import SendAvailabilityPairedNamespaceOptions, ServiceBusClient",
        "",
        "async def pair(options: SendAvailabilityPairedNamespaceOptions) -> None:",
        f'    {wait}ServiceBusClient.paired("a", "b", failover_interval=3, probe="trial", manage=False)',
        f'    {wait}ServiceBusClient.paired("a", "b", failover_intervall=3)',
        f'    {wait}ServiceBusClient.paired("a", "b", probe="guess")',
        "    options.ping_primary_interval = datetime.timedelta(seconds=3)",
        "    interval: float = options.ping_primary_interval",
        '    options.send_timeout = "long"',
        "    options.ping_interval = 3",
    ]
    program = tmp_path / "program.py"
    program.write_text("import datetime\n" + "\n".join(lines) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(program)],
        capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False,
    )  # fmt: skip
    wrong = sorted({int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line})
    assert wrong == [6, 7, 10, 11], done.stdout + done.stderr


def test_p2_a_profile_is_a_row_of_options_that_explicit_ones_override() -> None:
    made = options(profile="interactive")
    assert (made.failover_interval, made.primary_patience, made.while_suspect) == (0.0, "adaptive", "divert")
    assert (made.send_timeout, made.while_throttled) == (8.0, "divert")
    made = options(profile="interactive", send_timeout=60, while_throttled="wait")
    assert (made.send_timeout, made.while_throttled) == (60.0, "wait"), "although these are the defaults"
    made = options(profile="interactive", failover_interval=60, while_suspect="raise")
    assert (made.failover_interval, made.primary_patience, made.while_suspect) == (60.0, "adaptive", "raise")
    made = options()
    assert made.settings == options(profile="as-described").settings == Settings()
    made.failover_interval = 7
    made.profile = "interactive"
    assert (made.failover_interval, made.primary_patience) == (7.0, "adaptive"), "in whatever order they are set"
    made.profile = "as-described"
    assert (made.failover_interval, made.primary_patience) == (7.0, "half")


@pytest.mark.parametrize("value", ["patient", 0, 0.01, 4000, float("nan"), None, True, []])
def test_p19_patience_that_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOptions, match=r'primary_patience may not be .*"adaptive", or seconds'):
        options(primary_patience=value)


@pytest.mark.parametrize(
    "value",
    [0.5, (0.5, 20), (1.0, 20, 2), (-0.1, 20, 2), (0.5, 4, 2), (0.5, 2000, 2), (0.5, 20, 0), ("a", 20, 2), True],
)
def test_p24_a_brownout_that_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOptions, match=r"brownout may not be .*\(share, sends, time\)"):
        options(brownout=value)


def test_p24_a_brownout_takes_a_timedelta() -> None:
    assert options(brownout=[0, 5, timedelta(seconds=2)]).brownout == (0.0, 5, 2.0)
