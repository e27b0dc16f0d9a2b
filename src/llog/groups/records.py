"""What is stored of a group: a head, and pages with the members that do not fit into it.

    @cluster/groups/{group}                                the head, changed by compare-and-set only
    @cluster/groups/{group}/page:{generation}:{…}          pages with members, created before the head that names them
    @cluster/groups/{group}/offset:{topic}:{partition}:…   positions (`llog.broker.groups`)

A page's name holds the generation, the edition of the head and the coordinator that wrote it, so no two writers ever
use the same name: a page never changes, and a crash between pages and head leaves pages that no head names. The
coordinator that replaced a head deletes the pages that only the former one named, and `leftover_pages`.

Fields are only added, with a default; a head that a newer release wrote can be read and not written back (h18).
`generation` is the generation of a classic group or the epoch of a consumer group: one number that never goes back,
also when an empty group changes its type, because stored positions are compared with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from llog.errors import FormatError
from llog.formats.buffers import Buffer, json_decoder, json_value
from llog.formats.values import Count, Value, encode_value
from llog.limits import KIB, METADATA_VALUE_BYTES_MAX

GROUP_HEAD_MEMBER_BYTES_MAX: Final = 64 * KIB
"""Encoded members that a head holds itself. More go to pages, so that listing thousands of groups reads small heads."""
GROUP_PAGE_BYTES: Final = 256 * KIB
"""Target size of a page; a single larger member gets a page of its own."""
GROUP_PAGES_MAX: Final = 1_000
GROUP_MEMBER_BYTES_MAX: Final = 640 * KIB
"""Metadata and assignment of one classic member, before base64 makes four bytes of three."""
GROUP_MEMBER_RECORD_BYTES_MAX: Final = METADATA_VALUE_BYTES_MAX - 16 * KIB
"""One encoded member, so that a page with nothing else fits into one value."""
PAGE_PREFIX: Final = "page:"

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
SIMPLE: Final = "simple"

assert GROUP_MEMBER_BYTES_MAX * 4 // 3 + 32 * KIB < GROUP_MEMBER_RECORD_BYTES_MAX
assert GROUP_PAGE_BYTES < METADATA_VALUE_BYTES_MAX

Partitions = dict[str, tuple[int, ...]]
"""Topic id in hex → partitions, in order."""


class MemberProtocol(msgspec.Struct, frozen=True, kw_only=True):
    """A protocol that a classic member offers: the name of an assignor, and metadata that only members read."""

    name: str
    metadata: bytes = b""


class ClassicMember(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[MemberProtocol, ...] = ()
    assignment: bytes = b""


class ConsumerMember(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    instance_id: str | None = None
    rack_id: str = ""
    client_id: str = ""
    client_host: str = ""
    principal: str = ""
    rebalance_timeout_ms: int
    topics: tuple[str, ...] = ()
    regex: str = ""
    assignor: str = ""
    epoch: int = 0
    """-2: a static member that left for a short time and keeps its partitions."""
    previous_epoch: int = 0
    assigned: dict[str, dict[int, int]] = {}
    """Topic id → partition → the epoch in which the member got it."""
    revoking: dict[str, dict[int, int]] = {}
    """Partitions that the member shall give up and still may read."""
    target: Partitions = {}


class GroupHead(Value, frozen=True, kw_only=True):
    """The record of a group."""

    type: str
    state: str
    """Classic: Empty, PreparingRebalance, CompletingRebalance, Stable. Otherwise Empty or Stable."""
    generation: Count = 0
    edition: Count = 0
    """Grows by one with every write."""
    writer: str = ""
    """The machine that wrote this edition, so that it recognises its own write after a lost answer. Each machine has
    a name of its own, without ':'."""
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    classic: tuple[ClassicMember, ...] = ()
    consumer: tuple[ConsumerMember, ...] = ()
    pages: tuple[str, ...] = ()
    """Names of the pages that hold the members."""
    members: Count = 0
    topics_hash: str = ""
    """Of the topics and partitions that a consumer group's target was computed from."""
    empty_since_ms: Count = 0
    written_at_ms: Count = 0


class GroupPage(Value, frozen=True, kw_only=True):
    generation: Count
    number: Count
    classic: tuple[ClassicMember, ...] = ()
    consumer: tuple[ConsumerMember, ...] = ()


class StoredGroup(NamedTuple):
    """A group as records: the pages, which are written first, and the head that names them."""

    pages: dict[str, GroupPage]
    head: GroupHead


_HEADS: Final = json_decoder(GroupHead)
_PAGES: Final = json_decoder(GroupPage)
_MEMBERS: Final = msgspec.json.Encoder()


def decode_head(data: Buffer, source: str) -> GroupHead:
    return json_value(_HEADS, data, source, GroupHead.__name__)


def decode_page(data: Buffer, source: str) -> GroupPage:
    return json_value(_PAGES, data, source, GroupPage.__name__)


def encode_record(value: GroupHead | GroupPage, source: str) -> bytes:
    """Encode a head or a page. Refuses one that a newer release wrote (h18)."""
    return encode_value(value, source)


def to_records(head: GroupHead) -> StoredGroup:
    """Split a head with all its members into the head to store and its pages."""
    members: tuple[ClassicMember | ConsumerMember, ...] = (*head.classic, *head.consumer)
    sizes = [len(_MEMBERS.encode(member)) for member in members]
    head = replace(head, members=len(sizes), pages=())
    if max(sizes, default=0) > GROUP_MEMBER_RECORD_BYTES_MAX:
        largest = members[sizes.index(max(sizes))]
        raise FormatError(f"member {largest.member_id}", f"has {max(sizes)} bytes, one value cannot hold it")
    if sum(sizes) <= GROUP_HEAD_MEMBER_BYTES_MAX:
        return StoredGroup({}, head)
    pages: dict[str, GroupPage] = {}
    for first, end in _runs(sizes):
        page = GroupPage(
            generation=head.generation,
            number=len(pages),
            classic=head.classic[first:end],
            consumer=head.consumer[first:end],
        )
        pages[_page_name(head, page.number)] = page
    if len(pages) > GROUP_PAGES_MAX:
        raise FormatError(f"group with {len(sizes)} members", f"needs {len(pages)} pages, at most {GROUP_PAGES_MAX}")
    return StoredGroup(pages, replace(head, classic=(), consumer=(), pages=tuple(pages)))


def from_records(head: GroupHead, pages: Mapping[str, GroupPage], source: str) -> GroupHead:
    """The head with all its members, as it was before `to_records`."""
    missing = [name for name in head.pages if name not in pages]
    if missing:
        raise FormatError(source, f"the head names pages that do not exist: {', '.join(missing[:3])}; read it again")
    ordered = [pages[name] for name in head.pages]
    classic = (*head.classic, *(member for page in ordered for member in page.classic))
    consumer = (*head.consumer, *(member for page in ordered for member in page.consumer))
    if len(classic) + len(consumer) != head.members:
        raise FormatError(source, f"{head.members} members expected, {len(classic) + len(consumer)} found")
    return replace(head, classic=classic, consumer=consumer, pages=())


def leftover_pages(names: Iterable[str], head: GroupHead) -> list[str]:
    """The pages among these items of a group that no head names or will ever name: of the head's edition or earlier
    ones, and not among its pages. Later editions are left alone: another coordinator may be about to name them."""
    named = frozenset(head.pages)
    return [name for name in names if name not in named and 0 <= _edition_of(name) <= head.edition]


def simple_head(writer: str, now_ms: int, generation: int = 0) -> GroupHead:
    """The head of a group without members, which exists because positions were committed for it."""
    return GroupHead(
        type=SIMPLE,
        state="Empty",
        generation=generation,
        edition=1,
        writer=writer,
        empty_since_ms=now_ms,
        written_at_ms=now_ms,
    )


def _page_name(head: GroupHead, number: int) -> str:
    return f"{PAGE_PREFIX}{head.generation:010d}:{head.edition:010d}:{head.writer}:{number:04d}"


def _edition_of(name: str) -> int:
    parts = name.split(":")
    return int(parts[2]) if len(parts) == 5 and name.startswith(PAGE_PREFIX) and parts[2].isdecimal() else -1


def _runs(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Cut members into runs of at most a page each."""
    runs: list[tuple[int, int]] = []
    first = size = 0
    for position, member_bytes in enumerate(sizes):
        if position > first and size + member_bytes > GROUP_PAGE_BYTES:
            runs.append((first, position))
            first, size = position, 0
        size += member_bytes
    runs.append((first, len(sizes)))
    return runs
