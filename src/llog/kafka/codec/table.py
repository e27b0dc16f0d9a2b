"""The facts about Kafka's messages, read from `messages.txt`.

The table holds facts only (names, types, versions, tags, defaults) in a notation of our own; `make kafka-schemas`
derives it from the definitions in the kafka-clients package (tests/kafka_schemas). One paragraph describes one message:

    request 1 FetchRequest 4-18 flexible=12+ listeners=broker,controller
      replica_id int32 4-14 default=-1
      topics []FetchTopic
        topic string 4-12 ignorable
        partitions []FetchPartition
          ...

- The first line is kind, API key (requests and responses), name and versions. `flexible`: versions with compact lengths
  and tagged fields. `unstable`: the latest version is not final.
- A field has a name, a type and its versions, unless it is in all versions of its parent. `[]` is an array, a
  capital letter a struct whose fields are the lines below it, or below `struct NAME` if several fields share it.
- `?` is a field that may be null, `nullable=` the versions in which it may be if not in all of its own.
- `default=` is given where it differs from the default of the type: 0, false, "", empty; null for `records`.
- `ignorable`: a value other than the default is left out, not refused, in versions without the field.
- `legacy`: the length is never compact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

FIXED: Final = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
}
"""Types of a fixed width: their code in `struct` formats and their size in bytes."""
BUFFERS: Final = ("bytes", "records")
ZERO_UUID: Final = bytes(16)

_TYPE_DEFAULTS: Final[dict[str, object]] = {
    **dict.fromkeys(FIXED, 0),
    "bool": False,
    "float64": 0.0,
    "uuid": ZERO_UUID,
    "string": "",
    "bytes": b"",
    "records": None,
}
_WORDS: Final[dict[str, object]] = {"null": None, "true": True, "false": False}


class Versions(NamedTuple):
    """A range of versions, both ends included; empty if `last` is below `first`."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


NO_VERSIONS: Final = Versions(0, -1)


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: str
    """A type of FIXED, "string", "bytes", "records" or "struct"."""
    array: bool
    struct: Struct | None
    versions: Versions
    nullable: Versions
    tag: int | None
    default: object
    """An empty tuple stands for an empty array, and for a struct whose fields all have their defaults."""
    ignorable: bool
    legacy: bool


@dataclass(frozen=True, slots=True)
class Struct:
    name: str
    fields: tuple[Field, ...]

    def at(self, version: int) -> list[Field]:
        """The fields of a version in the order of their bytes, without tagged ones."""
        return [field for field in self.fields if version in field.versions and field.tag is None]

    def tagged(self, version: int) -> list[Field]:
        fields = [field for field in self.fields if version in field.versions and field.tag is not None]
        return sorted(fields, key=lambda field: field.tag or 0)


@dataclass(frozen=True, slots=True)
class Message:
    kind: str
    """request, response, header or data."""
    key: int | None
    name: str
    versions: Versions
    flexible: Versions
    listeners: tuple[str, ...]
    unstable: bool
    body: Struct

    @property
    def module(self) -> str:
        """The module of `llog.kafka.codec.messages` with its classes: one per API."""
        if self.kind == "header":
            return "headers"
        return snake_case(self.name.removesuffix("Request").removesuffix("Response"))


def snake_case(name: str) -> str:
    joined = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    return joined.removeprefix("_")


def parse(text: str) -> dict[str, Message]:
    """Messages by name, in the order of the table."""
    messages: dict[str, Message] = {}
    for paragraph in text.split("\n\n"):
        lines = [line for line in paragraph.splitlines() if line and not line.startswith("#")]
        if lines:
            message = _message(lines)
            messages[message.name] = message
    return messages


@cache
def messages() -> dict[str, Message]:
    return parse((files(__package__) / "messages.txt").read_text("ascii"))


def parse_versions(text: str, within: Versions) -> Versions:
    """`4-18`, `12+` (to the last of `within`), `0` or `none`."""
    if text == "none":
        return NO_VERSIONS
    first, dash, last = text.removesuffix("+").partition("-")
    if text.endswith("+"):
        return Versions(int(first), within.last)
    return Versions(int(first), int(last) if dash else int(first))


class _Line(NamedTuple):
    depth: int
    words: list[str]
    options: dict[str, str]

    @classmethod
    def of(cls, text: str) -> _Line:
        words = text.split()
        options = dict(word.partition("=")[::2] for word in words if "=" in word)
        depth = (len(text) - len(text.lstrip())) // 2
        return cls(depth, [word for word in words if "=" not in word], options)


def _message(texts: list[str]) -> Message:
    head, *lines = [_Line.of(text) for text in texts]
    kind, *key, name, versions = [word for word in head.words if word != "unstable"]
    valid = parse_versions(versions, NO_VERSIONS)
    shared: dict[str, Struct] = {}
    for at, line in enumerate(lines):
        if line.words[0] == "struct":
            shared[line.words[1]] = Struct(line.words[1], tuple(_fields(_below(lines, at), valid, shared)))
    top = [line for at, line in enumerate(lines) if not _in_shared(lines, at)]
    return Message(
        kind=kind,
        key=int(key[0]) if key else None,
        name=name,
        versions=valid,
        flexible=parse_versions(head.options["flexible"], valid),
        listeners=tuple(filter(None, head.options.get("listeners", "").split(","))),
        unstable="unstable" in head.words,
        body=Struct(name, tuple(_fields(top, valid, shared))),
    )


def _below(lines: Sequence[_Line], at: int) -> list[_Line]:
    """The lines that are deeper than the one at `at`, up to the next that is not."""
    end = at + 1
    while end < len(lines) and lines[end].depth > lines[at].depth:
        end += 1
    return list(lines[at + 1 : end])


def _in_shared(lines: Sequence[_Line], at: int) -> bool:
    while lines[at].depth > 1:
        at -= 1
    return lines[at].words[0] == "struct"


def _fields(lines: list[_Line], parent: Versions, shared: dict[str, Struct]) -> Iterator[Field]:
    for at, line in enumerate(lines):
        if line.depth == lines[0].depth:
            yield _field(line, _below(lines, at), parent, shared)


def _field(line: _Line, below: list[_Line], parent: Versions, shared: dict[str, Struct]) -> Field:
    name, kind, *rest = line.words
    flags = {word for word in rest if word.isalpha()}
    given = [word for word in rest if not word.isalpha()]
    versions = parse_versions(given[0], parent) if given else parent
    nullable = versions if kind.endswith("?") else parse_versions(line.options.get("nullable", "none"), versions)
    type_name = kind.removesuffix("?").removeprefix("[]")
    array, struct = kind.startswith("[]"), None
    if type_name[0].isupper():
        struct = Struct(type_name, tuple(_fields(below, versions, shared))) if below else shared[type_name]
        type_name = "struct"
    default = () if array or struct else _TYPE_DEFAULTS[type_name]
    if "default" in line.options:
        word = line.options["default"]
        default = _WORDS[word] if word in _WORDS else int(word)
    tag = int(line.options["tag"]) if "tag" in line.options else None
    assert flags <= {"ignorable", "legacy"}, f"unknown words in the table: {line}"
    ignorable, legacy = "ignorable" in flags, "legacy" in flags
    return Field(name, type_name, array, struct, versions, nullable, tag, default, ignorable, legacy)
