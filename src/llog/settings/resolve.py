"""From variables and arguments to one value per setting, with where each came from.

The order of precedence: argument, own variable, fallback variable,
derived from other settings, default. `settings.py` says what there is, this says which value wins.

Every wrong value is reported, not only the first. An empty variable counts as not set, except where it turns something
off. Only the given mapping is read, not the environment of the process. No problem and no source ever shows a secret.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from llog.errors import InvalidArgument, SettingsError, SettingsErrors
from llog.settings.kinds import ValueKind
from llog.settings.urls import MASK

PREFIX: Final = "LLOG_"
# Read by the project's own tests and scripts, not by the product.
TOOLING_VARIABLES: Final = frozenset(
    {"LLOG_LOADTEST_RUN_DIR", "LLOG_LOADTEST_SCENARIO", "LLOG_SERVERS_CACHE", "LLOG_SOAK"}
)


class Origin(Enum):
    DEFAULT = "default"
    ENVIRONMENT = "environment"
    FALLBACK = "fallback"
    DERIVED = "derived from"
    ARGUMENT = "argument"


class Source(NamedTuple):
    """Where a value came from; as text `environment LLOG_X`, `derived from LLOG_X`, …"""

    origin: Origin
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join([self.origin.value, " and ".join(self.names)]).rstrip()


class Derived(NamedTuple):
    value: Any
    names: tuple[str, ...]
    """The variables it follows from."""


Derive = Callable[["Draft"], Derived | None]
Check = Callable[["Draft"], Sequence[SettingsError]]


@dataclass(frozen=True)
class Setting:
    """One row of the table in `settings.py`."""

    name: str
    section: str
    kind: ValueKind
    doc: str
    default: Any
    derive: Derive | None
    default_doc: str
    """What the reference says about a default that depends on something."""
    secret: bool
    fallbacks: tuple[str, ...]
    fallback_beside: str
    """A fallback counts only if this other setting came from a fallback too."""
    other_name: str
    """Another setting with the same meaning; given as an argument, it beats this setting's variable."""
    alias: str
    """An older name of the variable, which still works."""
    empty_turns_off: bool = False
    """An empty value counts and means None, instead of the default."""

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def variables(self) -> tuple[str, ...]:
        return (self.variable, self.alias) if self.alias else (self.variable,)

    def display(self, value: Any) -> str:
        """The value with secrets masked; empty if there is none."""
        if value is None:
            return ""
        return MASK if self.secret else self.kind.display(value)


class Unresolved(Exception):
    """The value of this setting is wrong; `Draft.problems` already holds the reason."""


class Draft:
    """Settings during resolution; derivations and checks read other settings through it."""

    def __init__(self, table: Sequence[Setting], environ: Mapping[str, str], overrides: Mapping[str, object]) -> None:
        self.environ = environ
        self._settings = {setting.name: setting for setting in table}
        self._overrides = {name: given for name, given in overrides.items() if given is not None}
        self._done: dict[str, tuple[Any, Source]] = {}
        self._under_way: set[str] = set()
        self._failed: set[str] = set()
        self.problems: list[SettingsError] = []

    def value(self, name: str) -> Any:
        return self._resolve(name)[0]

    def source(self, name: str) -> Source:
        return self._resolve(name)[1]

    def given(self, name: str) -> bool:
        """Whether an argument or variable sets exactly this setting, and is not overridden."""
        return name in self._overrides or bool(self._own_variable(self._settings[name]))

    def may_contradict(self, first: str, second: str) -> bool:
        """Whether both were given with the same precedence (an argument beats a variable)."""
        return self.given(first) and self.given(second) and (first in self._overrides) == (second in self._overrides)

    def called(self, name: str) -> str:
        """The variable or argument that sets it, for messages."""
        return f"argument {name}" if name in self._overrides else self._settings[name].variable

    def shown(self, name: str) -> str:
        return self._settings[name].display(self.value(name))

    def _read(self, variable: str) -> str:
        return self.environ.get(variable, "").strip()

    def _resolve(self, name: str) -> tuple[Any, Source]:
        if name in self._failed:
            raise Unresolved(name)
        if name not in self._done:
            assert name not in self._under_way, f"{name} is derived from itself"
            self._under_way.add(name)
            try:
                self._done[name] = self._work_out(self._settings[name])
            except Unresolved:
                self._failed.add(name)
                raise
        return self._done[name]

    def _own_variable(self, setting: Setting) -> str:
        """The variable, or its alias, that is set and counts; empty if there is none."""
        if setting.other_name in self._overrides:
            return ""
        empty_counts = setting.empty_turns_off
        return next(
            (name for name in setting.variables if self._read(name) or (empty_counts and name in self.environ)), ""
        )

    def _work_out(self, setting: Setting) -> tuple[Any, Source]:
        if setting.name in self._overrides:
            label = f"argument {setting.name}"
            return self._convert(setting, label, self._overrides[setting.name]), Source(Origin.ARGUMENT)
        if variable := self._own_variable(setting):
            value = self._convert(setting, variable, self._read(variable))
            self._check_alias(setting, value)
            return value, Source(Origin.ENVIRONMENT, (variable,))
        for variable in setting.fallbacks:
            text = self._read(variable)
            beside = setting.fallback_beside
            if text and (not beside or self.source(beside).origin is Origin.FALLBACK):
                return self._convert(setting, variable, text), Source(Origin.FALLBACK, (variable,))
        derived = setting.derive(self) if setting.derive is not None else None
        if derived is not None:
            return self._convert(setting, setting.variable, derived.value), Source(Origin.DERIVED, derived.names)
        return setting.default, Source(Origin.DEFAULT)

    def _check_alias(self, setting: Setting, value: Any) -> None:
        if not setting.alias or not (text := self._read(setting.alias)):
            return
        if self._convert(setting, setting.alias, text) != value:
            reason = f"{setting.alias} is an older name of {setting.variable}; set one of them, or both to one value"
            given = f"{self._read(setting.variable)} and {text}"
            self.problems.append(SettingsError(f"{setting.variable} and {setting.alias}", given, reason))
            raise Unresolved(setting.name)

    def _convert(self, setting: Setting, label: str, given: object) -> Any:
        if setting.empty_turns_off and isinstance(given, str) and not given.strip():
            return None
        try:
            return setting.kind.convert(given)
        except ValueError as reason:
            # An invalid value cannot be formatted, but it can still contain a password.
            shown = MASK if setting.secret else (setting.kind.show or str)(str(given))
            self.problems.append(SettingsError(label, shown, f"{reason}; accepted: {setting.kind.accepted}"))
            raise Unresolved(setting.name) from None


class Resolved(NamedTuple):
    values: dict[str, Any]
    sources: dict[str, Source]


def resolve(
    table: Sequence[Setting], checks: Sequence[Check], environ: Mapping[str, str], overrides: Mapping[str, object]
) -> Resolved:
    """Value and source of every setting. Raises `SettingsError`, or `SettingsErrors` for several wrong values."""
    known = {setting.name for setting in table}
    for name in overrides:
        if name not in known:
            raise InvalidArgument(name, f"no such setting{_did_you_mean(name, known)}")
    draft = Draft(table, environ, overrides)
    values, sources = {}, {}
    for setting in table:
        try:
            values[setting.name], sources[setting.name] = draft.value(setting.name), draft.source(setting.name)
        except Unresolved:
            continue
    for check in checks:
        try:
            draft.problems.extend(check(draft))
        except Unresolved:
            continue
    if len(draft.problems) > 1:
        raise SettingsErrors(draft.problems)
    if draft.problems:
        raise draft.problems[0]
    return Resolved(values, sources)


def unknown_variables(table: Sequence[Setting], environ: Mapping[str, str]) -> list[str]:
    """A line for every `LLOG_` variable that is not a setting, with the nearest name but without its value."""
    known = {name for setting in table for name in setting.variables}
    names = sorted(name for name in environ if name.startswith(PREFIX) and name not in known | TOOLING_VARIABLES)
    return [f"{name} is not a setting and is ignored{_did_you_mean(name, known)}" for name in names]


def _did_you_mean(name: str, known: set[str]) -> str:
    nearest = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)
    return f"; did you mean {nearest[0]}?" if nearest else ""
