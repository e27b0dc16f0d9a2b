"""schemathesis over the OpenAPI description of a running broker.

Whatever is sent, no answer is a 5xx other than 503, and every answer is one that the description lists.

Half of the cases follow the description, half break it on purpose. A part of both is aimed at topics that exist, or
nearly everything would end at "no such topic". LLOG_SOAK=1 runs about 2,000 cases instead of a few hundred.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.clients.http_calls import Running, a_batch, produced, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
Operation = APIOperation[Any, Any, Any, Any]
Case = schemathesis.Case[Any]
SOAK: Final = os.environ.get("LLOG_SOAK") == "1"
CASES: Final = 2_200 if SOAK else 240
TOPICS: Final = ("there", "fenced", "small")
WAIT_MS: Final = 20
TIMEOUT_SECONDS: Final = 120.0
TAIL: Final = "/topics/{topic}/partitions/{partition}/tail"
PATHS: Final = (
    "/health", "/ready", "/metrics", "/metrics/prometheus", "/topics", "/topics/{topic}", "/topics/{topic}/partitions",
    "/topics/{topic}/partitions/{partition}/fence", "/topics/{topic}/partitions/{partition}/unfence",
    "/topics/{topic}/partitions/{partition}/offsets", "/topics/{topic}/partitions/{partition}/delete-records",
    "/consume", TAIL, "/offsets/commit", "/offsets/fetch", "/produce",
)  # fmt: skip
# "Accepts whatever the description allows" is not among them: that a log is named once per request, or that a record
# has a value or base64 but not both, is beyond what a schema says; such a request is refused with 400.
CHECKS: Final = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A broker of its own: what is tried here may delete what others count on."""
    settings_ = {"llog_topic_partitions_max": "4"}
    with running("broker", directory=tmp_path_factory.mktemp("schema"), name="schema", **settings_) as broker:
        yield broker


@pytest.fixture(scope="module")
def operations(described: Running) -> dict[str, list[Operation]]:
    schema = schemathesis.openapi.from_url(f"{described.url}/schema/openapi.json")
    found: dict[str, list[Operation]] = {}
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()
        found.setdefault(operation.path, []).append(operation)
    return found


@pytest.fixture(scope="module")
def tried() -> Counter[tuple[str, int]]:
    """Cases by path and status."""
    return Counter()


def test_every_path_of_the_description_is_tried(operations: dict[str, list[Operation]]) -> None:
    assert sorted(operations) == sorted(PATHS)


@pytest.mark.parametrize("path", PATHS)
def test_no_answer_is_a_server_error_and_all_are_as_described(
    described: Running, operations: dict[str, list[Operation]], tried: Counter[tuple[str, int]], path: str
) -> None:
    asking = sum(_asks(operation) for there in operations.values() for operation in there)
    for operation in operations[path]:
        for mode in tuple(GenerationMode) if _asks(operation) else (GenerationMode.POSITIVE,):
            statuses = _fuzz(described, operation, mode, CASES // asking // 2)
            tried.update({(path, status): count for status, count in statuses.items()})


def test_the_cases_were_many_and_not_all_of_them_refused(tried: Counter[tuple[str, int]]) -> None:
    if {path for path, _ in tried} != set(PATHS):
        pytest.skip("only some of the paths were tried")
    print(f"{tried.total()} cases:", dict(tried))
    assert tried.total() >= CASES * 0.8
    landed = {path for path, status in tried if status in (200, 201)}
    assert landed == set(PATHS), f"never accepted: {set(PATHS) - landed}"


def _asks(operation: Operation) -> bool:
    """It takes something, so there is something to be wrong."""
    return bool(operation.path_parameters or operation.query or operation.body)


def _fuzz(broker: Running, operation: Operation, mode: GenerationMode, examples: int) -> Counter[int]:
    statuses: Counter[int] = Counter()
    _restore(broker)

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=not SOAK,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), aim=st.sampled_from((None, *TOPICS)))
    def run(case: Case, aim: str | None) -> None:
        if aim is not None:
            _aim(case, aim)
        status = _tail_status(case) if operation.path == TAIL else _checked_status(case, aimed=aim is not None)
        assert status < 500 or status == 503, f"{status}: {case.as_curl_command()}"
        statuses[status] += 1

    run()
    assert statuses, operation.label
    return statuses


def _checked_status(case: Case, *, aimed: bool) -> int:
    answer = case.call(timeout=TIMEOUT_SECONDS)
    # What was aimed elsewhere may have become right by that.
    checks = [check for check in CHECKS if not (aimed and check is negative_data_rejection)]
    case.validate_response(answer, checks=checks)
    return answer.status_code


def _tail_status(case: Case) -> int:
    """A tail has no end: what matters is its head, and that the first event is one."""
    with requests.request(**case.as_transport_kwargs(), stream=True, timeout=TIMEOUT_SECONDS) as answer:
        assert str(answer.status_code) in case.operation.definition.raw["responses"], answer.text
        kind = answer.headers["content-type"]
        if answer.status_code == 200:
            assert kind.startswith("text/event-stream")
            assert next(answer.iter_lines()) == b": nothing new"
        else:
            assert kind == "application/json"
            assert answer.json()["error_type"]
        return int(answer.status_code)


def _aim(case: Case, topic: str) -> None:
    """Let the case be about a log that is there, and wait for nothing."""
    if case.path_parameters and "topic" in case.path_parameters:
        case.path_parameters["topic"] = topic
        if "partition" in case.path_parameters:
            case.path_parameters["partition"] = 0
    body: Any = case.body
    if not isinstance(body, dict):
        return
    if isinstance(body.get("max_wait_ms"), int):
        body["max_wait_ms"] = min(body["max_wait_ms"], WAIT_MS)
    for name, first in (("count", 2), ("before_offset", 0)):
        if type(body.get(name)) is int:
            body[name] = first + body[name] % 3
    for number, row in enumerate(_rows(body)):
        row["topic"], row["partition"] = topic, number
        if isinstance(row.get("fetch_offset"), int):
            row["fetch_offset"] %= 5


def _rows(body: dict[str, Any]) -> list[dict[str, Any]]:
    listed = body.get("topic_partitions") or body.get("offsets") or []
    return [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []


def _restore(broker: Running) -> None:
    """The topics as they are meant to be; an earlier case may have deleted, fenced or cut them."""
    for topic in TOPICS:
        made = broker.http.post("/topics", json={"topic": topic, "partitions": 2})
        assert made.status_code in (201, 409), made.text
        broker.http.post(f"/topics/{topic}/partitions/0/unfence")
        broker.http.patch(f"/topics/{topic}", json={"config": {"max.message.bytes": None}})
        produced(broker.http, a_batch(topic, 0, "a", {"key": "k", "value": "b", "timestamp_ms": 5}))
    broker.http.post("/topics/fenced/partitions/0/fence")
    broker.http.patch("/topics/small", json={"config": {"max.message.bytes": 100}})
