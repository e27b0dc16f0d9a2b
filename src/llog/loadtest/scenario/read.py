"""Scenarios from YAML files and from the shipped ones, with `--set path=value` changes; errors name the field."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, Final

import msgspec

from llog.errors import ScenarioInvalid
from llog.limits import KIB
from llog.loadtest.scenario.model import Scenario

FILE_BYTES_MAX: Final = 64 * KIB
DEPTH_MAX: Final = 16
INTEGER_MAX: Final = 2**63 - 1
_SUFFIXES: Final = (".yaml", ".yml")


def shipped() -> dict[str, str]:
    """Texts of the shipped scenarios by name."""
    files = resources.files("llog.loadtest.scenario").joinpath("shipped").iterdir()
    return {file.name.removesuffix(".yaml"): file.read_text("utf-8") for file in sorted(files, key=lambda f: f.name)}


def read_scenario(source: str, changes: Iterable[str] = ()) -> Scenario:
    """`source` is the name of a shipped scenario, or the path of a YAML file. Raises `ScenarioInvalid`."""
    text = shipped().get(source)
    if text is None:
        text = _file_text(source)
    return parse_scenario(text, changes, source)


def parse_scenario(text: str, changes: Iterable[str] = (), source: str = "scenario") -> Scenario:
    content = _yaml(text, source)
    if not isinstance(content, dict):
        raise ScenarioInvalid(source, "", "the file must be a mapping of fields, such as name and stack")
    for change in changes:
        _apply(content, change)
    _check_numbers(content, source, "")
    try:
        return msgspec.convert(content, Scenario, strict=True)
    except msgspec.ValidationError as error:
        raise ScenarioInvalid(source, *_field_and_reason(str(error))) from None


def _field_and_reason(error: str) -> tuple[str, str]:
    """From `reason - at `$.stack.brokers``, `reason - at `key` in `$.stack`` and `unknown field `x``."""
    reason, _, place = error.partition(" - at ")
    path = place.rpartition("$")[2].rstrip("`").removeprefix(".")
    field = re.fullmatch(r"Object (?:contains unknown|missing required) field `(.*)`", reason, re.DOTALL)
    if field is not None:
        path = f"{path}.{field[1]}" if path else field[1]
    return path, f"a name in it: {reason}" if place.startswith("`key`") else reason


def _check_numbers(value: Any, source: str, path: str) -> None:
    """Numbers that JSON cannot carry would make the run's files unreadable."""
    if isinstance(value, dict):
        for name, part in value.items():
            _check_numbers(part, source, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list):
        for position, part in enumerate(value):
            _check_numbers(part, source, f"{path}[{position}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ScenarioInvalid(source, path, "the number must be finite")
    elif isinstance(value, int) and abs(value) > INTEGER_MAX:
        raise ScenarioInvalid(source, path, f"the number must be from -{INTEGER_MAX} to {INTEGER_MAX}")


def _file_text(source: str) -> str:
    path = Path(source)
    if not source.endswith(_SUFFIXES) and not path.exists():
        raise ScenarioInvalid(source, "", f"no such scenario; shipped are {', '.join(shipped())}, or give a .yaml file")
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ScenarioInvalid(source, "", f"the file exceeds {FILE_BYTES_MAX} bytes")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioInvalid(source, "", f"the file cannot be read: {error}") from None


def _yaml(text: str, source: str) -> Any:
    import yaml

    try:
        # Aliases let a small file describe a huge value, and the parser's time grows with the square of the depth.
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH_MAX:
                raise ScenarioInvalid(source, "", f"values are nested deeper than {DEPTH_MAX}")
            if isinstance(event, yaml.AliasEvent):
                raise ScenarioInvalid(source, "", f"aliases are not supported: *{event.anchor}")
        _check_names(yaml.compose(text, Loader=yaml.SafeLoader), source)
        return yaml.safe_load(text)
    except ScenarioInvalid:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ScenarioInvalid(source, "", f"not YAML: {error}") from None


def _check_names(node: Any, source: str) -> None:
    """YAML would take the last of two fields of one name."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        seen = set[str]()
        for key, part in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise ScenarioInvalid(source, key.value, "the field is given twice")
            seen.add(str(key.value))
            _check_names(part, source)
    elif isinstance(node, yaml.SequenceNode):
        for part in node.value:
            _check_names(part, source)


def _apply(content: dict[str, Any], change: str) -> None:
    """`stack.brokers=2`, `topics[0].partitions=8`, `load.search={}`. The value is YAML."""
    path, equals, value = change.partition("=")
    if not equals or not path:
        raise ScenarioInvalid("--set", path, "write it as stack.brokers=2")
    *parents, last = path.replace("[", ".").replace("]", "").split(".")
    place: Any = content
    for step in parents:
        place = _descend(place, step, path)
    if isinstance(place, list):
        place[_position(place, last, path)] = _yaml(value, "--set")
    elif isinstance(place, dict):
        place[last] = _yaml(value, "--set")
    else:
        raise ScenarioInvalid("--set", path, "there are no fields below this value")


def _descend(place: Any, step: str, path: str) -> Any:
    if isinstance(place, list):
        return place[_position(place, step, path)]
    if not isinstance(place, dict):
        raise ScenarioInvalid("--set", path, "there are no fields below this value")
    if place.get(step) is None:
        place[step] = {}
    return place[step]


def _position(place: list[Any], step: str, path: str) -> int:
    if not step.isascii() or not step.isdigit() or int(step) >= len(place):
        raise ScenarioInvalid("--set", path, f"{step!r} must be a position below {len(place)}")
    return int(step)
