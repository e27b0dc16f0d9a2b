"""A metadata record as people and programs want to see it: what its key means, and its value decoded.

What must stay true: a value that this release cannot decode is shown as it is, with the reason, never hidden.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Final

import msgspec

from llog.errors import FormatError
from llog.formats.backup import VacuumHold
from llog.formats.values import (
    BrokerRegistration,
    ClusterId,
    CompactionRecord,
    CompactorClaim,
    ControlRecord,
    GroupOffset,
    IndexEntry,
    PartitionDelete,
    ProducerIdBlock,
    ProducerPage,
    ProducerSnapshot,
    SegmentRecord,
    TopicRecord,
    Value,
)
from llog.log.keys import Keys
from llog.stores.metadata.port import Record

VALUE_OF_KIND: Final[dict[str, type[Value]]] = {
    "topic": TopicRecord,
    "control": ControlRecord,
    "compaction": CompactionRecord,
    "claim": CompactorClaim,
    "chore_claim": CompactorClaim,
    "partition_delete": PartitionDelete,
    "producers": ProducerSnapshot,
    "producer_page": ProducerPage,
    "index_entry": IndexEntry,
    "segment": SegmentRecord,
    "cluster_id": ClusterId,
    "broker": BrokerRegistration,
    "producer_ids": ProducerIdBlock,
    "vacuum_hold": VacuumHold,
    "group_item": GroupOffset,
}
_DECODERS: Final[dict[str, Callable[[bytes], Value]]] = {
    kind: msgspec.json.Decoder(value).decode for kind, value in VALUE_OF_KIND.items()
}


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    kind: str
    """The name of the `Keys` method that builds the key; `unknown` for a key of no kind we know."""
    version: int
    ephemeral: bool
    byte_length: int
    value: Any = None
    """Decoded; of a value that is not what its key says: JSON, else text, else base64."""
    problem: str = ""


def shown(keys: Keys, record: Record, *, with_value: bool = True) -> Shown:
    parsed = keys.parse(record.key.path)
    kind = "unknown" if parsed is None else parsed.kind
    value: Any = None
    problem = ""
    if with_value:
        value, problem = _decoded(kind, record.value)
    return Shown(
        key=record.key.path,
        kind=kind,
        version=record.version,
        ephemeral=record.ephemeral,
        byte_length=len(record.value),
        value=value,
        problem=problem,
    )


def _decoded(kind: str, data: bytes) -> tuple[Any, str]:
    decode = _DECODERS.get(kind)
    problem = ""
    if decode is not None:
        try:
            return msgspec.to_builtins(decode(data)), ""
        except (msgspec.MsgspecError, UnicodeDecodeError, FormatError) as error:
            problem = f"not a {VALUE_OF_KIND[kind].__name__}: {error}"
    try:
        return msgspec.json.decode(data), problem
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    try:
        return data.decode(), problem or "not JSON"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), problem or "not text: shown in base64"
