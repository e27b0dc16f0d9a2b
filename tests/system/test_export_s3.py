"""Exports into a real S3 server: files and the table's own metadata, with the log's credentials."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llog.formats.records.encode import encode_records
from llog.log.append.append import Appended, Appender, EncodedGroup
from llog.log.keys import Log
from llog.pipeline.export.decode import Decoder, Decoding
from llog.pipeline.export.iceberg import IcebergTarget, open_catalogue
from llog.pipeline.export.job import export, export_tools
from llog.pipeline.export.parquet import ParquetTarget, committed
from llog.pipeline.runtime.tasks import LocalTasks
from llog.settings import Settings
from llog.testing.servers import ACCESS_KEY, SECRET_KEY, Minio, S3Server
from llog.wiring import Use, opened_log
from tests.servers import started

pytestmark = pytest.mark.server


@pytest.fixture
def server() -> Iterator[S3Server]:
    yield from started(Minio)


async def test_a_topic_in_a_bucket_is_exported_into_the_bucket(server: S3Server, tmp_path: Path) -> None:
    settings = Settings.from_env(
        {},
        data_dir=tmp_path,
        metadata_url=f"lmdb://{tmp_path}/metadata",
        objects_url=f"s3://{server.bucket}",
        s3_endpoint_url=server.endpoint,
        s3_region_name="us-east-1",
        s3_access_key_id=ACCESS_KEY,
        s3_secret_access_key=SECRET_KEY,
    )
    async with opened_log(settings, blobs=Use.PUT, segments=Use.PUT) as opened:
        body = encode_records([b"a", b"b", b"c"], timestamps_ms=1_760_000_000_000)
        appender = Appender(opened.context)
        [done] = await appender.append([EncodedGroup(Log("orders", 0), 3, "kafka-v2", [body], 1_760_000_000_000)])
        assert isinstance(done, Appended)
        await appender.close()
        runner = LocalTasks(export_tools(opened.context, opened.objects))
        store = await opened.objects.at(f"s3://{server.bucket}/exports")
        parquet = ParquetTarget(store, "orders")
        table_name, schema = "shop.orders", Decoder(Decoding()).schema
        for _ in range(2):
            await export(opened.context, runner, "orders", parquet)
            catalogue = open_catalogue(settings)
            table = await IcebergTarget.open(catalogue, table_name, schema, opened.context.random_bits)
            await export(opened.context, runner, "orders", table)
        [commit] = await committed(store, "orders")
        assert [file.records for file in commit.files] == [3]
        assert (await store.head(commit.files[0].name)).byte_length == commit.files[0].byte_length
        rows = open_catalogue(settings).load_table(table_name).scan().to_arrow()
        assert rows["value"].to_pylist() == [b"a", b"b", b"c"]
        assert (
            open_catalogue(settings).load_table(table_name).location() == f"s3://{server.bucket}/warehouse/shop/orders"
        )
