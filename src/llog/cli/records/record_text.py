"""Records as lines of text: what `llog produce` reads, and what `llog consume` and `llog tail` write. No I/O.

Key separators and formats such as `%o` follow other Kafka tools. Bytes pass through unchanged; only `--json` decodes
them, and writes what is not UTF-8 as `{"base64": …}`, so that nothing is lost.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Final, NamedTuple, Protocol

import msgspec

from llog.errors import InvalidArgument, ValueTooLarge
from llog.formats.records.record_columns import Header
from llog.limits import MIB
from llog.log.keys import Log
from llog.log.read.records import LogRecord

# The longest line that `llog produce` accepts.
INPUT_LINE_BYTES_MAX: Final = 64 * MIB

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
# A percent sign or a backslash with the following character, or plain text.
_TOKENS: Final = re.compile(r"%.?|\\.?|[^%\\]+", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\.?|[^\\]+", re.DOTALL)
Write = Callable[[Log, LogRecord], bytes]


# -- in ----------------------------------------------------------------------------------------------------------------


class LineSplitter:
    """Splits chunks of input into lines. A last line without a newline counts, unless it is empty."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        first, *more = chunk.split(b"\n")
        self._keep(first)
        for line in more:
            yield self._take()
            self._keep(line)

    def end(self) -> Iterator[bytes]:
        if self._rest_bytes:
            yield self._take()

    def _keep(self, part: bytes) -> None:
        self._rest_bytes += len(part)
        if self._rest_bytes > INPUT_LINE_BYTES_MAX:
            raise ValueTooLarge("stdin: a line", self._rest_bytes, INPUT_LINE_BYTES_MAX)
        self._rest.append(part)

    def _take(self) -> bytes:
        line = b"".join(self._rest)
        self._rest, self._rest_bytes = [], 0
        return line


class ParsedRecord(NamedTuple):
    key: bytes | None
    payload: bytes | None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None


class Parser(Protocol):
    def parse(self, line: bytes, number: int) -> ParsedRecord: ...


def parser_of(
    read_as: str, *, key_separator: str | None, decode_base64: bool, tombstones: bool, headers: Sequence[str]
) -> Parser:
    """The parser for lines of standard input. Raises `InvalidArgument` for options that exclude each other."""
    kept = parse_headers(headers)
    if read_as == "lines":
        return LineParser(key_separator=key_separator, decode_base64=decode_base64, tombstones=tombstones, headers=kept)
    if key_separator is not None or tombstones:
        raise InvalidArgument(
            "--input", "json excludes --key-separator and --tombstones: a document names its key and its null payload"
        )
    return JsonParser(decode_base64=decode_base64, headers=kept)


def parse_headers(given: Sequence[str]) -> tuple[Header, ...]:
    headers: list[Header] = []
    for word in given:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise InvalidArgument("--header", f"{word!r} must read NAME=VALUE")
        headers.append((name, value.encode()))
    return tuple(headers)


class LineParser:
    def __init__(
        self,
        *,
        key_separator: str | None = None,
        decode_base64: bool = False,
        tombstones: bool = False,
        headers: tuple[Header, ...] = (),
    ) -> None:
        if key_separator == "":
            raise InvalidArgument("--key-separator", "must not be empty")
        self._separator = None if key_separator is None else unescaped(key_separator, "--key-separator")
        self._base64, self._tombstones, self._headers = decode_base64, tombstones, headers

    def parse(self, line: bytes, number: int) -> ParsedRecord:
        """Parse a line; without a separator it has no key. `number` is the line number for error messages."""
        key: bytes | None = None
        if self._separator is not None and self._separator in line:
            key, _, line = line.partition(self._separator)
        if self._base64:
            key = None if key is None else _from_base64(key, number)
            line = _from_base64(line, number)
        return ParsedRecord(key, None if self._tombstones and not line else line, self._headers)


class Base64Text(msgspec.Struct, forbid_unknown_fields=True):
    base64: str


class RecordDocument(msgspec.Struct):
    """A record as `json_line` writes it; `value` is another name of its payload. Its topic, partition and offset are
    ignored."""

    payload: str | Base64Text | msgspec.UnsetType | None = msgspec.UNSET
    value: str | Base64Text | msgspec.UnsetType | None = msgspec.UNSET
    key: str | Base64Text | None = None
    headers: list[tuple[str, str | Base64Text | None]] = []
    timestamp_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None


class JsonParser:
    def __init__(self, *, decode_base64: bool = False, headers: tuple[Header, ...] = ()) -> None:
        self._base64, self._headers = decode_base64, headers
        self._decoder = msgspec.json.Decoder(RecordDocument)

    def parse(self, line: bytes, number: int) -> ParsedRecord:
        try:
            document = self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"stdin, line {number}", f"is not a record: {error}") from error
        own = tuple((name, self._bytes(value, number)) for name, value in document.headers)
        given = [text for text in (document.payload, document.value) if not isinstance(text, msgspec.UnsetType)]
        if len(given) != 1:
            raise InvalidArgument(f"stdin, line {number}", "is not a record: it needs a payload (or a value)")
        return ParsedRecord(
            self._bytes(document.key, number),
            self._bytes(given[0], number),
            own + self._headers,
            document.timestamp_ms,
        )

    def _bytes(self, value: str | Base64Text | None, number: int) -> bytes | None:
        if isinstance(value, str):
            return _from_base64(value.encode(), number) if self._base64 else value.encode()
        return None if value is None else _from_base64(value.base64.encode(), number)


def _from_base64(text: bytes, number: int) -> bytes:
    try:
        return base64.b64decode(text.strip(), validate=True)
    except ValueError as error:
        raise InvalidArgument(f"stdin, line {number}", f"is not base64: {error}") from error


# -- out ---------------------------------------------------------------------------------------------------------------


def writer(format_text: str, *, as_json: bool = False, as_base64: bool = False) -> Write:
    """The function that turns a record into bytes. Raises `InvalidArgument` for an unknown format."""
    if as_json:
        return lambda log, record: json_line(log, record, as_base64=as_base64)
    parts = parse_format(format_text)
    if as_base64:
        # Only payload and key hold arbitrary bytes.
        parts = [_in_base64(part) if part in (_FIELDS["s"], _FIELDS["k"]) else part for part in parts]
    return lambda log, record: b"".join([part(log, record) for part in parts])


def _in_base64(part: Write) -> Write:
    return lambda log, record: base64.b64encode(part(log, record))


def _plain(text: bytes) -> Write:
    return lambda _log, _record: text


_FIELDS: Final[dict[str, Write]] = {
    "s": lambda _, record: record.payload or b"",
    "S": lambda _, record: b"%d" % (-1 if record.payload is None else len(record.payload)),
    "k": lambda _, record: record.key or b"",
    "K": lambda _, record: b"%d" % (-1 if record.key is None else len(record.key)),
    "t": lambda log, _: log.topic.encode(),
    "p": lambda log, _: b"%d" % log.partition,
    "o": lambda _, record: b"%d" % record.offset,
    "T": lambda _, record: b"%d" % record.timestamp_ms,
    "h": lambda _, record: b",".join(
        name.encode() + b"=" + (b"NULL" if value is None else bytes(value)) for name, value in record.headers
    ),
}


def parse_format(text: str) -> list[Write]:
    """`%s` payload, `%S` its length, `%k` key, `%K` its length, `%t` topic, `%p` partition, `%o` offset,
    `%T` timestamp, `%h` headers, `%%` a percent sign; and `\\n`, `\\t`, `\\r`, `\\0`, `\\\\`."""
    parts: list[Write] = []
    for token in _TOKENS.findall(text):
        if token == "%%":
            parts.append(_plain(b"%"))
        elif token[0] == "%":
            if token[1:] not in _FIELDS:
                known = " ".join(f"%{letter}" for letter in _FIELDS)
                raise InvalidArgument("--format", f"{token} is not known; use {known} %%")
            parts.append(_FIELDS[token[1:]])
        else:
            parts.append(_plain(unescaped(token, "--format")))
    return parts


def unescaped(text: str, argument: str) -> bytes:
    """Replace `\\n` and the like by the bytes they stand for."""
    whole = []
    for token in _ESCAPED.findall(text):
        if token[0] != "\\":
            whole.append(token.encode())
        elif token[1:] in _ESCAPES:
            whole.append(_ESCAPES[token[1:]])
        else:
            raise InvalidArgument(argument, f"{token} is not known; use \\n \\t \\r \\0 or \\\\")
    return b"".join(whole)


def json_line(log: Log, record: LogRecord, *, as_base64: bool = False) -> bytes:
    def text_of(value: bytes | None) -> object:
        if value is None or as_base64:
            return None if value is None else base64.b64encode(value).decode()
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}

    document = {
        "topic": log.topic,
        "partition": log.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": text_of(record.key),
        "payload": text_of(record.payload),
        "headers": [[name, text_of(None if value is None else bytes(value))] for name, value in record.headers],
    }
    return msgspec.json.encode(document) + b"\n"
