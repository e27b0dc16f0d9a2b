"""The Dockerfile and the compose files as values, for tests that check and run them."""

from __future__ import annotations

import json
import re
import shlex
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

ROOT: Final = Path(__file__).parents[2]
DOCKERFILE: Final = ROOT / "Dockerfile"
COMPOSE: Final = ROOT / "deploy" / "compose.yaml"
REVIEW: Final = ROOT / "deploy" / "review.yaml"

INSTRUCTIONS: Final = frozenset(
    {"ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN", "SHELL"}
    | {"STOPSIGNAL", "USER", "VOLUME", "WORKDIR"}
)


class Instruction(NamedTuple):
    name: str
    text: str
    stage: int
    """From 0 on; -1 before the first FROM."""

    def words(self) -> list[str]:
        """Of the exec form (JSON), or else of a shell line."""
        if self.text.lstrip().startswith("["):
            return [str(word) for word in json.loads(self.text)]
        return shlex.split(self.text)


def instructions(text: str) -> list[Instruction]:
    """Comments go, lines that end in a backslash are joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    found: list[Instruction] = []
    stage = -1
    for line in filter(str.strip, joined.splitlines()):
        name, _, rest = line.strip().partition(" ")
        if name not in INSTRUCTIONS:
            raise ValueError(f"no instruction of a Dockerfile, or not in capitals: {line!r}")
        stage += name == "FROM"
        found.append(Instruction(name, rest.strip(), stage))
    return found


def health_command(found: list[Instruction]) -> list[str]:
    [check] = [one for one in found if one.name == "HEALTHCHECK"]
    options, _, command = check.text.partition(" CMD ")
    assert all(option.startswith("--") for option in options.split()), options
    return Instruction("CMD", command, check.stage).words()


def environment(found: list[Instruction], stage: int) -> dict[str, str]:
    return dict(word.split("=", 1) for one in found if (one.name, one.stage) == ("ENV", stage) for word in one.words())


def is_ignored(path: str, rules: list[str]) -> bool:
    """The last rule that matches decides; a rule for a folder holds for what is in it."""
    ignored = False
    parents = [path, *(str(parent) for parent in Path(path).parents if str(parent) != ".")]
    for rule in rules:
        pattern = rule.removeprefix("!").removeprefix("**/")
        names = [Path(one).name for one in parents] if rule.removeprefix("!").startswith("**/") else parents
        if any(fnmatch(name, pattern) for name in names):
            ignored = not rule.startswith("!")
    return ignored


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that occurs twice in a mapping; YAML keeps the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if key.value != "<<"]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise ValueError(f"keys occur twice: {sorted(twice)}")
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    return yaml.load(path.read_text(), _UniqueKeys)


def resolved(value: Any, variables: dict[str, str]) -> Any:
    """With `${NAME}` and `${NAME:-default}` filled in. Raises `KeyError` for a variable without a value."""
    if isinstance(value, dict):
        return {key: resolved(one, variables) for key, one in value.items()}
    if isinstance(value, list):
        return [resolved(one, variables) for one in value]
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        default = match["default"]
        return variables[match["name"]] if default is None else variables.get(match["name"], default)

    return re.sub(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}", fill, value)
