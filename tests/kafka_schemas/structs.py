"""From the table of facts to the source of the message classes, one module per API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from llog.kafka.codec.table import NO_VERSIONS, ZERO_UUID, Field, Message, Struct, Versions

_PYTHON_TYPES: Final = {"bool": "bool", "float64": "float", "uuid": "bytes", "string": "str", "bytes": "Buffer"}
_IMPORTS: Final = {"ZERO_UUID": "table", "Buffer": "runtime", "Records": "runtime"}


class NameClash(Exception):
    pass


def modules(messages: dict[str, Message]) -> dict[str, str]:
    """The source of each module by its name."""
    by_module: dict[str, list[Message]] = {}
    for message in messages.values():
        by_module.setdefault(message.module, []).append(message)
    return {name: _module(of_module) for name, of_module in by_module.items()}


def _module(messages: list[Message]) -> str:
    classes: dict[str, str] = {}
    for message in messages:
        for name, text in _classes(message, message.body, message.versions):
            if classes.setdefault(name, text) != text:
                raise NameClash(f"{message.name}: {name} has other fields in the same module")
    body = "\n\n".join(classes.values())
    lines = ["# Written by `make kafka-schemas` from messages.txt; do not edit.", f'"""{_title(messages)}"""', ""]
    imported = "Struct, field" if "field(" in body else "Struct"
    lines += ["from __future__ import annotations", "", f"from msgspec import {imported}"]
    used = sorted(name for name in _IMPORTS if re.search(rf"\b{name}\b", body))
    lines += [""] if used else []
    for module in sorted({_IMPORTS[name] for name in used}):
        names = [name for name in used if _IMPORTS[name] == module]
        lines.append(f"from llog.kafka.codec.{module} import {', '.join(names)}")
    return "\n".join([*lines, "", "", body])


def _title(messages: list[Message]) -> str:
    first = messages[0]
    if first.key is None:
        return " and ".join(message.name for message in messages) + "."
    api = first.name.removesuffix("Request")
    flexible = f"flexible from {first.flexible.first}" if first.flexible != NO_VERSIONS else "none is flexible"
    unstable = "; the latest is not final" if first.unstable else ""
    return f"{api}, API key {first.key}, versions {_shown(first.versions)}, {flexible}{unstable}."


def _classes(message: Message, struct: Struct, parent: Versions) -> Iterator[tuple[str, str]]:
    """A struct's class after those of its fields. `parent`: the versions that have the struct."""
    for field in struct.fields:
        if field.struct is not None:
            yield from _classes(message, field.struct, field.versions)
    lines = [f"class {struct.name}(Struct, frozen=True, gc=False):"]
    lines += [f"    {_field(message, field, parent)}" for field in struct.fields] or ["    pass"]
    yield struct.name, "\n".join(lines) + "\n"


def _field(message: Message, field: Field, parent: Versions) -> str:
    kind = _PYTHON_TYPES.get(field.type, "int") if field.struct is None else field.struct.name
    if field.type == "records":
        kind = "Records" if message.kind == "response" else "Buffer"
    if field.array:
        kind = f"list[{kind}]"
    if field.nullable != NO_VERSIONS or field.default is None:
        kind += " | None"
    remarks = [] if field.versions in (parent, message.versions) else [_shown(field.versions)]
    if field.nullable not in (field.versions, NO_VERSIONS):
        remarks.append(f"null in {_shown(field.nullable)}")
    if field.tag is not None:
        remarks.append(f"tag {field.tag}")
    remark = f"  # {', '.join(remarks)}" if remarks else ""
    return f"{field.name}: {kind} = {_default(field)}{remark}"


def _default(field: Field) -> str:
    if field.default == ZERO_UUID:
        return "ZERO_UUID"
    if isinstance(field.default, str):
        return f'"{field.default}"'
    if isinstance(field.default, bytes):
        return 'b""'
    if field.default is None or (field.struct is None and not field.array):
        return repr(field.default)
    if field.array or field.struct is None:
        return "[]"
    # One object for all instances, unless a list in it could be changed through one of them.
    return f"field(default_factory={field.struct.name})" if _holds_list(field.struct) else f"{field.struct.name}()"


def _holds_list(struct: Struct) -> bool:
    return any(field.array or (field.struct is not None and _holds_list(field.struct)) for field in struct.fields)


def _shown(versions: Versions) -> str:
    return str(versions.first) if versions.first == versions.last else f"{versions.first}-{versions.last}"
