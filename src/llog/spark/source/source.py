"""The data source `llog`: topics as tables and streams, read straight from the object store.

    spark.read.format("llog").option("subscribe", "orders").load()
    spark.readStream.format("llog").option("subscribe", "orders").option("startingOffsets", "earliest").load()

Columns and options are those of Spark's Kafka source (`source_options`). No broker is asked: the driver plans from the
index in the metadata store, executors read objects. Registered by `llog.spark.register`, and found by Spark itself
where the package `pyspark_llog` is installed.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from llog.errors import InvalidArgument
from llog.spark.source.options import parse_options, wants_headers

NAME: Final = "llog"
SCHEMA: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField(
            "headers",
            ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
        ),
    ]
)


class LlogDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        if wants_headers(self.options):
            return SCHEMA
        return StructType([field for field in SCHEMA.fields if field.name != "headers"])

    def reader(self, schema: StructType) -> DataSourceReader:
        from llog.spark.source.reader import LlogReader

        return LlogReader(parse_options(self.options, "batch"), columns_of(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from llog.spark.source.stream_reader import LlogStreamReader

        return LlogStreamReader(parse_options(self.options, "stream"), columns_of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from llog.spark.sink.writer import LlogWriter

        return LlogWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from llog.spark.sink.stream_writer import LlogStreamWriter

        return LlogStreamWriter(self.options, schema, overwrite)


def columns_of(schema: StructType) -> list[str]:
    """The names of a schema that is ours, or a part of it: only those columns are handed to Spark."""
    for field in schema.fields:
        if field.name not in SCHEMA.names:
            raise InvalidArgument("schema", f"column {field.name}: there are {', '.join(SCHEMA.names)}")
        ours = SCHEMA[field.name].dataType
        if field.dataType != ours:
            raise InvalidArgument("schema", f"column {field.name} is {ours.simpleString()}")
        if not field.nullable:  # Spark compares that with what a task gives, and refuses it there
            raise InvalidArgument("schema", f"column {field.name}: leave NOT NULL out")
    if not schema.fields:
        raise InvalidArgument("schema", "names no column")
    return [field.name for field in schema.fields]
