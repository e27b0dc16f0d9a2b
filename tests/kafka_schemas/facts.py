"""From Kafka's message definitions to the facts in our notation (`llog.kafka.codec.table` describes it).

Version ranges are cut to the versions that exist, and what repeats the parent's range is left out. A definition that
uses something the codec does not support is refused here, with its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from llog.kafka.codec.table import BUFFERS, FIXED, NO_VERSIONS, Versions, parse_versions, snake_case
from tests.kafka_schemas.jar import KAFKA_CLIENTS_VERSION, Definition

API_KEYS: Final = frozenset(
    [*range(0, 4), *range(8, 34), 35, 36, 37, 42, 43, 44, 46, 47, 48, 50, 51, 60, 61, 65, 66, 68, 69, 74, 75]
)
"""The APIs that clients and administrators use and that llog serves or will serve."""
OTHERS: Final = ("RequestHeader", "ResponseHeader", "ConsumerProtocolAssignment", "ConsumerProtocolSubscription")
HEAD: Final = (
    f"# Facts about the messages of the Kafka protocol, derived from kafka-clients {KAFKA_CLIENTS_VERSION}.\n"
    "# Written by `make kafka-schemas`; table.py explains the notation.\n"
)

_KNOWN_OF_FIELD: Final = {
    *("name", "type", "versions", "nullableVersions", "taggedVersions", "tag", "default", "ignorable", "fields"),
    *("flexibleVersions", "about", "entityType", "mapKey", "zeroCopy"),  # the last four do not change the bytes
}
_KNOWN_OF_MESSAGE: Final = {
    *("apiKey", "type", "name", "listeners", "validVersions", "flexibleVersions", "latestVersionUnstable"),
    *("fields", "commonStructs"),
}


class UnsupportedDefinition(Exception):
    pass


def table_text(definitions: Iterable[Definition]) -> str:
    """The text of `messages.txt`."""
    wanted = [one for one in definitions if one.get("apiKey") in API_KEYS or one["name"] in OTHERS]
    missing = {*API_KEYS, *OTHERS} - {one.get("apiKey") for one in wanted} - {one["name"] for one in wanted}
    if missing:
        raise UnsupportedDefinition(f"no definition of {sorted(map(str, missing))}")
    wanted.sort(key=lambda one: (one.get("apiKey", 1_000), one["name"]))
    return "\n".join([HEAD, *("\n".join(paragraph(one)) + "\n" for one in wanted)])


def paragraph(definition: Definition) -> Iterator[str]:
    name = definition["name"]
    _refuse_unknown(name, definition, _KNOWN_OF_MESSAGE)
    valid = parse_versions(definition["validVersions"], NO_VERSIONS)
    words = [definition["type"], str(definition.get("apiKey", "")), name, definition["validVersions"]]
    flexible = _cut(parse_versions(definition["flexibleVersions"], valid), valid)
    words.append(f"flexible={_shown(flexible, valid)}")
    if "listeners" in definition:
        words.append(f"listeners={','.join(definition['listeners'])}")
    if definition.get("latestVersionUnstable"):
        words.append("unstable")
    yield " ".join(filter(None, words))
    for struct in _in_order(definition.get("commonStructs", [])):
        yield f"  struct {struct['name']}"
        yield from _fields(name, struct["fields"], valid, depth=2)
    yield from _fields(name, definition["fields"], valid, depth=1)


def _in_order(structs: list[Definition]) -> list[Definition]:
    """Every struct after those that it uses."""
    ordered: list[Definition] = []
    left = list(structs)
    while left:
        names = {struct["name"] for struct in left}
        ready = [s for s in left if not any(f["type"].removeprefix("[]") in names for f in s["fields"])]
        if not ready:
            raise UnsupportedDefinition(f"recursive structs: {sorted(names)}")
        ordered += ready
        left = [struct for struct in left if struct not in ready]
    return ordered


def _fields(message: str, fields: list[Definition], parent: Versions, depth: int) -> Iterator[str]:
    for field in fields:
        where = f"{message}.{field['name']}"
        _refuse_unknown(where, field, _KNOWN_OF_FIELD)
        versions = _cut(parse_versions(field["versions"], parent), parent)
        if versions.last < versions.first:
            continue  # only in versions that no longer exist
        yield "  " * depth + " ".join(_words(where, field, versions, parent))
        yield from _fields(message, field.get("fields", []), versions, depth + 1)


def _words(where: str, field: Definition, versions: Versions, parent: Versions) -> Iterator[str]:
    kind = field["type"]
    nullable = _cut(parse_versions(field.get("nullableVersions", "none"), versions), versions)
    base = kind.removeprefix("[]")
    if not (base in FIXED or base in BUFFERS or base == "string" or base[0].isupper()):
        raise UnsupportedDefinition(f"{where}: type {kind}")
    if kind.startswith("[]") and base in (*BUFFERS, "uuid"):
        raise UnsupportedDefinition(f"{where}: array of {base}")
    yield snake_case(field["name"])
    yield kind + ("?" if nullable == versions else "")
    if versions != parent:
        yield _shown(versions, parent)
    if nullable not in (versions, NO_VERSIONS):
        yield f"nullable={_shown(nullable, versions)}"
    if "tag" in field:
        if _cut(parse_versions(field["taggedVersions"], parent), parent) != versions:
            raise UnsupportedDefinition(f"{where}: tagged in some of its versions only")
        if nullable != NO_VERSIONS and base[0].isupper() and kind == base:
            raise UnsupportedDefinition(f"{where}: a tagged struct that may be null")
        yield f"tag={field['tag']}"
    default = str(field.get("default", "")).lower()
    if default not in ("", "0", "false") and not (default == "null" and kind == "records"):
        yield f"default={default if default in ('null', 'true') else int(default, 0)}"
    if field.get("ignorable"):
        yield "ignorable"
    if "flexibleVersions" in field:
        if field["flexibleVersions"] != "none":
            raise UnsupportedDefinition(f"{where}: flexible versions of its own")
        yield "legacy"


def _refuse_unknown(where: str, definition: Definition, known: set[str]) -> None:
    unknown = definition.keys() - known
    if unknown:
        raise UnsupportedDefinition(f"{where}: unknown facts {sorted(unknown)}")


def _cut(versions: Versions, within: Versions) -> Versions:
    cut = Versions(max(versions.first, within.first), min(versions.last, within.last))
    return cut if cut.first <= cut.last else NO_VERSIONS


def _shown(versions: Versions, within: Versions) -> str:
    if versions == NO_VERSIONS:
        return "none"
    if versions.last == within.last:
        return f"{versions.first}+"
    return str(versions.first) if versions.first == versions.last else f"{versions.first}-{versions.last}"
