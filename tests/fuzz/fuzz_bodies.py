"""Fuzz targets: bodies of requests. A body is refused by naming a field, or means the same to every reader of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from llog.errors import InvalidArgument
from llog.http.json.body_check import duplicate_key, lone_surrogate
from llog.http.json.decode import decoded_produce
from llog.http.json.plain_scan import scan


def body_check(data: bytes) -> None:
    """Right about whatever is JSON, and harmless for the rest."""
    found = duplicate_key(data) is not None
    lone_surrogate(data, "body")
    twice: list[str] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        twice.extend(name for name in names if names.count(name) > 1)

    try:
        data.decode()
        json.loads(data, object_pairs_hook=note)
    except (ValueError, RecursionError):
        return
    if lone_surrogate(data, "body") is None:
        assert found == bool(twice), twice


def produce_body(data: bytes) -> None:
    try:
        request = decoded_produce(data, 64)
    except InvalidArgument:
        request = None
    scanned = scan(data)
    if scanned is not None:
        assert request is not None, "the kernel accepts what the decoder refuses"
        assert scanned.topics == [batch.topic for batch in request.topic_partitions]


_PLAIN = b'{"topic_partitions":[{"topic":"t","partition":0,"records":["a","bb","ccc"]}]}'
_FULL = (
    b'{"topic_partitions": [{"topic": "t", "partition": 1, "producer_id": 5, "epoch": 0, "sequence": 7, "records": ['
    b'{"key": "k\\u00e4", "value": "v\\ud83d\\ude00", "headers": {"a": "1", "b": ["2", {"base64": "AAE="}]}}, "x\\n"'
    b"]}]}"
)
TARGETS: dict[str, Callable[[bytes], None]] = {"body_check": body_check, "produce_body": produce_body}
SEEDS: dict[str, list[bytes]] = {
    "body_check": [_PLAIN, _FULL, b'{"a":1,"b":{"a":2,"\\u0061":3},"c":[]}', b'{"a":{},"a":[]}'],
    "produce_body": [_PLAIN, _FULL, _PLAIN[:-2] + b',{"topic":"u","partition":3,"records":["d"]}]}'],
}
