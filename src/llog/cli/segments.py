"""`llog segments …`: the segment catalogue: the segments of each log, their state, and the one that holds an offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from llog.cli.exits import NOT_FOUND
from llog.cli.frame import Partition, TopicName, on_log, with_stores
from llog.cli.output import AsJson, instant, print_json, print_report, print_result, print_table

if TYPE_CHECKING:
    from llog.formats.values import SegmentRecord
    from llog.log.catalogue import SegmentCatalogue
    from llog.settings import Settings

app = typer.Typer(help="The segment catalogue: list segments, find the one with an offset.", no_args_is_help=True)

OnePartition = Annotated[int | None, typer.Argument(help="One partition; all of them when left out.")]
Epoch = Annotated[int | None, typer.Option("--epoch", min=0, help="Only segments with offsets of this epoch.")]


@app.command(name="list")
@with_stores("metadata")
def list_(
    settings: Settings,
    topic: TopicName,
    partition: OnePartition = None,
    epoch: Epoch = None,
    as_json: AsJson = False,
) -> None:
    """List the segments of a topic's logs, ordered by offset."""
    segments = [
        (catalogue, record, record.segment_id in referenced)
        for catalogue in _load(settings, topic, partition)
        for referenced in (_referenced(catalogue),)
        for record in catalogue.segments(epoch)
    ]
    # Few columns: the segment id, which `describe` takes, fills half of a terminal.
    rows = [
        (
            record.segment_id,
            str(catalogue.log),
            f"{record.start_offset} … {record.end_offset}",
            _state(record, referenced),
            _epochs(record),
            f"{record.size_bytes:,}",
        )
        for catalogue, record, referenced in segments
    ]
    columns = ("segment", "log", "offsets", "state", "epochs", "bytes")
    print_report(as_json, [_document(*one) for one in segments], columns, rows)


@app.command()
@with_stores("metadata")
def describe(
    settings: Settings, topic: TopicName, partition: Partition, segment_id: str, as_json: AsJson = False
) -> None:
    """Show the record of one segment."""
    from llog.errors import SegmentNotFound

    [catalogue] = _load(settings, topic, partition)
    try:
        record = catalogue.get(segment_id)
    except SegmentNotFound as error:
        typer.echo(f"llog: {error}; `llog segments list {topic} {partition}` shows the segments", err=True)
        raise typer.Exit(NOT_FOUND) from None
    referenced = segment_id in _referenced(catalogue)
    rows = [
        ("segment", record.segment_id),
        ("log", f"{catalogue.log}, incarnation {record.incarnation}"),
        ("state", f"{_state(record, referenced)} since {instant(record.state_changed_at_ms)}"),
        ("offsets", f"{record.start_offset} … {record.end_offset}"),
        ("epochs", _epochs(record) or "not known yet"),
        ("bytes", f"{record.size_bytes:,}"),
        ("max timestamp", instant(record.max_timestamp_ms)),
        ("object", record.data_key),
        ("sources", "\n".join(record.sources) or "none"),
        ("custom metadata", record.custom_metadata or "none"),
    ]
    print_report(as_json, _document(catalogue, record, referenced), ("field", "value"), rows)


@app.command()
@with_stores("metadata")
def find(
    settings: Settings,
    topic: TopicName,
    partition: Partition,
    offset: int,
    epoch: Annotated[
        int | None, typer.Option("--epoch", min=0, help="The epoch the offset was written in; any when left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the finished segment that holds OFFSET; exit code 5 when none does (it may still be in the WAL)."""
    [catalogue] = _load(settings, topic, partition)
    epochs = sorted(catalogue.epochs, reverse=True) if epoch is None else [epoch]
    matches = [(one, record) for one in epochs if (record := catalogue.find(one, offset)) is not None]
    if not matches:
        where = "" if epoch is None else f" of epoch {epoch}"
        highest = {one: catalogue.highest_offset(one) for one in epochs}
        reach = ", ".join(f"epoch {one} reaches {last}" for one, last in highest.items() if last is not None)
        text = f"no segment of {catalogue.log} holds offset {offset}{where}: {reach or 'the log has no segment'}"
        typer.echo(f"llog: {text}", err=True)
        raise typer.Exit(NOT_FOUND)
    its_epoch, record = matches[0]
    text = f"{record.segment_id} (epoch {its_epoch}): {record.start_offset} … {record.end_offset}\n{record.data_key}"
    print_result(as_json, {**_document(catalogue, record, True), "epoch": its_epoch}, text)


@app.command()
@with_stores("metadata")
def size(settings: Settings, topic: TopicName, partition: OnePartition = None, as_json: AsJson = False) -> None:
    """Show how many bytes the segments of each log take up. Records in the WAL are not counted."""
    documents = [_size(catalogue) for catalogue in _load(settings, topic, partition)]
    rows = [
        (
            str(one["partition"]),
            str(one["segments"]),
            f"{one['size_bytes']:,}",
            f"{one['referenced_bytes']:,}",
            ", ".join(f"epoch {epoch}: {highest}" for epoch, highest in one["highest_offsets"].items()),
        )
        for one in documents
    ]
    print_report(as_json, documents, ("partition", "segments", "bytes", "referenced bytes", "highest offsets"), rows)


@app.command()
@with_stores("metadata")
def deletion(settings: Settings, topic: TopicName, as_json: AsJson = False) -> None:
    """Show how far the deletion of a topic has come, log by log."""
    from llog.log.catalogue import deletion_of
    from llog.log.keys import check_topic

    state = on_log(settings, lambda context: deletion_of(context, check_topic(topic)))
    if as_json:
        print_json({**state._asdict(), "done": state.done})
        return
    typer.echo(f"{state.topic}: {state.state}, incarnation {state.incarnation}")
    print_table(("partition", "deletion"), [(str(n), one or "not begun") for n, one in enumerate(state.partitions)])


def _load(settings: Settings, topic: str, partition: int | None) -> list[SegmentCatalogue]:
    from llog.cli.seek import read_spans
    from llog.log.catalogue import SegmentCatalogue
    from llog.log.context import LogContext

    async def load(context: LogContext) -> list[SegmentCatalogue]:
        return [
            await SegmentCatalogue.load(context, span.log) if span.initialized else SegmentCatalogue(context, span.log)
            for span in await read_spans(context, topic, partition)
        ]

    return on_log(settings, load)


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
