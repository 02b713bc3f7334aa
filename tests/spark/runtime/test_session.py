from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from pairbus.spark import session
from pairbus.spark.connector.source import register
from pairbus.spark.runtime.session import existing, quick_java, settings_for


def gateway(monkeypatch: pytest.MonkeyPatch, *words: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", *words])
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
    return process


def test_a_driver_is_gone_when_its_jvm_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    from pairbus.spark.runtime.session import is_gone

    monkeypatch.setattr(SparkContext, "_gateway", None)
    assert not is_gone()
    process = gateway(monkeypatch, "input()")
    assert not is_gone()
    process.kill()
    process.wait()
    assert is_gone()


def test_a_driver_that_is_gone_is_forgotten_before_another_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    gateway(monkeypatch, "").wait()

    def stop() -> None:
        raise ConnectionRefusedError

    for owner, name in ((SparkContext, "_active_spark_context"), (SparkSession, "_instantiatedSession")):
        monkeypatch.setattr(owner, name, SimpleNamespace(stop=stop))
    monkeypatch.setattr(SparkContext, "_jvm", object())
    monkeypatch.setattr(SparkSession, "_activeSession", object())
    # the package has a function of the module's name
    monkeypatch.setattr(sys.modules["pairbus.spark.runtime.session"], "_start", lambda *_: "started")
    assert session() == "started"
    assert SparkContext._active_spark_context is SparkContext._gateway is SparkContext._jvm is None
    assert SparkSession._instantiatedSession is SparkSession._activeSession is None


@pytest.mark.parametrize("master", ["local", "local[2,4]", "local-cluster[2,1,1024]"])
def test_a_master_on_this_machine_keeps_to_its_loopback(master: str, tmp_path: Path) -> None:
    settings = settings_for(master, tmp_path, 4)
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.sql.shuffle.partitions"] == "4"
    assert settings["spark.local.dir"].startswith(str(tmp_path))


def test_quick_java_is_for_this_machine_and_leaves_what_was_set() -> None:
    options = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1"}
    assert quick_java(None, None) == quick_java("local[2,4]", {}) == options
    assert quick_java("local[2]", {"spark.x": "y"}) == {**options, "spark.x": "y"}
    own = {"spark.driver.defaultJavaOptions": "-XX:+UseZGC"}
    assert quick_java(None, own) == own
    assert quick_java("spark://10.0.0.1:7077", {"spark.x": "y"}) == {"spark.x": "y"}


@pytest.mark.parametrize("master", ["spark://10.0.0.1:7077", "yarn", "k8s://https://host:443", "localhost"])
def test_a_cluster_keeps_its_own_addresses_folders_and_partitions(master: str, tmp_path: Path) -> None:
    settings = settings_for(master, tmp_path, 4)
    for name in ("driver.host", "driver.bindAddress", "sql.shuffle.partitions", "local.dir", "sql.warehouse.dir"):
        assert f"spark.{name}" not in settings
    assert settings["spark.speculation"] == "false"


@pytest.mark.parametrize(("text", "passes"), [("[DATA_SOURCE_ALREADY_EXISTS] x", True), ("[OTHER] x", False)])
def test_a_name_that_spark_4_0_found_by_itself_is_ours(text: str, passes: bool) -> None:
    def refuse(_: Any) -> None:
        raise AnalysisException(text)

    spark: Any = SimpleNamespace(conf=SimpleNamespace(set=lambda *_: None), dataSource=SimpleNamespace(register=refuse))
    if passes:
        register(spark)
    else:
        with pytest.raises(AnalysisException):
            register(spark)


def test_a_session_whose_jvm_has_died_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would answer with an error, and no other would be started in its place."""
    monkeypatch.setattr(sys.modules[existing.__module__], "is_gone", lambda: True)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: pytest.fail("the dead JVM was asked"))
    assert existing() is None
