"""The first error in an answer, for metrics and log lines.

Kafka's answers have an error code of their own, or one for each topic, partition or resource in them. For every class
of answers, the places of the codes are found once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, get_args, get_type_hints

from msgspec import Struct

_Find = Callable[[Any], int]


def first_error(message: Struct) -> int:
    """0: there is none."""
    find = _finder(type(message))
    return 0 if find is None else find(message)


@cache
def _finder(kind: type[Struct]) -> _Find | None:
    """None: a message of this class has no place for an error."""
    hints = get_type_hints(kind)
    finders = list(_finders(hints))
    if not finders:
        return None
    return finders[0] if len(finders) == 1 else partial(_any_of, finders)


def _finders(hints: dict[str, Any]) -> Iterator[_Find]:
    if "error_code" in hints:
        yield _own
    for name, hint in hints.items():
        for element in get_args(hint):
            # Lists of structs, which may be null.
            kinds = [element, *get_args(element)]
            for kind in kinds:
                if isinstance(kind, type) and issubclass(kind, Struct) and (find := _finder(kind)) is not None:
                    yield partial(_among, name, find)


def _own(message: Any) -> int:
    return int(message.error_code)


def _among(name: str, find: _Find, message: Any) -> int:
    for element in getattr(message, name) or ():
        if code := find(element):
            return code
    return 0


def _any_of(finders: list[_Find], message: Any) -> int:
    for find in finders:
        if code := find(message):
            return code
    return 0
