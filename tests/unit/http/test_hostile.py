"""Whatever is sent, no answer is an unexpected error."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llog.http.routes.app import build_app
from tests.unit.http.broker_double import BrokerDouble, Client, batch, produce_body

PATHS = (
    "/produce",
    "/consume",
    "/offsets/commit",
    "/offsets/fetch",
    "/topics",
    "/topics/t/partitions",
    "/topics/t/partitions/0/fence",
    "/topics/t/partitions/0/unfence",
    "/topics/t/partitions/0/delete-records",
)
NAMES = st.sampled_from(
    [
        *("topic_partitions", "topic", "partition", "records", "fetch_offset", "group", "offsets", "offset", "config"),
        *("partitions", "count", "before_offset", "reason", "expected_epoch", "base64", "value", "key", "headers", "x"),
    ]
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5),
    st.sampled_from(["t", "t2", 0, 1, 2**31, 2**63, -1]),
)  # fmt: skip
TREES: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5), max_leaves=12
)
LOGS = st.fixed_dictionaries(
    {"topic": st.sampled_from(["t", "t2", "é", ""]), "partition": st.integers(-1, 9)},
    optional={"records": st.lists(TREES, max_size=3), "fetch_offset": LEAVES, "offset": LEAVES, "sequence": LEAVES},
)
BODIES = st.one_of(
    st.binary(max_size=60),
    TREES.map(lambda tree: json.dumps(tree).encode()),
    st.lists(LOGS, max_size=3).map(lambda logs: json.dumps({"topic_partitions": logs}).encode()),
    st.lists(LOGS, max_size=3).map(lambda logs: json.dumps({"group": "g", "offsets": logs}).encode()),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(PATHS), BODIES), min_size=1, max_size=8))
async def test_no_body_causes_an_unexpected_error(requests: list[tuple[str, bytes]]) -> None:
    async with Client(APP()) as client:
        await client.post("/produce", json=produce_body(batch("t", 0, "a")))
        for path, body in requests:
            answer = await client.post(path, content=body)
            assert answer.status_code < 500 or answer.status_code == 503, (path, body, answer.text)


SEGMENTS = st.sampled_from(
    ["topics", "t", "partitions", "0", "-1", "%00", "..", "offsets", "tail", "é", "9" * 5_000, "schema"]
)
QUERIES = st.sampled_from(
    ["", "timestamp_ms=x", "timestamp_ms=-1", f"timestamp_ms={'9' * 5_000}", "offset=1e3", "a=%ff", "dry_run=2"]
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(SEGMENTS, max_size=5), QUERIES, st.sampled_from(["GET", "PATCH", "DELETE", "PUT"]))
async def test_no_path_or_query_causes_an_unexpected_error(segments: list[str], query: str, method: str) -> None:
    async with Client(APP()) as client:
        answer = await client.request(method, f"/{'/'.join(segments)}?{query}", content=b"{}")
        assert answer.status_code < 500 or answer.status_code == 503, (method, segments, query, answer.text)


class _Once:
    """One application for all examples: building it takes longer than asking it."""

    def __init__(self) -> None:
        self._app: Any = None

    def __call__(self) -> Any:
        self._app = self._app or build_app(BrokerDouble())
        return self._app


APP = _Once()
