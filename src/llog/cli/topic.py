"""`llog topic …`: create, describe, change and delete topics.

`topic delete` deletes the incarnation it showed: a topic of the same name that another client creates while the
question is open is not deleted by the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from llog.cli.frame import TopicName, on_log, with_stores
from llog.cli.output import AsJson, DryRun, Yes, ask, print_json, print_report, print_result, print_table

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from llog.formats.values import TopicRecord, TopicState
    from llog.log.context import LogContext
    from llog.log.topics.admin import Topic
    from llog.settings import Settings

app = typer.Typer(help="Create, describe, change and delete topics.", no_args_is_help=True)

Configs = Annotated[
    list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A topic config; repeatable.")
]


# -- changes ---------------------------------------------------------------------------------------------------------


@app.command()
@with_stores("metadata", audit="topic.create")
def create(
    settings: Settings,
    topic: TopicName,
    partitions: Annotated[int, typer.Option("--partitions", "-p", help="The number of partitions.")] = 1,
    config: Configs = None,
    first_offset: Annotated[
        int | None,
        typer.Option("--first-offset", help="The first offset of its logs; 1, or that of a deleted predecessor."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a topic and its logs. The name of a deleted topic can be used again."""
    from llog.log.keys import check_topic
    from llog.log.topics.admin import create_topic

    configs = parse_configs(config or ())
    created = on_log(
        settings,
        lambda context: create_topic(
            context, check_topic(topic), partitions=partitions, config=configs, first_offset=first_offset
        ),
    )
    _print_changed(created, "created", as_json)


@app.command()
@with_stores("metadata", audit="topic.alter")
def alter(
    settings: Settings,
    topic: TopicName,
    config: Configs = None,
    default: Annotated[
        list[str] | None,
        typer.Option("--default", metavar="NAME", help="Reset this config to its default; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set configs, or reset them to their defaults. Configs that are not named stay."""
    from llog.errors import InvalidArgument
    from llog.log.keys import check_topic
    from llog.log.topics.admin import alter_topic

    put = parse_configs(config or ())
    if not put and not default:
        raise InvalidArgument("--config", "nothing to change: give --config NAME=VALUE or --default NAME")
    altered = on_log(settings, lambda context: alter_topic(context, check_topic(topic), put=put, remove=default or []))
    _print_changed(altered, "altered", as_json)


@app.command()
@with_stores("metadata", audit="topic.grow")
def partitions(
    settings: Settings,
    topic: TopicName,
    count: Annotated[int, typer.Argument(help="The new number of partitions; it cannot shrink.")],
    as_json: AsJson = False,
) -> None:
    """Add partitions to a topic. Clients that hash keys may send a key to another partition afterwards."""
    from llog.log.keys import check_topic
    from llog.log.topics.admin import add_partitions

    grown = on_log(settings, lambda context: add_partitions(context, check_topic(topic), count))
    _print_changed(grown, "extended", as_json)


def parse_configs(given: Sequence[str]) -> dict[str, str]:
    """Parse `name=value` words. Names and values are checked when the topic is changed."""
    from llog.errors import InvalidArgument

    configs: dict[str, str] = {}
    for word in given:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise InvalidArgument("--config", f"{word!r} must read NAME=VALUE, as in retention.ms=86400000")
        if name in configs:
            raise InvalidArgument("--config", f"{name} is given twice")
        configs[name] = value
    return configs


def _print_changed(topic: Topic, verb: str, as_json: bool) -> None:
    configs = _config_text(topic)
    text = f"{topic.name} {verb}: {topic.record.partition_count} partitions" + (f", {configs}" if configs else "")
    print_result(as_json, _document(topic), text)
    if not as_json:
        _note_without_effect(topic)


def _note_without_effect(topic: Topic) -> None:
    """Tell which configs of the topic are only stored."""
    from llog.log.topics.config import without_effect

    names = without_effect(topic.record.config)
    if names:
        verb = "has" if len(names) == 1 else "have"
        typer.echo(f"note: {', '.join(names)} {verb} no effect; docs/reference/topic-configs.md says why", err=True)


def _config_text(topic: Topic) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(topic.record.config.items()))


def _document(topic: Topic) -> dict[str, object]:
    from llog.log.topics.config import without_effect

    record = topic.record
    return {
        "topic": topic.name,
        "topic_id": record.topic_id,
        "state": record.state,
        "incarnation": record.incarnation,
        "partitions": record.partition_count,
        "first_offset": record.first_offset,
        "auto_created": record.auto_created,
        "config": dict(record.config),
        "without_effect": without_effect(record.config),
    }


# -- list and describe -----------------------------------------------------------------------------------------------


@app.command(name="list")
@with_stores("metadata")
def list_(
    settings: Settings,
    everything: Annotated[bool, typer.Option("--all", help="Also deleted topics and those being deleted.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the topics."""
    from llog.log.topics.admin import ONLY_LIVE, list_topics

    states: Collection[TopicState] = {"LIVE", "DELETING", "DELETED"} if everything else ONLY_LIVE
    topics = on_log(settings, lambda context: list_topics(context, states=states, strict=True))
    rows = [
        (topic.name, topic.record.state, str(topic.record.partition_count), _config_text(topic)) for topic in topics
    ]
    print_report(as_json, [_document(topic) for topic in topics], ("topic", "state", "partitions", "config"), rows)


@app.command()
@with_stores("metadata")
def describe(settings: Settings, topic: TopicName, as_json: AsJson = False) -> None:
    """Show a topic, its configs, and where each of its logs begins and ends."""
    from llog.log.keys import check_topic
    from llog.log.topics.admin import describe_topic
    from llog.log.topics.config import without_effect

    description = on_log(settings, lambda context: describe_topic(context, check_topic(topic)))
    if as_json:
        logs = [{**one._asdict(), "records": one.next_offset - one.log_start_offset} for one in description.partitions]
        print_json({**_document(description.topic), "partitions": logs})
        return
    record = description.topic.record
    idle = without_effect(record.config)
    fields = [
        ("topic", description.topic.name),
        ("id", record.topic_id),
        ("incarnation", str(record.incarnation)),
        ("partitions", str(record.partition_count)),
        ("created", "by a first write" if record.auto_created else "explicitly"),
        *((name, f"{value} (no effect)" if name in idle else value) for name, value in sorted(record.config.items())),
    ]
    print_table(("field", "value"), fields)
    typer.echo()
    rows = [
        (
            str(one.partition),
            one.log_state or "not created",
            str(one.log_start_offset),
            str(one.next_offset),
            str(one.next_offset - one.log_start_offset),
        )
        for one in description.partitions
    ]
    print_table(("partition", "state", "start", "next", "offsets"), rows)


# -- delete ----------------------------------------------------------------------------------------------------------


@app.command()
@with_stores("metadata", "objects", "wal", audit="topic.delete")
def delete(
    settings: Settings, topic: TopicName, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Delete a topic and all its records, or finish an interrupted deletion."""
    from llog.log.topics.delete import delete_topic

    record, offsets = on_log(settings, lambda context: _read(context, topic))
    begun = " (its deletion has begun)" if record.state == "DELETING" else ""
    described = f"{topic}{begun}: {record.partition_count} partitions, {offsets} offsets"
    if dry_run:
        document = {"topic": topic, "state": record.state, "partitions": record.partition_count, "offsets": offsets}
        print_result(as_json, {**document, "dry_run": True}, f"would delete {described}; nothing was changed")
        return
    if not yes:
        ask(f"Delete {described}? This cannot be undone")
    done = on_log(settings, lambda context: delete_topic(context, topic, record.incarnation), title=f"deleting {topic}")
    removed = f"{done.entries_removed} index entries and {done.segments_removed} segments removed"
    text = f"{topic} deleted: {removed}; `llog vacuum` removes its blobs after their grace"
    print_result(as_json, {**done._asdict(), "dry_run": False}, text)


async def _read(context: LogContext, topic: str) -> tuple[TopicRecord, int]:
    """The record of the incarnation to delete, and how many offsets its logs hold."""
    from llog.errors import TopicNotFound
    from llog.log.keys import check_topic
    from llog.log.topics.admin import describe_topic
    from llog.log.topics.create import load_topic

    loaded = await load_topic(context, check_topic(topic), strict=True)
    if loaded is None or loaded[0].state == "DELETED":
        raise TopicNotFound(topic, "no such topic; `llog topic list` shows the topics")
    if loaded[0].state == "DELETING":
        return loaded[0], 0
    described = await describe_topic(context, topic)
    return described.topic.record, sum(one.next_offset - one.log_start_offset for one in described.partitions)
