"""The package as its users and Spark's Python processes import it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql.types import IntegerType, StructType

from pairbus.spark.connector.options import InvalidOption
from pairbus.spark.connector.source import ServiceBusDataSource


@pytest.mark.parametrize("module", ["connector.source", "syphon.sink"])
def test_spark_s_processes_do_not_pay_for_the_sdk(module: str) -> None:
    """A drain starts eight of them, one after the other; the SDK would double what each imports."""
    program = f"import sys, pairbus.spark.{module}; print(*(name for name in sys.modules if name.startswith('azure')))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_names_that_are_modules_too_stay_the_functions() -> None:
    program = (
        "import pairbus.spark.syphon, pairbus.spark.runtime.session\n"
        "from pairbus.spark import archive, move, register, session, syphon\n"
        "print(*(type(each).__name__ for each in (archive, move, register, session, syphon)))\n"
        "import pairbus.spark\n"
        "print(set(pairbus.spark.__all__) <= set(dir(pairbus.spark)), hasattr(pairbus.spark, 'nothing'))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["function"] * 5 + ["True", "False"]


def test_a_schema_of_the_application_s_is_refused_before_anything_is_read() -> None:
    source = ServiceBusDataSource({"connectionString": "Endpoint=sb://x/", "entity": "orders", "columns": "body"})
    for reader in (source.reader, source.streamReader):
        with pytest.raises(InvalidOption, match=r"has a schema of its own.*leave \.schema\(…\) out.*option columns"):
            reader(StructType().add("body", IntegerType()))
        reader(source.schema())
