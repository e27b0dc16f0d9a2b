"""What the members of a consumer group subscribe to: topic names, and regular expressions in RE2.

RE2 matches in time linear in the name, whatever the pattern; the size of patterns, the memory of a compiled one and the
names examined are bounded besides. A pattern must match a topic's whole name, as in Kafka.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import re2

from llog.limits import MIB

GROUP_REGEX_CHARS_MAX: Final = 1_000
GROUP_REGEX_MEMORY_BYTES_MAX: Final = MIB
"""Of one compiled pattern and its matching."""
GROUP_REGEX_TOPICS_MAX: Final = 100_000
"""Topic names that one evaluation examines. In a larger catalogue a pattern is refused rather than matched in part."""


class CatalogueTopic(NamedTuple):
    topic_id: str
    """In hex. A topic that was deleted and made again has another one."""
    partitions: int


Catalogue = Mapping[str, CatalogueTopic]
"""Topic name → topic: what the members of a group may know of. The caller replaces it and never changes it."""


Describes = Callable[[str, str, str], bool]
"""Whether a principal, on a host as Kafka shows it, may describe a topic."""


class InvalidPattern(NamedTuple):
    reason: str


def _options() -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = GROUP_REGEX_MEMORY_BYTES_MAX
    return options


def compile_pattern(pattern: str) -> Callable[[str], bool] | InvalidPattern:
    if len(pattern) > GROUP_REGEX_CHARS_MAX:
        return InvalidPattern(f"has {len(pattern)} characters, at most {GROUP_REGEX_CHARS_MAX} are accepted")
    try:
        compiled = re2.compile(pattern, options=_options())
    except re2.error as error:
        reason = error.args[0] if error.args else error
        return InvalidPattern(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason))
    except UnicodeEncodeError:
        return InvalidPattern("is not valid Unicode")
    return lambda name: compiled.fullmatch(name) is not None


class Patterns:
    """The patterns of one group and the topics that each matches, so that members with the same one share it."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._matched: dict[str, frozenset[str]] = {}
        self._tests: dict[str, Callable[[str], bool]] = {}
        self._catalogue = catalogue

    def add(self, pattern: str, *, of_any_catalogue: bool = False) -> InvalidPattern | None:
        """Resolve a pattern, unless it cannot be. One that a record brings is resolved in a catalogue of any size."""
        if not pattern or pattern in self._matched:
            return None
        test = compile_pattern(pattern)
        if isinstance(test, InvalidPattern):
            return test
        if len(self._catalogue) > GROUP_REGEX_TOPICS_MAX and not of_any_catalogue:
            return InvalidPattern(
                f"would be compared with {len(self._catalogue)} topics, at most {GROUP_REGEX_TOPICS_MAX} are possible: "
                "subscribe by names"
            )
        self._tests[pattern] = test
        self._matched[pattern] = frozenset(name for name in self._catalogue if test(name))
        return None

    def topics_of(self, pattern: str) -> frozenset[str]:
        return self._matched.get(pattern, frozenset())

    def keep(self, patterns: Iterable[str]) -> None:
        """Forget the patterns that nobody uses any more."""
        used = frozenset(patterns)
        self._matched = {pattern: names for pattern, names in self._matched.items() if pattern in used}
        self._tests = {pattern: test for pattern, test in self._tests.items() if pattern in used}

    def update(self, catalogue: Catalogue) -> None:
        """Compare the names that are new with every pattern, and forget those that are gone. While a catalogue is above
        the limit, names that are new are not seen."""
        before, self._catalogue = self._catalogue, catalogue
        if not self._matched:
            return
        if len(catalogue) > GROUP_REGEX_TOPICS_MAX:
            self._catalogue = {name: topic for name, topic in catalogue.items() if name in before}
        new = [name for name in self._catalogue if name not in before]
        for pattern, names in self._matched.items():
            test = self._tests[pattern]
            kept = frozenset(name for name in names if name in self._catalogue)
            self._matched[pattern] = kept | frozenset(name for name in new if test(name))


def topics_hash(names: Iterable[str], catalogue: Catalogue) -> str:
    """Names what a target was computed from: it changes when a subscribed topic appears, grows, or is made again."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(set(names)):
        topic = catalogue.get(name)
        if topic is not None:
            digest.update(f"{name}\0{topic.topic_id}\0{topic.partitions}\n".encode())
    return digest.hexdigest()
