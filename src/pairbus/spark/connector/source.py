"""The data source `servicebus`: reads the options, and hands out the readers and writers.

Spark finds it by its short name through the package `pyspark_servicebus`, or after `register(spark)`.
"""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructField, StructType

from . import entities, listing
from .batch_reader import FilteringReader, ServiceBusReader, Wanted
from .options import (
    ConnectorOptions,
    InvalidOption,
    check_batch,
    options_of_table,
    parse,
    wanted_entity,
    with_those_of_table,
)
from .schema import check_settleable, check_writable, columns_of, spark_schema
from .stream_reader import stream_reader
from .values import transfer_packs
from .writer import ServiceBusStreamWriter, ServiceBusWriter, WriterConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILTERS = "spark.sql.python.filterPushdown.enabled"


class ServiceBusDataSource(DataSource):
    """A table of a catalog is read and written without its options: Spark hands its schema to a source in Python, and
    nothing else. So they travel there, beside the first of its columns."""

    @classmethod
    def name(cls) -> str:
        return "servicebus"

    def schema(self) -> StructType:
        table = options_of_table(self.options)
        if table is None:
            return _schema_of(self._parse(None))
        columns = _schema_of(parse(table, os.environ))
        kept = {**table, "columns": ",".join(columns.names)}
        first = columns.fields[0]
        return StructType([StructField(first.name, first.dataType, True, {self.name(): kept}), *columns.fields[1:]])

    def _parse(self, schema: StructType | None) -> ConnectorOptions:
        tables = [field.metadata[self.name()] for field in schema or () if self.name() in field.metadata]
        return parse(with_those_of_table(self.options, tables[0]) if tables else self.options, os.environ)

    def reader(self, schema: StructType) -> DataSourceReader:
        parsed = self._checked(schema)
        kind = FilteringReader if parsed.push_filters else ServiceBusReader
        check_batch(parsed)
        wanted = Wanted(parsed.first_sequence, parsed.last_sequence)
        return kind(
            parsed.address,
            _entities(parsed),
            wanted,
            parsed.starting,
            parsed.ending,
            parsed.partitions_min,
            columns_of(parsed),
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        parsed = self._checked(schema)
        return stream_reader(parsed, _entities(parsed))

    def _checked(self, schema: StructType) -> ConnectorOptions:
        """Raise InvalidOption for a schema that the application gave; with it, a batch would fail when it was read."""
        parsed = self._parse(schema)
        if schema.simpleString() != _schema_of(parsed).simpleString():
            raise InvalidOption(
                "the servicebus source has a schema of its own, and none can be given; leave .schema(…) out, pick "
                "columns by the option columns, and read the body with cast or from_json"
            )
        return parsed

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise InvalidOption('a queue can\'t be overwritten; use mode("append")')
        return ServiceBusWriter(self._target(schema, self._parse(schema)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        # with the schema of the rows, not of the table that they go to: options there are those of their source
        return ServiceBusStreamWriter(self._target(schema, self._parse(None)))

    def _target(self, schema: StructType, parsed: ConnectorOptions) -> WriterConfig:
        check_writable(schema, parsed.entity)
        if parsed.settle is not None:
            check_settleable(schema)
        return WriterConfig(
            **{field.name: getattr(parsed, field.name) for field in fields(WriterConfig) if field.name != "rate_max"}
        )


def _schema_of(options: ConnectorOptions) -> StructType:
    return transfer_packs.SCHEMA if options.mailbox is not None else spark_schema(columns_of(options))


def _entities(options: ConnectorOptions) -> listing.Entities:
    return listing.Entities(options.address, entities.listed(wanted_entity(options)))


def register(spark: SparkSession) -> None:
    """Makes `format("servicebus")` known to a session, and lets filters reach it where `pushFilters` asks for them."""
    spark.conf.set(FILTERS, "true")
    try:
        spark.dataSource.register(ServiceBusDataSource)
    except AnalysisException as error:
        # 4.0 refuses a name that it has found by itself, in the package pyspark_servicebus: ours
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
