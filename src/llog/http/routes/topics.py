"""Topics over HTTP: create, list, describe, alter, grow, delete. The functions of `log.topics` do the work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final

from litestar import Request, Response, delete, get, patch, post
from litestar.params import FromQuery, QueryParameter

from llog.errors import PartitionNotInitialized
from llog.formats.values import TopicRecord, decode_value
from llog.http.json.schemas import (
    ConfigValue,
    PartitionsAdd,
    PartitionState,
    TopicAlter,
    TopicCreate,
    TopicDeletionAnswer,
    TopicDetail,
    TopicList,
    TopicSummary,
)
from llog.http.routes.authorization import check_creation, sees
from llog.http.routes.openapi import QUERY, TopicInPath, changing, operation
from llog.http.routes.runtime import decoded_body, json_response, record_of, runtime_of
from llog.limits import METADATA_SCAN_PAGE_RECORDS_MAX
from llog.listener.tokens import Access
from llog.log.context import LogContext
from llog.log.inspect.describe import describe_log
from llog.log.keys import TOPIC_NAME_LENGTH_MAX, Log, check_topic
from llog.log.topics.admin import Topic, add_partitions, alter_topic, create_topic, describe_topic
from llog.log.topics.config import without_effect
from llog.log.topics.create import for_each_partition
from llog.log.topics.delete import delete_topic
from llog.security.acl import Operation, ResourceType
from llog.stores.metadata.port import after as after_segment
from llog.stores.metadata.port import last_segment

HTTP_TOPICS_PAGE_DEFAULT: Final = 1_000
"""Topics in one answer of `GET /topics`."""
HTTP_TOPICS_PAGE_MAX: Final = 10_000

_READ = {Access.KEY: Access.READ, QUERY: frozenset[str]()}
_TOPIC = "/topics/{topic:str}"
_GOING: Final = "The topic is being deleted."
_LIMIT: Final = f"The most topics to return; {HTTP_TOPICS_PAGE_DEFAULT} by default."
_AFTER: Final = "Return topics with names behind this one: `next_after` of the previous page."


@post(
    "/topics",
    status_code=201,
    opt=changing("topic.create"),
    summary="Create a topic with its partitions",
    operation_class=operation(
        TopicCreate,
        {201: (TopicSummary, "Created."), 409: (None, "The topic exists, or is being deleted.")},
    ),
)
async def create(request: Request) -> Response[bytes]:  # type: ignore[type-arg]
    body = await decoded_body(request, TopicCreate)
    record_of(request).subject = body.topic
    check_creation(runtime_of(request), record_of(request), (body.topic,))
    config = {name: config_text(value) for name, value in body.config.items()}
    context = runtime_of(request).services.context
    try:
        made = await create_topic(context, check_topic(body.topic), partitions=body.partitions, config=config)
    finally:
        runtime_of(request).services.topics.forget(body.topic)
    return json_response(_summary(made), 201)


@get(
    "/topics",
    opt={Access.KEY: Access.READ, QUERY: frozenset({"limit", "after"})},
    summary="The topics by name, a page at a time",
    operation_class=operation(None, {200: (TopicList, "The topics; `next_after` when there may be more.")}),
)
async def list_all(
    request: Request,  # type: ignore[type-arg]
    limit: Annotated[int, QueryParameter(gt=0, le=HTTP_TOPICS_PAGE_MAX, description=_LIMIT)] = HTTP_TOPICS_PAGE_DEFAULT,
    after: Annotated[str, QueryParameter(max_length=TOPIC_NAME_LENGTH_MAX, description=_AFTER)] = "",
) -> Response[bytes]:
    if after:
        check_topic(after)
    runtime, record = runtime_of(request), record_of(request)

    def shown(name: str) -> bool:
        return sees(runtime, record, ResourceType.TOPIC, name, Operation.DESCRIBE)

    topics = await _page(runtime.services.context, after, limit + 1, shown)
    more = len(topics) > limit
    return json_response(
        TopicList([_summary(topic) for topic in topics[:limit]], topics[limit - 1].name if more else "")
    )


async def _page(context: LogContext, after_name: str, count: int, shown: Callable[[str], bool]) -> list[Topic]:
    """The first `count` live topics behind a name, of those that are shown."""
    topics: list[Topic] = []
    start = after_segment(after_name) if after_name else ""
    while True:
        page = await context.metadata.scan(context.keys.topics(), start=start)
        for found in page:
            topic = Topic(last_segment(found.key.path), decode_value(TopicRecord, found.value, found.key.path))
            if topic.record.state == "LIVE" and shown(topic.name):
                topics.append(topic)
        if len(topics) >= count or len(page) < METADATA_SCAN_PAGE_RECORDS_MAX:
            return topics[:count]
        start = after_segment(last_segment(page[-1].key.path))


@get(
    _TOPIC,
    opt=_READ,
    summary="A topic, and the first and next offset of each of its logs",
    operation_class=operation(None, {200: (TopicDetail, "The topic."), 409: (None, _GOING)}),
)
async def describe(request: Request, topic: TopicInPath) -> Response[bytes]:  # type: ignore[type-arg]
    found = await describe_topic(runtime_of(request).services.context, check_topic(topic))
    partitions = [
        PartitionState(row.partition, row.log_state or "ABSENT", row.log_start_offset, row.next_offset)
        for row in found.partitions
    ]
    record = found.topic.record
    return json_response(
        TopicDetail(
            topic,
            record.topic_id,
            dict(record.config),
            record.created_at_ms,
            partitions,
            record.auto_created,
            without_effect(record.config),
        )
    )


@patch(
    _TOPIC,
    opt=changing("topic.alter"),
    summary="Set configs of a topic, or reset them to their defaults",
    operation_class=operation(TopicAlter, {200: (TopicSummary, "The topic as it is now."), 409: (None, _GOING)}),
)
async def alter(request: Request, topic: TopicInPath) -> Response[bytes]:  # type: ignore[type-arg]
    body = await decoded_body(request, TopicAlter)
    put = {name: config_text(value) for name, value in body.config.items() if value is not None}
    removed = [name for name, value in body.config.items() if value is None]
    services = runtime_of(request).services
    try:
        altered = await alter_topic(services.context, check_topic(topic), put=put, remove=removed)
    finally:
        services.topics.forget(topic)
    return json_response(_summary(altered))


@post(
    f"{_TOPIC}/partitions",
    status_code=200,
    opt=changing("topic.grow"),
    summary="Add partitions to a topic",
    operation_class=operation(PartitionsAdd, {200: (TopicSummary, "The topic as it is now."), 409: (None, _GOING)}),
)
async def grow(request: Request, topic: TopicInPath) -> Response[bytes]:  # type: ignore[type-arg]
    body = await decoded_body(request, PartitionsAdd)
    services = runtime_of(request).services
    try:
        grown = await add_partitions(services.context, check_topic(topic), body.count)
    finally:
        services.topics.forget(topic)
    return json_response(_summary(grown))


@delete(
    _TOPIC,
    status_code=200,
    opt=changing("topic.delete", "dry_run"),
    summary="Delete a topic and everything in it",
    operation_class=operation(
        None,
        {200: (TopicDeletionAnswer, "What was removed; with `dry_run`, what would be removed."), 409: (None, _GOING)},
    ),
)
async def remove(request: Request, topic: TopicInPath, dry_run: FromQuery[bool] = False) -> Response[bytes]:  # type: ignore[type-arg]
    services = runtime_of(request).services
    check_topic(topic)
    if dry_run:
        return json_response(await _would_remove(services.context, topic))
    try:
        done = await delete_topic(services.context, topic)
    finally:
        services.topics.forget(topic)
    for partition in range(done.partitions):
        services.log_changed(Log(topic, partition))
    return json_response(
        TopicDeletionAnswer(topic, False, done.partitions, done.entries_removed, done.segments_removed)
    )


async def _would_remove(context: LogContext, topic: str) -> TopicDeletionAnswer:
    count = len((await describe_topic(context, topic)).partitions)

    async def counted(partition: int) -> tuple[int, int]:
        try:
            found = await describe_log(context, Log(topic, partition))
        except PartitionNotInitialized:
            return 0, 0
        return found.index.entries, sum(state.count for state in found.segments.values())

    counts = await for_each_partition(count, counted)
    return TopicDeletionAnswer(
        topic, True, count, sum(entries for entries, _ in counts), sum(more for _, more in counts)
    )


def config_text(value: ConfigValue) -> str:
    """Configs are stored as text; JSON may hold numbers and booleans."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _summary(topic: Topic) -> TopicSummary:
    record = topic.record
    return TopicSummary(
        topic.name,
        record.topic_id,
        record.partition_count,
        dict(record.config),
        record.created_at_ms,
        record.auto_created,
        without_effect(record.config),
    )
