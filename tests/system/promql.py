"""Which metrics a PromQL expression asks for, by leaving out everything else that has a name in it."""

from __future__ import annotations

import re
from typing import Final

_NOT_METRICS: Final = (
    re.compile(r'"(?:[^"\\]|\\.)*"'),  # texts
    re.compile(r"\{[^}]*\}"),  # matchers
    re.compile(r"\[[^\]]*\]"),  # ranges
    re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)"),
)
_WORDS: Final = frozenset({"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "inf", "nan"})
_NAME: Final = re.compile(r"(?<![\w:.])([a-zA-Z_:][\w:]*)\b(?!\s*\()")


def metrics_in(expression: str) -> set[str]:
    for pattern in _NOT_METRICS:
        expression = pattern.sub(" ", expression)
    return {name for name in _NAME.findall(expression) if name.lower() not in _WORDS}
