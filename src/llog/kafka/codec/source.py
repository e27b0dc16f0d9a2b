"""Python source under construction: lines, the field that each line is about, and the objects that they name."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Place(NamedTuple):
    """A field that a line reads or writes."""

    path: str
    """Array indexes are the names of loop variables: `topics[{i1}].name`."""
    end: int = 0
    """End of its bytes in a run of several fields, counted from the start of the run."""


class Source:
    def __init__(self, names: dict[str, object]) -> None:
        self.lines: list[str] = []
        self.places: dict[int, list[Place]] = {}
        """By line number, which counts from 1."""
        self.names = names
        self._depth = 0
        self._variables = 0

    def line(self, text: str, *places: Place | str) -> None:
        self.lines.append("    " * self._depth + text)
        if places:
            self.places[len(self.lines)] = [Place(one) if isinstance(one, str) else one for one in places]

    @contextmanager
    def block(self, text: str, *places: Place | str) -> Iterator[None]:
        self.line(text, *places)
        self._depth += 1
        yield
        self._depth -= 1

    def variable(self, prefix: str) -> str:
        self._variables += 1
        return f"{prefix}{self._variables}"

    def constant(self, prefix: str, value: object) -> str:
        """A name for an object that is no literal, such as a class."""
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def unpacker(self, codes: str) -> str:
        return self._method("unpack_from", codes)

    def packer(self, codes: str) -> str:
        return self._method("pack", codes)

    def _method(self, method: str, codes: str) -> str:
        name = f"{method}_{codes}".replace("?", "bool")
        self.names.setdefault(name, getattr(struct.Struct(f">{codes}"), method))
        return name
