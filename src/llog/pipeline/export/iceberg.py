"""An Iceberg table as the target of an export: tasks write files, the snapshot that adds them holds the offsets.

Each round is one snapshot. Its summary holds the topic's offsets in the table (`llog.offsets.{topic}`), so files and
offsets appear together or not at all, and rolling the table back rolls the offsets back. The newest ancestor of the
current snapshot that names the topic counts, because other writers (such as a compaction of the table) may commit in
between. A table property holds the same value, in case the snapshots with the summaries expire.

A commit must be on top of the very snapshot that the offsets were read from. pyiceberg would rebase a refused commit on
the current snapshot and try again, so two concurrent exporters would add their records twice. Its retries are therefore
off; a refused commit is tried again only after a check that the topic's offsets have not moved. No snapshot names the
files of a failed round; the table's own clean-up of orphan files removes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from llog.errors import ExportFailed, ExportNotInstalled, ExportRefused, ExportUncertain, InvalidArgument
from llog.limits import EXPORT_CONFLICTS_MAX
from llog.pipeline.export.evolution import evolved
from llog.pipeline.export.plan import ExportPaths, ExportPlan, Progress, Subject, check_topic_id
from llog.pipeline.export.schema_ids import WriterSchemas
from llog.pipeline.export.task import ExportWritten, schema_ids_of
from llog.settings import Settings
from llog.settings.urls import mask_url

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

P = ParamSpec("P")
T = TypeVar("T")
OFFSETS: Final = "llog.offsets."
"""Followed by the topic: a key of snapshot summaries and table properties."""
_RETRIES: Final = "commit.retry.num-retries"
_FORMAT: Final = 1


class TableProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The offsets of a topic in a table."""

    v: int = _FORMAT
    export_id: str
    """Identifies the commit, to find out whether it took effect when its response is lost."""
    number: int
    subject: Subject
    next_offsets: dict[int, int]
    quarantine: tuple[str, ...] = ()
    """Files with records of this commit that could not be decoded."""
    schema_ids: tuple[int, ...] = ()
    """The schema ids that values of this commit named."""


def open_catalogue(settings: Settings, url: str | None = None, *, warehouse: str | None = None) -> Catalog:
    """A catalogue by its URL: `sqlite:///…` or another database's, `http(s)://…` (REST), `thrift://…` (Hive), or
    `pyiceberg:NAME` for one in pyiceberg's own configuration. None: SQLite in the data directory."""
    try:
        from pyiceberg.catalog import load_catalog

        from llog.pipeline.export.iceberg_files import IMPLEMENTATION
    except ImportError as error:
        raise ExportNotInstalled("pyiceberg", str(error)) from None
    warehouse = warehouse or f"{settings.objects_url.rstrip('/')}/warehouse"
    if "#" in warehouse or "?" in warehouse:
        raise InvalidArgument("warehouse", f"{warehouse!r} contains # or ?, where pyiceberg would cut off the name")
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
    except Exception as error:  # a missing driver, an address without a server
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
    """One table, created by `open`. For one task at a time."""

    def __init__(
        self, catalogue: Catalog, table: Table, name: str, schema: pa.Schema, random_bits: Callable[[int], int]
    ) -> None:
        self._catalogue, self._table, self._name, self._random_bits = catalogue, table, name, random_bits
        self._schema = schema
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
        """Load the table or create it with these columns."""
        table = await _in_thread(f"iceberg:{name}", _load_or_create, catalogue, name, schema, by_date)
        if not by_date and {field.source_id for field in table.spec().fields} - {_id_of(table, "partition")}:
            reason = "is divided by more than the partition; export with dates"
            raise ExportRefused(f"iceberg:{name}", reason)
        return cls(catalogue, table, name, schema, random_bits)

    def paths(self) -> ExportPaths:
        return ExportPaths(store_url_of(self._table.location()), "data", "quarantine")

    async def progress(self, subject: Subject) -> Progress:
        self._table = await _in_thread(self.title, self._catalogue.load_table, self._name)
        self._before = progress_of(self._table, subject.topic)
        # New names for each round: files of a failed round may still exist.
        self._export_id = f"{self._random_bits(64):016x}"
        self._check_columns()
        # The table has the columns; a snapshot's summary names only those of the export.
        subject = replace(subject, arrow="")
        if self._before is None:
            return Progress(1, subject, {})
        check_topic_id(self.title, subject, self._before.subject)
        return Progress(self._before.number + 1, subject, self._before.next_offsets, schema_ids=self._before.schema_ids)

    def _check_columns(self) -> None:
        """Raise `ExportRefused` unless the table can take the export's columns."""
        held = columns_in(self._table)
        kept = () if self._before is None else (name for name, _ in self._before.subject.columns)
        evolved(self.title, held, self._schema, kept=kept)
        names = set(self._schema.names)
        needed = next((field.name for field in held if not field.nullable and field.name not in names), None)
        if needed is not None:
            reason = f"its column {needed} is required, and the export has no such column; make it optional"
            raise ExportRefused(self.title, f"{reason}, or export to another table")

    async def begin(self, plan: ExportPlan) -> ExportPlan:
        return plan

    async def record_writers(self, plan: ExportPlan, writers: WriterSchemas) -> WriterSchemas:
        """Nothing to record: no other driver finishes this plan."""
        return writers

    def file_name(self, plan: ExportPlan, split: int) -> str:
        return f"{plan.number:012d}-{split:06d}-{self._export_id}"

    async def commit(self, plan: ExportPlan, written: Sequence[ExportWritten]) -> bool:
        store_url = self.paths().store_url
        files = [f"{store_url}/{file.name}" for one in written for file in one.files]
        now = TableProgress(
            export_id=self._export_id,
            number=plan.number,
            subject=plan.subject,
            next_offsets=plan.next_offsets,
            quarantine=tuple(file.name for one in written for file in one.quarantine),
            schema_ids=schema_ids_of(written),
        )
        for _ in range(EXPORT_CONFLICTS_MAX):
            if await self._try_commit(files, now):
                return True
            self._table = await _in_thread(self.title, self._catalogue.load_table, self._name)
            if progress_of(self._table, plan.subject.topic) != self._before:
                return False
            self._check_columns()
        raise ExportFailed(self.title, "other writers of the table kept committing first", retriable=True)

    async def close(self) -> None:
        """pyiceberg keeps no connection but that of a database catalogue, which ends with the process."""

    async def _try_commit(self, files: list[str], now: TableProgress) -> bool:
        """False: refused, because the table changed. After any other error the commit may have happened, so check."""
        from pyiceberg.exceptions import CommitFailedException

        try:
            await asyncio.to_thread(_commit, self._table, files, now, self._schema)
            return True
        except CommitFailedException:
            return False
        except OverflowError as error:  # raised before anything is sent: pyiceberg cannot represent the day of a file
            reason = "a record's timestamp is outside the years 1 to 9999, which is all that pyiceberg supports"
            raise ExportFailed(
                self.title, f"{reason} (a clock in microseconds?); export to a parquet: target"
            ) from error
        except Exception as error:
            current = None
            try:
                self._table = await asyncio.to_thread(self._catalogue.load_table, self._name)
                current = progress_of(self._table, now.subject.topic)
            except Exception as second:
                raise ExportUncertain(self.title, f"{type(error).__name__}: {error}") from second
            if current is not None and current.export_id == now.export_id:
                return True
            raise ExportFailed(self.title, f"commit: {type(error).__name__}: {error}", retriable=True) from error


def progress_of(table: Table, topic: str) -> TableProgress | None:
    """The offsets of a topic, from the newest snapshot that names it. The table property counts only if older snapshots
    have expired (the first snapshot has sequence number 1): after a rollback the property is ahead of the table."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        text = None if snapshot.summary is None else snapshot.summary.additional_properties.get(OFFSETS + topic)
        if text is not None:
            return _decoded(text, table)
        parent = None if snapshot.parent_snapshot_id is None else table.snapshot_by_id(snapshot.parent_snapshot_id)
        if parent is None and (snapshot.sequence_number or 0) > 1:
            text = table.properties.get(OFFSETS + topic)
            return None if text is None else _decoded(text, table)
        snapshot = parent
    return None


def _decoded(text: str, table: Table) -> TableProgress:
    title = f"iceberg:{'.'.join(table.name())}"
    try:
        progress = msgspec.json.decode(text, type=TableProgress)
    except msgspec.DecodeError as error:
        raise ExportRefused(title, f"its offsets cannot be read: {error}") from None
    if progress.v > _FORMAT:
        reason = f"a newer release wrote its offsets (format {progress.v}, this one reads {_FORMAT})"
        raise ExportRefused(title, reason)
    return progress


def _commit(table: Table, files: list[str], now: TableProgress, schema: pa.Schema) -> None:
    """One snapshot with the files and the offsets, and with columns that the table lacks or that are wider. Blocks."""
    # Only in this copy: the table keeps its own properties.
    properties = {**table.metadata.properties, _RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    summary = {OFFSETS + now.subject.topic: msgspec.json.encode(now).decode()}
    changes = table.transaction()
    held = columns_in(table)
    if evolved("", held, schema, kept=()) != evolved("", held, held):
        with changes.update_schema() as update:
            update.union_by_name(schema, format_version=table.format_version)
    if files:
        changes.add_files(files, snapshot_properties=summary, check_duplicate_files=False)
    else:
        with changes.update_snapshot(snapshot_properties=summary).fast_append():
            pass  # offsets only: key compaction removed the records, or they are in quarantine
    changes.set_properties(summary)
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
    except ValueError as error:  # Iceberg does not distinguish a column a.b from a field b of a
        raise InvalidArgument("schema", f"cannot be the schema of a table: {error}") from None
    fields = [
        PartitionField(columns.find_field("partition").field_id, 1000, IdentityTransform(), "partition"),
        PartitionField(columns.find_field("timestamp").field_id, 1001, DayTransform(), "timestamp_day"),
    ]
    catalogue.create_namespace_if_not_exists(namespace)
    try:
        return catalogue.create_table(name, columns, partition_spec=PartitionSpec(*fields[: 2 if by_date else 1]))
    except TableAlreadyExistsError:
        return catalogue.load_table(name)
    except FileNotFoundError as error:
        reason = f"the table cannot be created: {_first_line(error)}; check the warehouse"
        raise ExportFailed(f"iceberg:{name}", reason) from error


def columns_in(table: Table) -> pa.Schema:
    """The table's columns now."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(table.schema(), include_field_ids=False)


def _id_of(table: Table, column: str) -> int:
    return table.schema().find_field(column).field_id


def store_url_of(location: str) -> str:
    """A table's location as the URL of an object store."""
    if location.startswith("/"):
        return f"file://{location}"
    scheme, _, rest = location.partition("://")
    return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}"


async def _in_thread(title: str, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a blocking function of pyiceberg in a thread, with its errors as errors of the target."""
    from llog.errors import LlogError

    try:
        return await asyncio.to_thread(function, *arguments, **named)
    except LlogError:
        raise
    except FileNotFoundError as error:
        reason = f"{_first_line(error)}: the catalogue names this file, but it was removed"
        raise ExportRefused(title, f"{reason}; restore it, drop the table, or export to another table") from error
    except Exception as error:
        raise ExportFailed(title, _first_line(error), retriable=True) from error


def table_files(table: Table) -> list[str]:
    """The URIs of the files in the table's current snapshot."""
    return [task.file.file_path for task in table.scan().plan_files()]
