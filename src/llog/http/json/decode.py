"""From the bytes of a body to a request; an error names the field that is wrong.

A large body is decoded in pieces: one call of the decoder holds the interpreter until it ends, also in a thread, and
between two calls other threads run. Result and error paths are the same with and without pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Annotated, Any, Final, TypeVar, cast

import msgspec
from msgspec import Meta

from llog.errors import InvalidArgument
from llog.http.json import schemas
from llog.http.json.body_check import duplicate_key, lone_surrogate
from llog.http.json.schemas import BatchHead, ProduceBatch, ProduceRequest, RecordObject, Records, RequestBody
from llog.limits import HTTP_TOPIC_PARTITIONS_MAX, MIB
from llog.log.keys import Log, check_topic

HTTP_DECODE_PIECE_BYTES: Final = MIB
"""A large body is decoded in pieces of this size."""
HTTP_BODY_STRINGS_MAX: Final = 400_000
"""Strings in one body; each costs about 160 bytes while it is decoded, whatever its length."""

T = TypeVar("T")
BODY: Final = "body"
_AT: Final = re.compile(r" - at `\$(.*)`$", re.DOTALL)
_NAMED: Final = re.compile(r"^Object (?:missing required|contains unknown) field `(.*)`", re.DOTALL)
_POSITION: Final = re.compile(r"\[[0-9.]*\]")


class RawBatch(BatchHead, frozen=True, kw_only=True):
    """A batch with its records not decoded yet."""

    records: msgspec.Raw


class RawProduceRequest(RequestBody, frozen=True):
    topic_partitions: Annotated[list[RawBatch], Meta(min_length=1, max_length=HTTP_TOPIC_PARTITIONS_MAX)]


def decoded(kind: type[T], body: bytes) -> T:
    """Raises `InvalidArgument` with the path of the field that is wrong."""
    decoder: msgspec.json.Decoder[T] = _decoder(cast(Any, kind))
    return _checked(body, lambda: _decode(decoder, body, ""))


def decoded_produce(body: bytes, piece_bytes: int = HTTP_DECODE_PIECE_BYTES) -> ProduceRequest:
    """A produce request, decoded in pieces when it is large."""
    if len(body) <= piece_bytes:
        return decoded(ProduceRequest, body)
    _check_strings(body, piece_bytes)
    return _checked(body, lambda: _decoded_in_pieces(body, piece_bytes))


class _NotJson(Exception):
    def __init__(self, error: InvalidArgument) -> None:
        self.error = error


def _checked(body: bytes, decode: Callable[[], T]) -> T:
    """What `decode` makes of a body in which no object has a key twice. Says so when half a surrogate pair is why the
    body is not JSON."""
    try:
        request = decode()
    except _NotJson as broken:
        raise lone_surrogate(body, BODY) or broken.error from None
    error = duplicate_key(body)
    if error is not None:
        raise error
    return request


def _decoded_in_pieces(body: bytes, piece_bytes: int) -> ProduceRequest:
    raw: RawProduceRequest = _decode(_decoder(cast(Any, RawProduceRequest)), body, "")
    batches = []
    for number, batch in enumerate(raw.topic_partitions):
        records = _records(batch.records, f"topic_partitions[{number}].records", piece_bytes)
        fields = {name: getattr(batch, name) for name in BatchHead.__struct_fields__}
        batches.append(ProduceBatch(records=records, **fields))
    return ProduceRequest(batches)


def _check_strings(body: bytes, piece_bytes: int) -> None:
    """Refuse a body of very many tiny records before decoding, which would take far more memory than the body has."""
    pieces = [(begin, begin + piece_bytes) for begin in range(0, len(body), piece_bytes)]
    quotes = sum(body.count(b'"', begin, end) for begin, end in pieces)
    if quotes > 2 * HTTP_BODY_STRINGS_MAX:
        quotes -= sum(body.count(b'\\"', begin, end) for begin, end in pieces)  # escaped quotes inside strings
    if quotes > 2 * HTTP_BODY_STRINGS_MAX:
        reason = f"holds more than {HTTP_BODY_STRINGS_MAX} strings (HTTP_BODY_STRINGS_MAX): send fewer records at once"
        raise InvalidArgument(BODY, reason)


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def _records(text: msgspec.Raw, path: str, piece_bytes: int) -> list[str | RecordObject]:
    if len(memoryview(text)) <= piece_bytes:
        return _decode(_RECORDS, text, path)
    records: list[str | RecordObject] = []
    texts: list[msgspec.Raw] = _decode(_RAW_RECORDS, text, path)
    for piece in _joined(texts, piece_bytes):
        more: list[str | RecordObject] = _decode(_RECORDS, piece, path, first_row=len(records))
        records += more
    return records


def _joined(texts: Sequence[msgspec.Raw], piece_bytes: int) -> Iterator[bytes]:
    """JSON lists of about `piece_bytes` each, with at least one element."""
    piece: list[msgspec.Raw] = []
    size = 0
    for text in texts:
        piece.append(text)
        size += len(memoryview(text))
        if size >= piece_bytes:
            yield b"[%b]" % b",".join(piece)
            piece, size = [], 0
    if piece:
        yield b"[%b]" % b",".join(piece)


_RECORDS: Final[msgspec.json.Decoder[list[str | RecordObject]]] = msgspec.json.Decoder(Records)
_RAW_RECORDS: Final = msgspec.json.Decoder(list[msgspec.Raw])


def _decode(decoder: msgspec.json.Decoder[T], text: bytes | msgspec.Raw, path: str, *, first_row: int = 0) -> T:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise _named(str(error), path, first_row) from None
    except msgspec.DecodeError as error:
        raise _NotJson(InvalidArgument(path or BODY, f"is not JSON: {error}")) from None
    except UnicodeDecodeError as error:
        raise InvalidArgument(path or BODY, f"is not UTF-8: {error.reason}") from None
    except RecursionError:
        raise InvalidArgument(path or BODY, "is nested too deeply") from None


def _named(message: str, path: str, first_row: int) -> InvalidArgument:
    """msgspec's message `Expected …, got … - at `$[3].x`` as an error of the field `{path}[3].x`."""
    at = _AT.search(message)
    reason = message[: at.start()] if at else message
    inner = at.group(1) if at else ""
    if row := re.match(r"\[([0-9]+)\]", inner):
        inner = f"[{first_row + int(row.group(1))}]{inner[row.end() :]}"
    if name := _NAMED.match(reason):
        inner += f".{name.group(1)}"
    field = f"{path}{inner}".removeprefix(".")
    return InvalidArgument(field or BODY, reason.replace("`", ""))


def checked_log(topic: str, partition: int, path: str) -> Log:
    """`InvalidArgument` with the path of the topic's name."""
    try:
        return Log(check_topic(topic), partition)
    except InvalidArgument as error:
        raise InvalidArgument(path, error.reason) from None


# -- the field as a label ----------------------------------------------------------------------------------------------


def field_label(field: str) -> str:
    """The path without positions and without names that a client made up, as a bounded label of a metric."""
    known = _known_names()
    parts = _POSITION.sub("[]", field).split(".")
    return ".".join(part if part.rstrip("[]") in known else "?" for part in parts)


@cache
def _known_names() -> frozenset[str]:
    structs: list[Any] = [
        kind for kind in vars(schemas).values() if isinstance(kind, type) and issubclass(kind, RequestBody)
    ]
    return frozenset({BODY} | {name for kind in structs for name in kind.__struct_fields__})
