"""The reference of scenario files, docs/reference/scenario.md, from the model: `python -m llog.loadtest.scenario.page`.

Types, ranges and defaults come from the structs, the meaning from the docstrings below their fields.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import NODEFAULT
from msgspec.inspect import IntType, StrType, StructType, Type, UnionType, VarTupleType, type_info

from llog.loadtest.scenario import model

_INTRODUCTION: Final = """\
# Scenario files

Written by `make docs` from `llog/loadtest/scenario/model.py`.

A scenario is a YAML file of at most 64 KiB without aliases; `llog loadtest run FILE` runs it
([load tests](../loadtest.md)). Only `name` is required. `--set stack.brokers=2`, `--set topics[0].partitions=8` or
`--set 'stack.settings={LLOG_X: 1}'` changes a field; the value is YAML. An unknown, repeated or wrong field ends the
command with exit code 2 and its name. Units are in the names: `mb` is 10^6 bytes of record values, `s` seconds, `ms`
milliseconds.
"""
_SECTIONS: Final = (
    ("The file", "", model.Scenario),
    ("`stack`", "stack.", model.Stack),
    ("`stack.compactor`", "stack.compactor.", model.Compactor),
    ("`topics`", "topics[].", model.Topic),
    ("`records`", "records.", model.Records),
    ("`load`", "load.", model.Load),
    ("`load.search`", "load.search.", model.Search),
    ("`producers`", "producers.", model.Producers),
    ("`consumers`", "consumers.", model.Consumers),
    ("`routing`", "routing.", model.Routing),
    ("`faults`", "faults[].", model.Fault),
    ("`targets`", "targets.", model.Targets),
    ("`collect`", "collect.", model.Collect),
)


def markdown() -> str:
    parts = [_INTRODUCTION]
    for title, prefix, kind in _SECTIONS:
        rows = "\n".join(_rows(prefix, kind))
        about = f"{_docstring(kind)}\n\n" if kind is not model.Scenario and _docstring(kind) else ""
        parts.append(f"## {title}\n\n{about}| field | default | value |\n|---|---|---|\n{rows}\n")
    return "\n".join(parts)


def field_docs(kind: type) -> dict[str, str]:
    """The strings below the fields of a struct."""
    [definition] = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    docs, name = {}, ""
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docs[name] = " ".join(str(node.value.value).split())
            name = ""
        else:
            name = ""
    return docs


def _rows(prefix: str, kind: type) -> Iterator[str]:
    docs, shown = field_docs(kind), type_info(kind)
    assert isinstance(shown, StructType)
    for field in shown.fields:
        value = f"{_describe(field.type)}. {docs.get(field.name, '')}".strip()
        yield f"| `{prefix}{field.name}` | {_default(field)} | {value.replace('|', chr(92) + '|')} |"


def _docstring(kind: type) -> str:
    own = kind.__dict__.get("__doc__") or ""
    return "" if own.startswith(f"{kind.__name__}(") else " ".join(own.split())


def _default(field: msgspec.inspect.Field) -> str:
    if field.required:
        return "required"
    default = field.default if field.default is not NODEFAULT else field.default_factory()
    if default is None:
        return "not set"
    if isinstance(default, msgspec.Struct) or default in ((), {}, ""):
        return ""
    if isinstance(default, tuple) and isinstance(default[0], msgspec.Struct):
        return "one topic"
    text = msgspec.json.encode(default).decode() if not isinstance(default, str) else default
    return f"`{text}`".replace('"', "")


def _describe(shown: Type) -> str:
    if isinstance(shown, UnionType):
        options = [_describe(option) for option in shown.types if not isinstance(option, msgspec.inspect.NoneType)]
        return " or ".join(options)
    if isinstance(shown, msgspec.inspect.LiteralType):
        return " or ".join(f"`{value}`" for value in shown.values)
    if isinstance(shown, VarTupleType):
        return f"list{_between(shown.min_length, shown.max_length, ' entries')}: {_describe(shown.item_type)}"
    if isinstance(shown, StructType):
        return "mapping, described below"
    if isinstance(shown, msgspec.inspect.DictType):
        return "mapping of names to values"
    if isinstance(shown, IntType | msgspec.inspect.FloatType):
        name = "whole number" if isinstance(shown, IntType) else "number"
        return f"{name}{_range(shown)}"
    if isinstance(shown, StrType):
        return "text" if shown.pattern is None else f"text like `{shown.pattern}`"
    return "true or false" if isinstance(shown, msgspec.inspect.BoolType) else "value"


def _range(shown: Any) -> str:
    if shown.gt is not None:
        return f" above {_plain(shown.gt)}" + ("" if shown.le is None else f", at most {_plain(shown.le)}")
    return _between(shown.ge, shown.le if shown.le is not None else None if shown.lt is None else shown.lt - 1)


def _between(low: float | None, high: float | None, unit: str = "") -> str:
    if low is not None and high is not None:
        return f", {_plain(low)} to {_plain(high)}{unit}"
    if low is not None:
        return f", at least {_plain(low)}{unit}"
    return "" if high is None else f", at most {_plain(high)}{unit}"


def _plain(number: float) -> str:
    return f"{number:,.10g}" if number != int(number) else f"{int(number):,}"


if __name__ == "__main__":
    print(markdown(), end="")
