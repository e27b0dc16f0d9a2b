"""An Iceberg table as the target of an export: files by the tasks, offsets in the snapshot that adds them.

Each round is one snapshot. Its summary says how far the topic is in the table (`llog.offsets.{topic}`), so files and
offsets appear together or not at all, and rolling the table back rolls the offsets back. The newest ancestor of the
current snapshot that names the topic counts: other writers (compaction of the table, say) may stand in between. The
same words are a table property too, for when expired snapshots took the summaries with them.

What must stay true: a commit goes on top of the very snapshot that the offsets were read from. The library would take
a refused commit, put it on top of whatever is there now and try again: two exporters at once would add their records
twice. So its own retries are off here; a commit that was refused is tried again only after a look that shows the
topic's offsets unmoved. Files of a round that came to nothing are named by nobody, and stay for the table's own
clean-up of orphan files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

import msgspec
import pyarrow as pa

from llog.errors import ExportFailed, ExportNotInstalled, ExportRefused, ExportUncertain, InvalidArgument
from llog.limits import EXPORT_CONFLICTS_MAX
from llog.pipeline.export.plan import ExportPlan, Subject
from llog.pipeline.export.target import Place, Progress, check_subject
from llog.pipeline.export.task import ExportWritten
from llog.settings import Settings
from llog.settings.urls import mask_url

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

P = ParamSpec("P")
T = TypeVar("T")
OFFSETS: Final = "llog.offsets."
"""Before the topic's name: key of a snapshot's summary and of a table's property."""
_RETRIES: Final = "commit.retry.num-retries"
_FORMAT: Final = 1


class TableProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a topic is in a table."""

    v: int = _FORMAT
    export_id: str
    """Of the commit: what a lost answer is found out by."""
    number: int
    subject: Subject
    next_offsets: dict[int, int]
    quarantine: tuple[str, ...] = ()
    """The names of files with records of this commit that could not be decoded."""


def open_catalogue(settings: Settings, url: str | None = None, *, warehouse: str | None = None) -> Catalog:
    """A catalogue by its URL: `sqlite:///…` or another database's, `http(s)://…` (REST), `thrift://…` (Hive), or
    `pyiceberg:NAME` for one that the library's own configuration describes. None: SQLite in the data directory."""
    try:
        from pyiceberg.catalog import load_catalog

        from llog.pipeline.export.iceberg_files import IMPLEMENTATION
    except ImportError as error:
        raise ExportNotInstalled("pyiceberg", str(error)) from None
    warehouse = warehouse or f"{settings.objects_url.rstrip('/')}/warehouse"
    if "#" in warehouse or "?" in warehouse:
        raise InvalidArgument("warehouse", f"{warehouse!r} holds # or ?, where the library would cut a name off")
    properties = {"warehouse": warehouse, "py-io-impl": IMPLEMENTATION}
    properties |= {name: value for name, value in _s3_properties(settings).items() if value}
    if url is None:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        url = f"sqlite:///{settings.data_dir}/iceberg.db"
    try:
        if url.startswith("pyiceberg:"):
            return load_catalog(url.removeprefix("pyiceberg:"))
        return load_catalog("llog", uri=url, **properties)
    except ValueError as error:
        raise InvalidArgument("catalogue", f"{mask_url(url)}: {error}") from error
    except Exception as error:  # a driver that is missing, an address nobody answers at
        away = isinstance(error, OSError) or (type(error).__name__ == "OperationalError" and "sqlite" not in url)
        raise ExportFailed(f"catalogue {mask_url(url)}", _first_line(error), retriable=away) from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _s3_properties(settings: Settings) -> dict[str, str | None]:
    return {
        "s3.endpoint": settings.s3_endpoint_url,
        "s3.region": settings.s3_region_name,
        "s3.access-key-id": settings.s3_access_key_id,
        "s3.secret-access-key": settings.s3_secret_access_key,
        "s3.session-token": settings.s3_session_token,
    }


class IcebergTarget:
    """One table. Made by `open`; not for two tasks at once."""

    def __init__(self, catalogue: Catalog, table: Table, name: str, random_bits: Callable[[int], int]) -> None:
        self._catalogue, self._table, self._name, self._random_bits = catalogue, table, name, random_bits
        self.title = f"iceberg:{name}"
        self._export_id = ""
        self._before: TableProgress | None = None

    @classmethod
    async def open(
        cls,
        catalogue: Catalog,
        name: str,
        schema: pa.Schema,
        random_bits: Callable[[int], int],
        *,
        by_date: bool = True,
    ) -> IcebergTarget:
        """The table, made if it is not there, with these columns; `ExportRefused` if it has others."""
        table = await _aside(f"iceberg:{name}", _load_or_create, catalogue, name, schema, by_date)
        _check_columns(name, table, schema)
        if not by_date and {field.source_id for field in table.spec().fields} - {_id_of(table, "partition")}:
            reason = "is divided by more than the partition, so that files must be divided by date, too"
            raise ExportRefused(f"iceberg:{name}", reason)
        return cls(catalogue, table, name, random_bits)

    def place(self) -> Place:
        return Place(store_url_of(self._table.location()), "data", "quarantine")

    async def progress(self, subject: Subject) -> Progress:
        self._table = await _aside(self.title, self._catalogue.load_table, self._name)
        self._before = progress_of(self._table, subject.topic)
        # New names for each round: files of one that came to nothing may still be there.
        self._export_id = f"{self._random_bits(64):016x}"
        if self._before is None:
            return Progress(1, {})
        check_subject(self.title, subject, self._before.subject)
        return Progress(self._before.number + 1, self._before.next_offsets)

    async def begin(self, plan: ExportPlan) -> ExportPlan:
        return plan

    def file_name(self, plan: ExportPlan, split: int) -> str:
        return f"{plan.number:012d}-{split:06d}-{self._export_id}"

    async def commit(self, plan: ExportPlan, written: Sequence[ExportWritten]) -> bool:
        place = self.place()
        files = [f"{place.store_url}/{file.name}" for one in written for file in one.files]
        now = TableProgress(
            export_id=self._export_id,
            number=plan.number,
            subject=plan.subject,
            next_offsets=plan.next_offsets,
            quarantine=tuple(file.name for one in written for file in one.quarantine),
        )
        for _ in range(EXPORT_CONFLICTS_MAX):
            if await self._committed(files, now):
                return True
            self._table = await _aside(self.title, self._catalogue.load_table, self._name)
            if progress_of(self._table, plan.subject.topic) != self._before:
                return False
        raise ExportFailed(self.title, "other writers of the table kept committing first", retriable=True)

    async def close(self) -> None:
        """The library keeps no connection that must be closed but a database's, which ends with the process."""

    async def _committed(self, files: list[str], now: TableProgress) -> bool:
        """False: refused, because the table changed. Any other error may hide a commit that happened: look."""
        from pyiceberg.exceptions import CommitFailedException

        try:
            await asyncio.to_thread(_commit, self._table, files, now)
            return True
        except CommitFailedException:
            return False
        except OverflowError as error:  # before anything was sent: the days of these files cannot be told
            reason = (
                "a record's timestamp is not of the years 1 to 9999, which is all that the table's library can tell"
            )
            raise ExportFailed(self.title, f"{reason} (a clock in microseconds?); parquet: targets hold it") from error
        except Exception as error:
            there = None
            try:
                self._table = await asyncio.to_thread(self._catalogue.load_table, self._name)
                there = progress_of(self._table, now.subject.topic)
            except Exception as second:
                raise ExportUncertain(self.title, f"{type(error).__name__}: {error}") from second
            if there is not None and there.export_id == now.export_id:
                return True
            raise ExportFailed(self.title, f"commit: {type(error).__name__}: {error}", retriable=True) from error


def progress_of(table: Table, topic: str) -> TableProgress | None:
    """What the table says of a topic: its newest snapshot that does. The property counts only where snapshots before
    the oldest were expired (the first one ever has sequence number 1): on a table that was rolled back it says too
    much."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        said = None if snapshot.summary is None else snapshot.summary.additional_properties.get(OFFSETS + topic)
        if said is not None:
            return _decoded(said, table)
        parent = None if snapshot.parent_snapshot_id is None else table.snapshot_by_id(snapshot.parent_snapshot_id)
        if parent is None and (snapshot.sequence_number or 0) > 1:
            said = table.properties.get(OFFSETS + topic)
            return None if said is None else _decoded(said, table)
        snapshot = parent
    return None


def _decoded(text: str, table: Table) -> TableProgress:
    title = f"iceberg:{'.'.join(table.name())}"
    try:
        said = msgspec.json.decode(text, type=TableProgress)
    except msgspec.DecodeError as error:
        raise ExportRefused(title, f"what it says of its offsets cannot be read: {error}") from None
    if said.v > _FORMAT:
        raise ExportRefused(title, f"a newer release wrote its offsets (v {said.v}, this one knows {_FORMAT})")
    return said


def _commit(table: Table, files: list[str], now: TableProgress) -> None:
    """One snapshot with the files and the offsets. Blocks."""
    # Only in this copy: the table keeps its own settings.
    unmoved = {**table.metadata.properties, _RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": unmoved})
    said = {OFFSETS + now.subject.topic: msgspec.json.encode(now).decode()}
    changes = table.transaction()
    if files:
        changes.add_files(files, snapshot_properties=said, check_duplicate_files=False)
    else:
        with changes.update_snapshot(snapshot_properties=said).fast_append():
            pass  # offsets alone: what they cover was removed by key compaction, or is in quarantine
    changes.set_properties(said)
    changes.commit_transaction()


def _load_or_create(catalogue: Catalog, name: str, schema: pa.Schema, by_date: bool) -> Table:
    from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import assign_fresh_schema_ids
    from pyiceberg.transforms import DayTransform, IdentityTransform

    namespace = name.rpartition(".")[0]
    if not namespace or not all(part.strip() for part in name.split(".")):
        raise InvalidArgument("table", f"{name!r} must be namespace.table")
    try:
        return catalogue.load_table(name)
    except NoSuchTableError:
        pass
    try:
        columns = assign_fresh_schema_ids(catalogue._convert_schema_if_needed(schema))
    except ValueError as error:  # a.b, and b in a, are one name there
        raise InvalidArgument("schema", f"cannot be a table's: {error}") from None
    fields = [
        PartitionField(columns.find_field("partition").field_id, 1000, IdentityTransform(), "partition"),
        PartitionField(columns.find_field("timestamp").field_id, 1001, DayTransform(), "timestamp_day"),
    ]
    catalogue.create_namespace_if_not_exists(namespace)
    try:
        return catalogue.create_table(name, columns, partition_spec=PartitionSpec(*fields[: 2 if by_date else 1]))
    except TableAlreadyExistsError:
        return catalogue.load_table(name)


def _check_columns(name: str, table: Table, schema: pa.Schema) -> None:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    there = {field.name: field.type for field in schema_to_pyarrow(table.schema(), include_field_ids=False)}
    for field in schema:
        if field.name not in there:
            raise ExportRefused(f"iceberg:{name}", f"has no column {field.name}; it was made for another export")
        if _plain(there[field.name]) != _plain(field.type):
            kinds = f"{there[field.name]}, and would have to be {field.type}"
            raise ExportRefused(f"iceberg:{name}", f"its column {field.name} is {kinds}")


def _id_of(table: Table, column: str) -> int:
    return table.schema().find_field(column).field_id


def _plain(kind: Any) -> str:
    """Large and small variants are one type on disk, and so are the two names that a list's member goes by."""
    return str(kind).replace("large_", "").replace("list<item: ", "list<element: ")


def store_url_of(location: str) -> str:
    """A table's location as the URL of an object store."""
    if location.startswith("/"):
        return f"file://{location}"
    scheme, _, rest = location.partition("://")
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}"


async def _aside(title: str, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """In a thread: the library blocks. What goes wrong in it is the target's trouble."""
    from llog.errors import LlogError

    try:
        return await asyncio.to_thread(function, *arguments, **named)
    except LlogError:
        raise
    except FileNotFoundError as error:
        reason = f"{_first_line(error)}: the catalogue names it, so somebody removed it"
        raise ExportRefused(title, f"{reason}; bring it back, drop the table there, or export into another") from error
    except Exception as error:
        raise ExportFailed(title, _first_line(error), retriable=True) from error
