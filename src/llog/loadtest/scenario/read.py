"""Scenarios from YAML files and from the shipped ones, with `--set path=value` changes; errors name the field."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, Final

import msgspec

from llog.errors import ScenarioInvalid
from llog.limits import MIB
from llog.loadtest.scenario.model import Scenario

FILE_BYTES_MAX: Final = MIB
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
    try:
        return msgspec.convert(content, Scenario, strict=True)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `")
        raise ScenarioInvalid(source, path.rstrip("`").removeprefix("$").removeprefix("."), reason) from None


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
        # Aliases would allow a small file to describe a huge value.
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise ScenarioInvalid(source, "", f"aliases are not supported: *{event.anchor}")
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ScenarioInvalid(source, "", f"not YAML: {error}") from None


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
