"""Elements of SVG and HTML as text. All text and attribute values are escaped here and nowhere else."""

from __future__ import annotations

import re
from html import escape
from typing import Final

_CONTROL: Final = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)
"""Not allowed in a document, or able to reorder the text around them."""
_VOID: Final = frozenset(("br", "hr", "meta", "line", "rect", "path", "circle"))


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def text(value: object) -> Markup:
    return Markup(escape(_CONTROL.sub("�", str(value))))


def join(*parts: str) -> Markup:
    return Markup("".join(part if isinstance(part, Markup) else text(part) for part in parts))


def element(name: str, *children: str, **attributes: object) -> Markup:
    """`class_` is class, `text_anchor` is text-anchor; attributes that are None or False are left out. Children that
    are not `Markup` are escaped."""
    listed = "".join(
        _attribute(key, value) for key, value in attributes.items() if value is not None and value is not False
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{listed}/>")
    return Markup(f"<{name}{listed}>{join(*children)}</{name}>")


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    return f' {name}="{coordinate(value) if isinstance(value, float) else text(value)}"'


def coordinate(value: float) -> str:
    """One decimal is a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")
