"""Writes the source of an encoder: one function for one version of one message.

Like a decoder, it inlines nested structs as loops and packs neighbouring fields of fixed width together with the length
of whatever follows them. It appends pieces to a list; `runtime.gather` joins them, except for large buffers, which are
not copied. For `ProduceRequest` v9 this gives

    def encode(m, parts, uncopied):
        w = parts.append
        s1 = m.transactional_id
        if s1 is None:
            s1 = b''
            n2 = 0
        else:
            s1 = s1.encode()
            n2 = len(s1) + 1
        w(VARINTS[n2] if n2 < 128 else varint(n2))
        w(s1)
        s3 = m.topic_data
        n4 = len(s3) + 1
        w(pack_hiB(m.acks, m.timeout_ms, n4) if n4 < 128 else pack_hi(m.acks, m.timeout_ms) + varint(n4))
        for m5 in s3:
            ...

A value of the wrong type raises whatever Python raises for it; `codec` turns that into `NotEncodable`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from llog.kafka.codec import runtime
from llog.kafka.codec.source import Source
from llog.kafka.codec.table import BUFFERS, FIXED, Field, Message, Struct

_NAMES: Final[dict[str, object]] = {
    "VARINTS": runtime.VARINTS,
    "varint": runtime.varint,
    "byte_length": runtime.byte_length,
    "put": runtime.put,
    "refuse_absent": runtime.refuse_absent,
    "refuse_uuid": runtime.refuse_uuid,
    **{f"write_{code}": runtime.number_writer(code) for code, _ in FIXED.values() if len(code) == 1},
}


def encoder_source(message: Message, version: int, classes: dict[str, type]) -> Source:
    source = Source(dict(_NAMES))
    writer = _Writer(message, version, source, classes)
    with source.block("def encode(m, parts, uncopied):"):
        source.line("w = parts.append")
        writer.struct(message.body, "m", "")
        writer.flush()
    return source


class _Writer:
    def __init__(self, message: Message, version: int, source: Source, classes: dict[str, type]) -> None:
        self.version, self.source, self.classes = version, source, classes
        self.flexible = version in message.flexible
        self.codes = ""
        self.values: list[str] = []
        self.paths: list[str] = []
        """Fields of fixed width that wait to be packed together with their neighbours."""
        self.in_tag = False

    def struct(self, struct: Struct, value: str, path: str) -> None:
        for field in struct.fields:
            if self.version not in field.versions and not field.ignorable:
                given = self.not_default(struct, field, f"{value}.{field.name}")
                self.source.line(f"if {given}: refuse_absent()", path + field.name)
        for field in struct.at(self.version):
            self.field(field, f"{value}.{field.name}", path + field.name)
        if self.flexible:
            self.tags(struct, value, path)

    def field(self, field: Field, value: str, path: str) -> None:
        nullable = self.version in field.nullable
        if field.array:
            self.array(field, value, path, nullable)
        elif field.struct is not None:
            self.nested(field.struct, value, path, nullable)
        elif field.type in FIXED:
            if field.type == "uuid":
                self.source.line(f"if len({value}) != 16: refuse_uuid()", path)
            self.pack(FIXED[field.type][0], value, path)
        else:
            self.text(field, value, path, nullable)

    def text(self, field: Field, value: str, path: str, nullable: bool) -> None:
        """A string, bytes or records."""
        source, compact = self.source, self.flexible and not field.legacy
        data, length = source.variable("s"), source.variable("n")
        buffer = field.type in BUFFERS
        assert not (buffer and self.in_tag), f"{path}: buffers in tagged fields are not supported"
        source.line(f"{data} = {value}", path)
        with self.unless_null(data, "b''", length, compact, nullable):
            if not buffer:
                source.line(f"{data} = {data}.encode()", path)
            source.line(f"{length} = {'byte_length' if buffer else 'len'}({data}){' + 1' if compact else ''}", path)
        self.length("i" if buffer else "h", length, path, compact)
        source.line(f"put(parts, uncopied, {data})" if buffer else f"w({data})", path)

    def array(self, field: Field, value: str, path: str, nullable: bool) -> None:
        source, compact = self.source, self.flexible and not field.legacy
        items, length = source.variable("s"), source.variable("n")
        source.line(f"{items} = {value}", path)
        with self.unless_null(items, "()", length, compact, nullable):
            source.line(f"{length} = len({items}){' + 1' if compact else ''}", path)
        self.length("i", length, path, compact)
        if field.type in FIXED:
            source.line(f"if {items}: w(write_{FIXED[field.type][0]}({items}))", path)
            return
        item = source.variable("m")
        with source.block(f"for {item} in {items}:", path):
            if field.struct is not None:
                self.struct(field.struct, item, path + "[].")
            else:
                self.text(field, item, path + "[]", nullable=False)
            self.flush()

    @contextmanager
    def unless_null(self, variable: str, empty: str, length: str, compact: bool, nullable: bool) -> Iterator[None]:
        if not nullable:
            yield  # None has no length, which raises
            return
        with self.source.block(f"if {variable} is None:"):
            self.source.line(f"{variable} = {empty}")
            self.source.line(f"{length} = {0 if compact else -1}")
        with self.source.block("else:"):
            yield

    def nested(self, struct: Struct, value: str, path: str, nullable: bool) -> None:
        item = self.source.variable("m")
        self.source.line(f"{item} = {value}", path)
        if not nullable:
            self.struct(struct, item, path + ".")
            return
        self.flush()
        self.source.line(f"if {item} is None: w(b'\\xff')", path)
        with self.source.block("else:"):
            self.pack("b", "1", path)
            self.struct(struct, item, path + ".")
            self.flush()

    def tags(self, struct: Struct, value: str, path: str) -> None:
        """The number of tagged fields that do not have their default, then tag, size and value of each."""
        fields = struct.tagged(self.version)
        if not fields:
            self.pack("x", "", path)
            return
        self.flush()
        source, count = self.source, self.source.variable("t")
        given = {field.name: source.variable("g") for field in fields}
        for field in fields:
            expression = self.not_default(struct, field, f"{value}.{field.name}")
            source.line(f"{given[field.name]} = {expression}", path + field.name)
        with source.block(f"if {' or '.join(given.values())}:"):
            outer = source.variable("w")
            source.line(f"{outer} = w")
            source.line(f"{count} = " + " + ".join(f"(1 if {name} else 0)" for name in given.values()))
            source.line(f"w(varint({count}))")
            for field in fields:
                with source.block(f"if {given[field.name]}:"):
                    self.tag(field, f"{value}.{field.name}", path + field.name, outer)
        source.line("else: w(b'\\0')")

    def tag(self, field: Field, value: str, path: str, outer: str) -> None:
        source, pieces = self.source, self.source.variable("q")
        source.line(f"{pieces} = []")
        source.line(f"w = {pieces}.append")
        outside, self.in_tag = self.in_tag, True
        self.field(field, value, path)
        self.in_tag = outside
        self.flush()
        source.line(f"{pieces} = b''.join({pieces})", path)
        source.line(f"w = {outer}")
        source.line(f"w(varint({field.tag}) + varint(len({pieces})) + {pieces})")

    def length(self, code: str, value: str, path: str, compact: bool) -> None:
        """Write a length together with the fields before it."""
        if not compact:
            self.pack(code, value, path)
            self.flush()
            return
        if self.codes:
            values = ", ".join(self.values)
            one = f"{self.source.packer(self.codes + 'B')}({', '.join([*self.values, value])})"
            more = f"{self.source.packer(self.codes)}({values}) + varint({value})"
        else:
            one, more = f"VARINTS[{value}]", f"varint({value})"
        self.source.line(f"w({one} if {value} < 128 else {more})", *self.paths, path)
        self.codes, self.values, self.paths = "", [], []

    def pack(self, code: str, value: str, path: str) -> None:
        self.codes += code
        self.paths.append(path)
        if value:
            self.values.append(value)

    def flush(self) -> None:
        """Pack the fields that wait."""
        if self.codes:
            values = ", ".join(self.values)
            packed = f"{self.source.packer(self.codes)}({values})" if values else repr(bytes(len(self.codes)))
            self.source.line(f"w({packed})", *self.paths)
        self.codes, self.values, self.paths = "", [], []

    def not_default(self, struct: Struct, field: Field, value: str) -> str:
        """An expression that is true if a field has another value than its default."""
        if field.default is None:
            return f"{value} is not None"
        if field.array or field.type in BUFFERS:
            return f"({value} is None or len({value}) > 0)"
        if field.struct is not None:
            # The class shares this object between its instances where that is safe, so `is` is often enough.
            default = self.source.constant("D", getattr(self.classes[struct.name](), field.name))
            return f"({value} is not {default} and {value} != {default})"
        return f"{value} != {field.default!r}"
