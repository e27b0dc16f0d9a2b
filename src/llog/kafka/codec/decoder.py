"""Writes the source of a decoder: one function for one version of one message.

Nested structs are inlined as loops, and neighbouring fields of fixed width, with the length of whatever follows them,
are one call of `struct`. Records and bytes are slices of the frame's memoryview. For `ProduceRequest` v9 this gives

    def decode(d, p, end):
        view = memoryview(d)
        room = room_for(end)
        n2 = d[p]
        p += 1
        if n2 > 127: n2, p = read_varint(d, p, n2)
        if n2:
            e = p + n2 - 1
            if not p <= e <= end: refuse_length(e - p, end - p)
            v1 = str(d[p:e], 'utf-8')
            p = e
        else: v1 = None
        v3, v4, n6, = unpack_from_hiB(d, p)
        p += 7
        ...

`d` is the frame, `p` the position in it, `end` its length. Reading behind the end raises in `struct` or by the index;
every length and count is compared with the bytes left before anything is allocated. `room` is the memory that decoded
values may still take.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from llog.kafka.codec import runtime
from llog.kafka.codec.sizes import decoded_element_bytes, least_element_bytes
from llog.kafka.codec.source import Place, Source
from llog.kafka.codec.table import BUFFERS, FIXED, Field, Message, Struct

_NAMES: Final[dict[str, object]] = {
    "room_for": runtime.room_for,
    "read_varint": runtime.read_varint,
    "skip_tags": runtime.skip_tags,
    "refuse_length": runtime.refuse_length,
    "refuse_count": runtime.refuse_count,
    "refuse_marker": runtime.refuse_marker,
    "refuse_tag": runtime.refuse_tag,
    **{f"read_{code}": runtime.number_reader(code) for code, _ in FIXED.values() if len(code) == 1},
}


def decoder_source(message: Message, version: int, classes: dict[str, type]) -> Source:
    source = Source(dict(_NAMES))
    writer = _Writer(message, version, source, classes)
    with source.block("def decode(d, p, end):"):
        source.line("view = memoryview(d)")
        source.line("room = room_for(end)")
        value = writer.struct(message.body, "")
        source.line(f"return {value}, p")
    return source


class _Read(NamedTuple):
    """A field of fixed width, or a length, that waits to be read together with its neighbours."""

    variable: str
    code: str
    size: int
    path: str


class _Writer:
    def __init__(self, message: Message, version: int, source: Source, classes: dict[str, type]) -> None:
        self.version, self.source = version, source
        self.flexible = version in message.flexible
        self.run: list[_Read] = []
        self.class_names = {name: source.constant("C", cls) for name, cls in classes.items()}

    def struct(self, struct: Struct, path: str) -> str:
        """Read a struct; returns the expression that makes its value."""
        variables = {field.name: self.field(field, path + field.name) for field in struct.at(self.version)}
        if self.flexible:
            variables |= self.tags(struct, path)
        self.flush()
        arguments = [variables.get(field.name) or self.default(field) for field in struct.fields]
        return f"{self.class_names[struct.name]}({', '.join(arguments)})"

    def field(self, field: Field, path: str) -> str:
        """Read a field; returns the variable of its value, which is set after the next `flush`."""
        variable = self.source.variable("v")
        compact, nullable = self.flexible and not field.legacy, self.version in field.nullable
        if field.array:
            self.array(variable, field, path, nullable)
        elif field.struct is not None:
            self.nested(variable, field.struct, path, nullable)
        elif field.type in FIXED:
            code, size = FIXED[field.type]
            self.run.append(_Read(variable, code, size, path))
        else:
            self.text(variable, field.type, path, compact, nullable)
        return variable

    def text(self, variable: str, kind: str, path: str, compact: bool, nullable: bool) -> None:
        """A string, bytes or records."""
        line = self.source.line
        length = self.length("h" if kind == "string" else "i", path, compact)
        with self.unless_null(length, variable, compact, nullable):
            line(f"e = p + {length}{' - 1' if compact else ''}")
            line("if not p <= e <= end: refuse_length(e - p, end - p)", path)
            line(f"{variable} = " + ("view[p:e]" if kind in BUFFERS else "str(d[p:e], 'utf-8')"), path)
            line("p = e")

    def array(self, variable: str, field: Field, path: str, nullable: bool) -> None:
        source, compact = self.source, self.flexible and not field.legacy
        count = self.length("i", path, compact)
        least = least_element_bytes(field, self.version, self.flexible)
        with self.unless_null(count, variable, compact, nullable):
            if compact:
                source.line(f"{count} -= 1")
            source.line(f"room -= {decoded_element_bytes(field, self.version)} * {count}")
            fits = f"0 <= {count} <= (end - p) // {least} and room >= 0"
            source.line(f"if not ({fits}): refuse_count({count}, end - p, {least})", path)
            if field.type in FIXED:
                source.line(f"{variable} = read_{FIXED[field.type][0]}(d, p, {count}) if {count} else []", path)
                source.line(f"p += {least} * {count}")
            else:
                self.elements(variable, field, path, count, compact)

    @contextmanager
    def unless_null(self, length: str, variable: str, compact: bool, nullable: bool) -> Iterator[None]:
        if not nullable:
            yield  # a length that means null is refused like any other negative one
            return
        with self.source.block(f"if {length}:" if compact else f"if {length} != -1:"):
            yield
        self.source.line(f"else: {variable} = None")

    def elements(self, variable: str, field: Field, path: str, count: str, compact: bool) -> None:
        source, index, add = self.source, self.source.variable("i"), self.source.variable("add")
        source.line(f"{variable} = []")
        source.line(f"{add} = {variable}.append")
        with source.block(f"for {index} in range({count}):"):
            inside = f"{path}[{{{index}}}]"
            if field.struct is not None:
                value = self.struct(field.struct, inside + ".")
            else:
                value = source.variable("v")
                self.text(value, field.type, inside, compact, nullable=False)
            source.line(f"{add}({value})")

    def nested(self, variable: str, struct: Struct, path: str, nullable: bool) -> None:
        source = self.source
        if not nullable:
            value = self.struct(struct, path + ".")
            source.line(f"{variable} = {value}")
            return
        marker = source.variable("n")
        self.run.append(_Read(marker, "b", 1, path))
        self.flush()
        with source.block(f"if {marker} == 1:"):
            value = self.struct(struct, path + ".")
            source.line(f"{variable} = {value}")
        source.line(f"elif {marker} == -1: {variable} = None")
        source.line(f"else: refuse_marker({marker})", path)

    def tags(self, struct: Struct, path: str) -> dict[str, str]:
        """Read the tagged fields; returns the variables of the known ones."""
        source = self.source
        fields, count = struct.tagged(self.version), source.variable("t")
        self.run.append(_Read(count, "B", 1, path + "tags"))
        self.flush()
        if not fields:
            source.line(f"if {count}: p, room = skip_tags(d, p, {count}, end, room)", path + "tags")
            return {}
        variables = {field.name: source.variable("v") for field in fields}
        for field in fields:
            source.line(f"{variables[field.name]} = {self.default(field)}")
        with source.block(f"if {count}:"):
            source.line(f"if {count} > 127: {count}, p = read_varint(d, p, {count})", path + "tags")
            source.line(f"room -= {runtime.TAG_BYTES} * {count}")
            source.line(f"if {count} > (end - p) // 2 or room < 0: refuse_count({count}, end - p, 2)", path + "tags")
            with source.block(f"for {source.variable('i')} in range({count}):"):
                self.tag(fields, variables, path)
        return variables

    def tag(self, fields: list[Field], variables: dict[str, str], path: str) -> None:
        source = self.source
        tag, size, end = source.variable("k"), source.variable("n"), source.variable("q")
        for variable in (tag, size):
            self.run.append(_Read(variable, "B", 1, path + "tags"))
            self.flush()
            source.line(f"if {variable} > 127: {variable}, p = read_varint(d, p, {variable})", path + "tags")
        source.line(f"{end} = p + {size}")
        source.line(f"if {end} > end: refuse_length({size}, end - p)", path + "tags")
        for number, field in enumerate(fields):
            with source.block(f"{'elif' if number else 'if'} {tag} == {field.tag}:"):
                value = self.field(field, path + field.name)
                self.flush()
                source.line(f"{variables[field.name]} = {value}")
        source.line(f"else: p = {end}")
        source.line(f"if p != {end}: refuse_tag({tag}, {size}, p - {end} + {size})", path + "tags")

    def length(self, code: str, path: str, compact: bool) -> str:
        """Read a length together with the fields before it; a compact one is one higher, and 0 is null."""
        variable = self.source.variable("n")
        code, size = ("B", 1) if compact else (code, 2 if code == "h" else 4)
        self.run.append(_Read(variable, code, size, path))
        self.flush()
        if compact:
            self.source.line(f"if {variable} > 127: {variable}, p = read_varint(d, p, {variable})", path)
        return variable

    def flush(self) -> None:
        """Read the fields that wait."""
        run, self.run = self.run, []
        if not run:
            return
        size, places = 0, []
        for read in run:
            size += read.size
            places.append(Place(read.path, size))
        if len(run) == 1 and run[0].code == "B":
            self.source.line(f"{run[0].variable} = d[p]", *places)
        else:
            unpack = self.source.unpacker("".join(read.code for read in run))
            self.source.line(f"{', '.join(read.variable for read in run)}, = {unpack}(d, p)", *places)
        self.source.line(f"p += {size}")

    def default(self, field: Field) -> str:
        if field.default != ():
            return repr(field.default)
        return f"{self.class_names[field.struct.name]}()" if field.struct is not None and not field.array else "[]"
