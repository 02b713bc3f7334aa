"""The data source `servicebus`: reads the options, and hands out the readers and writers.

Found by its short name through the package `pyspark_servicebus`, or registered by hand with `register(spark)`.
"""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from . import entities, listing
from .batch_reader import FilteringReader, ServiceBusReader, Wanted
from .options import ConnectorOptions, InvalidOption, check_batch, parse, wanted_entity
from .schema import check_settleable, check_writable, columns_of, spark_schema
from .stream_reader import stream_reader
from .values import transfer_packs
from .writer import ServiceBusStreamWriter, ServiceBusWriter, WriterConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILTERS = "spark.sql.python.filterPushdown.enabled"


class ServiceBusDataSource(DataSource):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._parsed: ConnectorOptions = parse(dict(options), os.environ)

    @classmethod
    def name(cls) -> str:
        return "servicebus"

    def schema(self) -> StructType:
        return transfer_packs.SCHEMA if self._parsed.mailbox is not None else spark_schema(columns_of(self._parsed))

    def reader(self, schema: StructType) -> DataSourceReader:
        parsed = self._parsed
        self._check_schema(schema)
        kind = FilteringReader if parsed.push_filters else ServiceBusReader
        check_batch(parsed)
        wanted = Wanted(parsed.first_sequence, parsed.last_sequence)
        return kind(
            parsed.address,
            self._entities("source"),
            wanted,
            parsed.starting,
            parsed.ending,
            parsed.partitions_min,
            columns_of(parsed),
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        self._check_schema(schema)
        return stream_reader(self._parsed, self._entities("source"))

    def _check_schema(self, schema: StructType) -> None:
        """Raise InvalidOption for a schema that the application gave; with it, a batch would fail when it was read."""
        if schema.simpleString() != self.schema().simpleString():
            raise InvalidOption(
                "the servicebus source has a schema of its own, and none can be given; leave .schema(…) out, pick "
                "columns by the option columns, and read the body with cast or from_json"
            )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise InvalidOption('a queue can\'t be overwritten; use mode("append")')
        return ServiceBusWriter(self._target(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return ServiceBusStreamWriter(self._target(schema))

    def _target(self, schema: StructType) -> WriterConfig:
        parsed = self._parsed
        check_writable(schema, parsed.entity)
        if parsed.settle is not None:
            check_settleable(schema)
        return WriterConfig(
            **{field.name: getattr(parsed, field.name) for field in fields(WriterConfig) if field.name != "rate_max"}
        )

    def _entities(self, what: str) -> listing.Entities:
        patterns = entities.listed(wanted_entity(self._parsed, what))
        return listing.Entities(self._parsed.address, patterns)


def register(spark: SparkSession) -> None:
    """Makes `format("servicebus")` known to a session, and lets filters reach it where `pushFilters` asks for them."""
    spark.conf.set(FILTERS, "true")
    try:
        spark.dataSource.register(ServiceBusDataSource)
    except AnalysisException as error:
        # 4.0 refuses a name that it has found by itself, in the package pyspark_servicebus: ours
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
