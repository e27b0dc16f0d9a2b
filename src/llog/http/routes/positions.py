"""`POST /offsets/commit` and `/offsets/fetch`: positions of consumers over HTTP, by group name."""

from __future__ import annotations

from collections.abc import Iterable

from litestar import Request, Response, post

from llog.audit_log import write_line
from llog.broker.groups.positions import CommittedPosition, Position
from llog.errors import InvalidArgument, LogError
from llog.http.json.decode import checked_log
from llog.http.json.schemas import (
    OffsetCommitResult,
    OffsetFetched,
    OffsetsCommit,
    OffsetsCommitAnswer,
    OffsetsFetch,
    OffsetsFetchAnswer,
)
from llog.http.routes.authorization import check_rights, sees
from llog.http.routes.openapi import AUDIT, operation
from llog.http.routes.runtime import AnyRequest, decoded_body, json_response, record_of, runtime_of
from llog.listener.tokens import Access
from llog.log.keys import Log
from llog.security.acl import Operation, ResourceType


@post(
    "/offsets/commit",
    status_code=200,
    opt={Access.KEY: Access.READ, AUDIT: "group.commit"},
    summary="Commit positions of a group",
    operation_class=operation(
        OffsetsCommit,
        {
            200: (OffsetsCommitAnswer, "Every position is committed."),
            409: (OffsetsCommitAnswer, "At least one position failed; the others are committed."),
        },
    ),
)
async def commit_offsets(request: Request) -> Response[bytes]:  # type: ignore[type-arg]
    body = await decoded_body(request, OffsetsCommit)
    record_of(request).subject = body.group
    positions = plan_positions(body)
    _check_rights(request, body.group, positions)
    outcomes = await runtime_of(request).services.positions.commit(body.group, positions)
    results = [_result(log, positions[log].offset, outcomes[log]) for log in positions]
    failed = sum(not result.ok for result in results)
    if failed:
        errors = {str(log): type(error).__name__ for log, error in outcomes.items() if error is not None}
        write_line("group.commit", body.group, "refused", errors=errors)
    answer = OffsetsCommitAnswer(body.group, results, len(results) - failed, failed)
    return json_response(answer, 409 if failed else 200)


@post(
    "/offsets/fetch",
    status_code=200,
    opt={Access.KEY: Access.READ},
    summary="Positions of a group",
    operation_class=operation(OffsetsFetch, {200: (OffsetsFetchAnswer, "The positions; null where there is none.")}),
)
async def fetch_offsets(request: Request) -> Response[bytes]:  # type: ignore[type-arg]
    body = await decoded_body(request, OffsetsFetch)
    logs = None
    check_rights(runtime_of(request), record_of(request), ResourceType.GROUP, (body.group,))
    if body.topic_partitions is not None:
        logs = [
            checked_log(wanted.topic, wanted.partition, f"topic_partitions[{number}].topic")
            for number, wanted in enumerate(body.topic_partitions)
        ]
        check_rights(runtime_of(request), record_of(request), ResourceType.TOPIC, {log.topic for log in logs})
    found = await runtime_of(request).services.positions.fetch(body.group, logs)
    if logs is None:
        found = {log: position for log, position in found.items() if _is_shown(request, log)}
    return json_response(OffsetsFetchAnswer(body.group, [_fetched(log, found[log]) for log in found]))


def _check_rights(request: AnyRequest, group: str, logs: Iterable[Log]) -> None:
    """The group's first, as in Kafka."""
    check_rights(runtime_of(request), record_of(request), ResourceType.GROUP, (group,))
    check_rights(runtime_of(request), record_of(request), ResourceType.TOPIC, {log.topic for log in logs})


def _is_shown(request: AnyRequest, log: Log) -> bool:
    return sees(runtime_of(request), record_of(request), ResourceType.TOPIC, log.topic, Operation.DESCRIBE)


def plan_positions(body: OffsetsCommit) -> dict[Log, Position]:
    positions: dict[Log, Position] = {}
    for number, wanted in enumerate(body.offsets):
        log = checked_log(wanted.topic, wanted.partition, f"offsets[{number}].topic")
        if log in positions:
            raise InvalidArgument(f"offsets[{number}]", f"{log} is named twice")
        positions[log] = Position(wanted.offset, wanted.metadata)
    return positions


def _result(log: Log, offset: int, error: LogError | None) -> OffsetCommitResult:
    if error is None:
        return OffsetCommitResult(log.topic, log.partition, True, offset)
    return OffsetCommitResult(log.topic, log.partition, False, offset, type(error).__name__, str(error))


def _fetched(log: Log, committed: CommittedPosition | None) -> OffsetFetched:
    if committed is None:
        return OffsetFetched(log.topic, log.partition, None)
    position = committed.position
    return OffsetFetched(log.topic, log.partition, position.offset, position.metadata, committed.committed_at_ms)
