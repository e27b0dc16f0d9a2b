"""The JSON kernels of the HTTP front end against msgspec on the same bytes, both to and from record batches."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import numpy as np

from llog.formats.records.decode import decode_records
from llog.formats.records.encode import encode_columns
from llog.formats.records.record_batch import TimestampType
from llog.formats.records.record_columns import columns_from_rows
from llog.http.json import consume_answer, plain_scan
from llog.http.json.consume_answer import records_of, show_batches
from llog.http.json.produce_encode import KAFKA, encoded_request
from llog.listener.http1 import ENCODER
from tests.benchmarks.harness import Duel, benchmark

RECORDS: Final = 200
RECORD_BYTES: Final = 1_024
REPEAT: Final = 50
NOW_MS: Final = 1_800_000_000_000
MEGABYTES: Final = REPEAT * RECORDS * RECORD_BYTES / 1e6


@benchmark("json_produce", against="msgspec, then the encoder of records (200 records of 1 KiB)", at_least=2.0)
@asynccontextmanager
async def json_produce() -> AsyncIterator[Duel]:
    """From the body of a produce request to its record batches."""
    plain_scan.warm_up()
    batch = {"topic": "orders", "partition": 0, "records": ["x" * RECORD_BYTES] * RECORDS}
    body = json.dumps({"topic_partitions": [batch]}).encode()

    def encode(scan_bytes_min: int) -> None:
        for _ in range(REPEAT):
            encoded_request(body, encoding=KAFKA, now_ms=NOW_MS, scan_bytes_min=scan_bytes_min)

    yield Duel(lambda: encode(0), lambda: encode(len(body) + 1), MEGABYTES, "MB")


@benchmark("json_consume", against="the decoder of records, then msgspec (200 records of 1 KiB)", at_least=2.0)
@asynccontextmanager
async def json_consume() -> AsyncIterator[Duel]:
    """From record batches to the records of an answer."""
    consume_answer.warm_up()
    columns = columns_from_rows([b"x" * RECORD_BYTES] * RECORDS, timestamps_ms=NOW_MS)
    batches = encode_columns(columns, timestamp_type=TimestampType.LOG_APPEND_TIME)
    output = np.empty(2 * RECORDS * RECORD_BYTES, np.uint8)

    def ours() -> None:
        for _ in range(REPEAT):
            assert show_batches(output, 0, batches, 0, first=True) is not None

    def baseline() -> None:
        for _ in range(REPEAT):
            ENCODER.encode(list(records_of(decode_records(batches, "benchmark"))))

    yield Duel(ours, baseline, MEGABYTES, "MB")
