"""`llog segments …`: the segment catalogue: which segments logs have, in which state, and which one holds an offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from llog.cli.exits import NOT_FOUND
from llog.cli.output import AsJson, print_json, print_table
from llog.cli.stores import MetadataUrl

if TYPE_CHECKING:
    from llog.formats.values import SegmentRecord
    from llog.log.catalogue import SegmentCatalogue, TopicDeletion
    from llog.settings import Settings

app = typer.Typer(help="The segment catalogue: list segments, find the one with an offset.", no_args_is_help=True)

Partition = Annotated[int | None, typer.Argument(help="One partition; all of them when left out.")]


@app.command(name="list")
def list_(
    topic: str,
    partition: Partition = None,
    epoch: Annotated[int | None, typer.Option("--epoch", min=0, help="Only those with offsets of this epoch.")] = None,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
) -> None:
    """List the segments of a topic's logs, by offset."""
    import asyncio

    from llog.settings import Settings

    catalogues = asyncio.run(_load(Settings.from_env(metadata_url=metadata_url), topic, partition))
    found = [
        (catalogue, record, record.segment_id in referenced)
        for catalogue in catalogues
        for referenced in (_referenced(catalogue),)
        for record in catalogue.segments(epoch)
    ]
    if as_json:
        print_json([_document(*one) for one in found])
        return
    # Few columns: half of a terminal's width is the name that `describe` is asked with.
    columns = ("segment", "log", "offsets", "state", "epochs", "bytes")
    rows = [
        (
            record.segment_id,
            str(catalogue.log),
            f"{record.start_offset} … {record.end_offset}",
            _state(record, referenced),
            _epochs(record),
            f"{record.size_bytes:,}",
        )
        for catalogue, record, referenced in found
    ]
    print_table(columns, rows)


@app.command()
def describe(
    topic: str, partition: int, segment_id: str, as_json: AsJson = False, metadata_url: MetadataUrl = None
) -> None:
    """Show one segment's record."""
    import asyncio

    from llog.errors import SegmentNotFound
    from llog.settings import Settings

    [catalogue] = asyncio.run(_load(Settings.from_env(metadata_url=metadata_url), topic, partition))
    try:
        record = catalogue.get(segment_id)
    except SegmentNotFound as error:
        typer.echo(f"llog: {error}; `llog segments list {topic} {partition}` shows those there are", err=True)
        raise typer.Exit(NOT_FOUND) from None
    referenced = segment_id in _referenced(catalogue)
    if as_json:
        print_json(_document(catalogue, record, referenced))
        return
    rows = [
        ("segment", record.segment_id),
        ("log", f"{catalogue.log}, life {record.incarnation}"),
        ("state", f"{_state(record, referenced)} since {_instant(record.state_changed_at_ms)}"),
        ("offsets", f"{record.start_offset} … {record.end_offset}"),
        ("epochs", _epochs(record) or "not known yet"),
        ("bytes", f"{record.size_bytes:,}"),
        ("max timestamp", _instant(record.max_timestamp_ms)),
        ("object", record.data_key),
        ("sources", "\n".join(record.sources) or "none"),
        ("custom metadata", record.custom_metadata or "none"),
    ]
    print_table(("field", "value"), rows)


@app.command()
def find(
    topic: str,
    partition: int,
    offset: int,
    epoch: Annotated[
        int | None, typer.Option("--epoch", min=0, help="The epoch it was written in; any when left out.")
    ] = None,
    as_json: AsJson = False,
    metadata_url: MetadataUrl = None,
) -> None:
    """Which finished segment holds OFFSET; exit code 5 when none does (it may still be in the WAL)."""
    import asyncio

    from llog.settings import Settings

    [catalogue] = asyncio.run(_load(Settings.from_env(metadata_url=metadata_url), topic, partition))
    epochs = sorted(catalogue.epochs, reverse=True) if epoch is None else [epoch]
    found = [(one, record) for one in epochs if (record := catalogue.find(one, offset)) is not None]
    if not found:
        where = "" if epoch is None else f" of epoch {epoch}"
        reached = {one: catalogue.highest_offset(one) for one in epochs}
        told = ", ".join(f"epoch {one} up to {highest}" for one, highest in reached.items() if highest is not None)
        typer.echo(
            f"llog: no segment of {catalogue.log} holds offset {offset}{where}: {told or 'none there'}", err=True
        )
        raise typer.Exit(NOT_FOUND)
    its_epoch, record = found[0]
    if as_json:
        print_json({**_document(catalogue, record, True), "epoch": its_epoch})
    else:
        typer.echo(f"{record.segment_id} (epoch {its_epoch}): {record.start_offset} … {record.end_offset}")
        typer.echo(record.data_key)


@app.command()
def size(topic: str, partition: Partition = None, as_json: AsJson = False, metadata_url: MetadataUrl = None) -> None:
    """How many bytes segments take up, log by log. What is still in the WAL is not in it."""
    import asyncio

    from llog.settings import Settings

    catalogues = asyncio.run(_load(Settings.from_env(metadata_url=metadata_url), topic, partition))
    documents = [_size(catalogue) for catalogue in catalogues]
    if as_json:
        print_json(documents)
        return
    rows = [
        (
            str(one["partition"]),
            str(one["segments"]),
            f"{one['size_bytes']:,}",
            f"{one['referenced_bytes']:,}",
            ", ".join(f"epoch {epoch} up to {highest}" for epoch, highest in one["highest_offsets"].items()),
        )
        for one in documents
    ]
    print_table(("partition", "segments", "bytes", "of these referenced", "highest offsets"), rows)


@app.command()
def deletion(topic: str, as_json: AsJson = False, metadata_url: MetadataUrl = None) -> None:
    """How far the deletion of a topic has come, log by log."""
    import asyncio

    from llog.settings import Settings

    found = asyncio.run(_deletion(Settings.from_env(metadata_url=metadata_url), topic))
    if as_json:
        print_json({**found._asdict(), "done": found.done})
        return
    typer.echo(f"{found.topic}: {found.state}, life {found.incarnation}")
    print_table(("partition", "deletion"), [(str(n), state or "not begun") for n, state in enumerate(found.partitions)])


async def _deletion(settings: Settings, topic: str) -> TopicDeletion:
    from llog.log.catalogue import deletion_of
    from llog.log.keys import check_topic
    from llog.opening import opened_log

    async with opened_log(settings) as stores:
        return await deletion_of(stores.context, check_topic(topic))


async def _load(settings: Settings, topic: str, partition: int | None) -> list[SegmentCatalogue]:
    from llog.cli.records.seeking import read_ends
    from llog.log.catalogue import SegmentCatalogue
    from llog.opening import opened_log
    from llog.pipeline.runtime.log_choice import logs_of

    async with opened_log(settings) as stores:
        ends = await read_ends(stores.context, await logs_of(stores.context, topic, partition))
        # A partition to which nothing was ever written has no segments.
        return [
            await SegmentCatalogue.load(stores.context, one.log)
            if one.there
            else SegmentCatalogue(stores.context, one.log)
            for one in ends
        ]


def _size(catalogue: SegmentCatalogue) -> dict[str, Any]:
    referenced = _referenced(catalogue)
    highest = {epoch: catalogue.highest_offset(epoch) for epoch in sorted(catalogue.epochs)}
    return {
        "topic": catalogue.log.topic,
        "partition": catalogue.log.partition,
        "segments": len(catalogue.segments()),
        "size_bytes": catalogue.log_size_bytes(),
        "referenced_bytes": sum(
            record.size_bytes for record in catalogue.segments() if record.segment_id in referenced
        ),
        "highest_offsets": {epoch: offset for epoch, offset in highest.items() if offset is not None},
    }


def _referenced(catalogue: SegmentCatalogue) -> frozenset[str]:
    return frozenset(one for state in catalogue.epochs.values() for one in state.referenced)


def _document(catalogue: SegmentCatalogue, record: SegmentRecord, referenced: bool) -> dict[str, object]:
    import msgspec

    fields: dict[str, object] = msgspec.to_builtins(record, str_keys=True)
    log = {"topic": catalogue.log.topic, "partition": catalogue.log.partition}
    return {**log, **fields, "referenced": referenced}


def _state(record: SegmentRecord, referenced: bool) -> str:
    replaced = record.state == "COPY_SEGMENT_FINISHED" and not referenced
    return record.state + (", replaced" if replaced else "")


def _epochs(record: SegmentRecord) -> str:
    return ", ".join(f"{epoch} from {start}" for epoch, start in sorted(record.epochs.items()))


def _instant(ms: int) -> str:
    """Timestamps are the producers' own, and need not be dates."""
    from datetime import UTC, datetime

    if ms < 0:
        return "unknown"
    try:
        return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms"
