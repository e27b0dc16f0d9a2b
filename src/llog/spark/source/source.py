"""The data source `llog`: topics as tables and streams, read directly from the object store.

    spark.read.format("llog").option("subscribe", "orders").load()
    spark.readStream.format("llog").option("subscribe", "orders").option("startingOffsets", "earliest").load()

Columns and options are those of Spark's Kafka source (`llog.spark.source.options`). No broker is involved: the driver
plans from the index in the metadata store, executors read objects. `llog.spark.register` registers the source; Spark
finds it by itself if the package `pyspark_llog` is installed.
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
from llog.spark.source.options import NO_TABLE, parse_options, wants_headers
from llog.spark.user_errors import in_one_sentence

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

    @in_one_sentence()
    def schema(self) -> StructType:
        if "provider" in self.options:  # a property of a catalogue table
            raise InvalidArgument("CREATE TABLE", NO_TABLE)
        if wants_headers(self.options):
            return SCHEMA
        return StructType([field for field in SCHEMA.fields if field.name != "headers"])

    @in_one_sentence()
    def reader(self, schema: StructType) -> DataSourceReader:
        from llog.spark.source.reader import LlogReader

        return LlogReader(parse_options(self.options, "batch"), columns_of(schema))

    @in_one_sentence()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from llog.spark.source.stream_reader import LlogStreamReader, RefusingStreamReader

        try:
            return LlogStreamReader(parse_options(self.options, "stream"), columns_of(schema))
        except InvalidArgument as error:
            return RefusingStreamReader(error.argument, error.reason)

    @in_one_sentence()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from llog.spark.sink.writer import LlogWriter

        return LlogWriter(self.options, schema, overwrite)

    @in_one_sentence()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from llog.spark.sink.writer import LlogStreamWriter

        return LlogStreamWriter(self.options, schema, overwrite)


def columns_of(schema: StructType) -> list[str]:
    """The column names of a schema given by the user, which must be a part of `SCHEMA`."""
    for field in schema.fields:
        if field.name not in SCHEMA.names:
            raise InvalidArgument(
                "schema", f"column {field.name} does not exist; the columns are {', '.join(SCHEMA.names)}"
            )
        ours = SCHEMA[field.name].dataType
        if field.dataType != ours:
            raise InvalidArgument("schema", f"column {field.name} must be {ours.simpleString()}")
        if not field.nullable:  # Spark would refuse the batches of every task
            raise InvalidArgument("schema", f"column {field.name} must be nullable: remove NOT NULL")
    if not schema.fields:
        raise InvalidArgument("schema", "names no column")
    return [field.name for field in schema.fields]
