"""`llog topic …`: create, look at, change and delete topics.

What must stay true: a deletion that was agreed to is of the life that was shown; a topic of the same name that somebody
creates while the question stands is never deleted by the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from llog.cli.output import AsJson, ask, print_json, print_table
from llog.cli.stores import MetadataUrl, ObjectsUrl, WalUrl

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from llog.formats.values import TopicRecord, TopicState
    from llog.log.topics.admin import Topic, TopicDescription
    from llog.log.topics.delete import TopicDeleted
    from llog.settings import Settings

app = typer.Typer(help="Create, look at, change and delete topics.", no_args_is_help=True)

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
Configs = Annotated[
    list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A topic config; may be given many times.")
]


# -- changes ---------------------------------------------------------------------------------------------------------


@app.command()
def create(
    topic: TopicName,
    partitions: Annotated[int, typer.Option("--partitions", "-p", help="How many logs it has.")] = 1,
    config: Configs = None,
    first_offset: Annotated[
        int | None, typer.Option("--first-offset", help="Where its logs begin; 1, or as in its life before.")
    ] = None,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
) -> None:
    """Create a topic with all its logs; also one that was deleted, for a new life."""
    import asyncio

    from llog.settings import Settings

    configs = parse_configs(config or ())
    settings = Settings.from_env(metadata_url=metadata_url)
    made = asyncio.run(_create(settings, topic, partitions, configs, first_offset))
    _print_changed(made, "created", as_json)


async def _create(
    settings: Settings, topic: str, partitions: int, config: dict[str, str], first_offset: int | None
) -> Topic:
    from llog.log.keys import check_topic
    from llog.log.topics.admin import create_topic
    from llog.opening import opened_log

    async with opened_log(settings) as stores:
        return await create_topic(
            stores.context, check_topic(topic), partitions=partitions, config=config, first_offset=first_offset
        )


@app.command()
def alter(
    topic: TopicName,
    config: Configs = None,
    default: Annotated[
        list[str] | None,
        typer.Option("--default", metavar="NAME", help="Back to its default; may be given many times."),
    ] = None,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
) -> None:
    """Set some configs, and bring others back to their default; those not named stay."""
    import asyncio

    from llog.errors import InvalidArgument
    from llog.settings import Settings

    put = parse_configs(config or ())
    if not put and not default:
        raise InvalidArgument("--config", "nothing to change: give --config NAME=VALUE or --default NAME")
    changed = asyncio.run(_alter(Settings.from_env(metadata_url=metadata_url), topic, put, default or []))
    _print_changed(changed, "altered", as_json)


async def _alter(settings: Settings, topic: str, put: dict[str, str], remove: list[str]) -> Topic:
    from llog.log.keys import check_topic
    from llog.log.topics.admin import alter_topic
    from llog.opening import opened_log

    async with opened_log(settings) as stores:
        return await alter_topic(stores.context, check_topic(topic), put=put, remove=remove)


@app.command()
def partitions(
    topic: TopicName,
    count: Annotated[int, typer.Argument(help="How many it shall have; not fewer than now.")],
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
) -> None:
    """Let a topic have more partitions. Keys that a client hashes land elsewhere from then on."""
    import asyncio

    from llog.settings import Settings

    grown = asyncio.run(_partitions(Settings.from_env(metadata_url=metadata_url), topic, count))
    _print_changed(grown, "has its partitions", as_json)


async def _partitions(settings: Settings, topic: str, count: int) -> Topic:
    from llog.log.keys import check_topic
    from llog.log.topics.admin import add_partitions
    from llog.opening import opened_log

    async with opened_log(settings) as stores:
        return await add_partitions(stores.context, check_topic(topic), count)


def parse_configs(given: Sequence[str]) -> dict[str, str]:
    """From `name=value` words; which names and values there are is the topic's own business."""
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


def _print_changed(topic: Topic, deed: str, as_json: bool) -> None:
    if as_json:
        print_json(_document(topic))
        return
    kept = ", ".join(f"{name}={value}" for name, value in sorted(topic.record.config.items()))
    typer.echo(f"{topic.name} {deed}: {topic.record.partition_count} partitions" + (f", {kept}" if kept else ""))


def _document(topic: Topic) -> dict[str, object]:
    record = topic.record
    return {
        "topic": topic.name,
        "topic_id": record.topic_id,
        "state": record.state,
        "incarnation": record.incarnation,
        "partitions": record.partition_count,
        "first_offset": record.first_offset,
        "config": dict(record.config),
    }


# -- looking ---------------------------------------------------------------------------------------------------------


@app.command(name="list")
def list_(
    everything: Annotated[bool, typer.Option("--all", help="Also those deleted, or being deleted.")] = False,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
) -> None:
    """List the topics."""
    import asyncio

    from llog.settings import Settings

    found = asyncio.run(_list(Settings.from_env(metadata_url=metadata_url), everything))
    if as_json:
        print_json([_document(topic) for topic in found])
        return
    rows = [
        (
            topic.name,
            topic.record.state,
            str(topic.record.partition_count),
            ", ".join(f"{name}={value}" for name, value in sorted(topic.record.config.items())),
        )
        for topic in found
    ]
    print_table(("topic", "state", "partitions", "config"), rows)


async def _list(settings: Settings, everything: bool) -> list[Topic]:
    from llog.log.topics.admin import ONLY_LIVE, list_topics
    from llog.opening import opened_log

    async with opened_log(settings) as stores:
        states: Collection[TopicState] = {"LIVE", "DELETING", "DELETED"} if everything else ONLY_LIVE
        return await list_topics(stores.context, states=states, strict=True)


@app.command()
def describe(topic: TopicName, as_json: AsJson = False, metadata_url: MetadataUrl = None) -> None:
    """Show a topic, its configs, and where each of its logs begins and ends."""
    import asyncio

    from llog.settings import Settings

    found = asyncio.run(_describe(Settings.from_env(metadata_url=metadata_url), topic))
    if as_json:
        rows = [{**one._asdict(), "records": one.next_offset - one.log_start_offset} for one in found.partitions]
        print_json({**_document(found.topic), "partitions": rows})
        return
    record = found.topic.record
    fields = [
        ("topic", found.topic.name),
        ("id", record.topic_id),
        ("life", str(record.incarnation)),
        ("partitions", str(record.partition_count)),
        *sorted(record.config.items()),
    ]
    print_table(("field", "value"), fields)
    typer.echo()
    columns = ("partition", "state", "start", "next", "offsets")
    print_table(columns, [
        (
            str(one.partition),
            one.log_state or "not there yet",
            str(one.log_start_offset),
            str(one.next_offset),
            str(one.next_offset - one.log_start_offset),
        )
        for one in found.partitions
    ])  # fmt: skip


async def _describe(settings: Settings, topic: str) -> TopicDescription:
    from llog.log.keys import check_topic
    from llog.log.topics.admin import describe_topic
    from llog.opening import opened_log

    async with opened_log(settings) as stores:
        return await describe_topic(stores.context, check_topic(topic))


# -- delete ----------------------------------------------------------------------------------------------------------


@app.command()
def delete(
    topic: TopicName,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
    objects_url: ObjectsUrl = None,
    wal_url: WalUrl = None,
) -> None:
    """Delete a topic and all its records, or go on with a deletion that was interrupted."""
    import asyncio

    from llog.settings import Settings

    settings = Settings.from_env(metadata_url=metadata_url, objects_url=objects_url, wal_url=wal_url)
    dying, offsets = asyncio.run(_dying(settings, topic))
    if dry_run:
        if as_json:
            document = {"topic": topic, "state": dying.state, "partitions": dying.partition_count, "offsets": offsets}
            print_json({**document, "dry_run": True})
        else:
            typer.echo(f"would delete {_words(topic, dying, offsets)}; nothing was changed")
        return
    if not yes:
        ask(f"Delete {_words(topic, dying, offsets)}? It cannot be undone")
    done = asyncio.run(_delete(settings, topic, dying.incarnation))
    if as_json:
        print_json({**done._asdict(), "dry_run": False})
    else:
        removed = f"{done.entries_removed} index entries and {done.segments_removed} segments removed"
        typer.echo(f"{topic} deleted: {removed}; `llog vacuum` takes its blobs when their grace is over")


def _words(topic: str, dying: TopicRecord, offsets: int) -> str:
    begun = ", whose deletion was begun" if dying.state == "DELETING" else ""
    return f"{topic}{begun}: {dying.partition_count} partitions, {offsets} offsets"


async def _dying(settings: Settings, topic: str) -> tuple[TopicRecord, int]:
    """The life that is meant, and how many offsets its logs hold."""
    from llog.errors import TopicNotFound
    from llog.log.keys import check_topic
    from llog.log.topics.admin import describe_topic
    from llog.log.topics.create import load_topic
    from llog.opening import opened_log

    async with opened_log(settings) as stores:
        found = await load_topic(stores.context, check_topic(topic), strict=True)
        if found is None or found[0].state == "DELETED":
            raise TopicNotFound(topic, "no such topic; `llog topic list` shows those there are")
        if found[0].state == "DELETING":
            return found[0], 0
        described = await describe_topic(stores.context, topic)
        return described.topic.record, sum(one.next_offset - one.log_start_offset for one in described.partitions)


async def _delete(settings: Settings, topic: str, incarnation: int) -> TopicDeleted:
    from llog.cli.progress import progress_line
    from llog.log.topics.delete import delete_topic
    from llog.opening import opened_log

    async with opened_log(settings) as stores:
        with progress_line(f"deleting {topic}"):
            return await delete_topic(stores.context, topic, incarnation)
