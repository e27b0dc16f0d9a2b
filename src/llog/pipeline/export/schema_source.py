"""Where the schemas of ids come from: a registry, or a directory with a file `{id}.avsc` for each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from msgspec.structs import replace

from llog.concurrency import gather_bounded
from llog.errors import InvalidArgument
from llog.limits import EXPORT_SCHEMA_BYTES_MAX
from llog.pipeline.export.decode import Decoder, Decoding
from llog.pipeline.export.registry import SchemaRegistry, UnknownSchema
from llog.pipeline.export.schema_ids import EXPORT_SCHEMA_IDS_MAX, WriterSchemas
from llog.settings import Settings

SCHEMA_LOOKUPS_AT_ONCE: Final = 8
# Answers that one export remembers, so that it asks once for each id.
SCHEMA_ANSWERS_KEPT_MAX: Final = 10_000
_SUFFIX: Final = ".avsc"


class SchemaSource(Protocol):
    title: str

    async def fetch(self, schema_id: int) -> tuple[str, ...]:
        """As in `WriterSchemas.found`. Raises `UnknownSchema`, or `ExportFailed` if the source cannot answer."""

    async def newest(self, topic: str) -> tuple[int | None, tuple[str, ...]]:
        """The schema that columns follow if none is given, and its id if that is known."""


class SchemaFiles:
    """A directory with the schemas of values. Each file is complete: it refers to no other."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.title = f"schema directory {directory}"
        if not directory.is_dir():
            raise InvalidArgument("schema_dir", f"{directory} is not a directory")

    async def fetch(self, schema_id: int) -> tuple[str, ...]:
        return await asyncio.to_thread(self._read, schema_id)

    async def newest(self, topic: str) -> tuple[int | None, tuple[str, ...]]:
        def highest() -> int:
            names = (path.stem for path in self._directory.iterdir() if path.suffix == _SUFFIX)
            return max((int(name) for name in names if name.isascii() and name.isdigit()), default=-1)

        schema_id = await asyncio.to_thread(highest)
        try:
            return schema_id, await self.fetch(schema_id)
        except UnknownSchema as error:
            reason = f"no file {{id}}{_SUFFIX} there" if schema_id < 0 else f"schema id {schema_id} {error}"
            raise InvalidArgument("schema_dir", f"{self._directory}: {reason}") from None

    def _read(self, schema_id: int) -> tuple[str, ...]:
        path = self._directory / f"{schema_id}{_SUFFIX}"
        try:
            with path.open(encoding="utf-8") as file:
                text = file.read(EXPORT_SCHEMA_BYTES_MAX + 1)
        except FileNotFoundError:
            raise UnknownSchema(f"has no file {path.name} in the schema directory") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgument("schema_dir", f"{path}: {error}") from None
        if len(text) > EXPORT_SCHEMA_BYTES_MAX:
            raise UnknownSchema(f"has more than {EXPORT_SCHEMA_BYTES_MAX:,} bytes")
        return (text,)


def schema_source(settings: Settings, schema_dir: str = "", subject: str = "") -> SchemaSource:
    """The directory if one is given, else the registry."""
    if schema_dir:
        return SchemaFiles(Path(schema_dir).expanduser().absolute())
    if settings.schema_registry_url is not None:
        return SchemaRegistry(settings, subject=subject)
    reason = "avro-confluent values name their schemas by id: set LLOG_SCHEMA_REGISTRY_URL, or give --schema-dir"
    raise InvalidArgument("decode", f"{reason} with a file {{id}}{_SUFFIX} for each")


class SchemaLookup:
    """Asks a source for each id once."""

    def __init__(self, source: SchemaSource) -> None:
        self._source = source
        self._answers: dict[int, tuple[str, ...] | str] = {}
        """By id: the texts, or why there are none."""
        self._newest: int | None = None

    async def with_columns(self, decoding: Decoding, topic: str) -> Decoding:
        """The decoding with the schema of its columns: the given one, else the source's newest."""
        if decoding.schema:
            return decoding
        schema_id, texts = await self._source.newest(topic)
        if schema_id is not None:
            self._newest, self._answers[schema_id] = schema_id, texts
        decoding = replace(decoding, schema=texts[-1], references=texts[:-1])
        try:
            Decoder(decoding)
        except InvalidArgument as error:
            reason = f"the newest, id {schema_id} of {self._source.title}: {error.reason}"
            raise InvalidArgument(error.argument, f"{reason}; give another with --schema") from None
        return decoding

    def known(self, ids: Iterable[int]) -> WriterSchemas:
        """The schemas of these ids and the newest, as far as the source was asked for them."""
        answers = {one: self._answers[one] for one in (*ids, self._newest) if one is not None and one in self._answers}
        return WriterSchemas({one: texts for one, texts in answers.items() if not isinstance(texts, str)})

    async def look_up(self, ids: Iterable[int], known: WriterSchemas, target: str) -> WriterSchemas:
        """`known` with answers for these ids: the lowest, if there are too many."""
        wanted = known.unknown(ids)
        room = EXPORT_SCHEMA_IDS_MAX - len(known.found) - len(known.missing)
        chosen = wanted[: max(0, room)]
        answers = dict(zip(chosen, await gather_bounded(chosen, self._ask, limit=SCHEMA_LOOKUPS_AT_ONCE), strict=True))
        found = {one: answer for one, answer in answers.items() if not isinstance(answer, str)}
        missing = {one: answer for one, answer in answers.items() if isinstance(answer, str)}
        return known.merged(WriterSchemas(found, missing, full=len(chosen) < len(wanted)), target)

    async def _ask(self, schema_id: int) -> tuple[str, ...] | str:
        answer = self._answers.get(schema_id)
        if answer is None:
            try:
                answer = await self._source.fetch(schema_id)
            except UnknownSchema as error:
                answer = str(error)
            if len(self._answers) < SCHEMA_ANSWERS_KEPT_MAX:
                self._answers[schema_id] = answer
        return answer
