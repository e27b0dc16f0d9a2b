"""Pages derived from the table of settings: `.env.example`, docs/reference/settings.md, rows for `llog settings`.

The two files depend on the table alone, not on the machine or the environment, so that a test can compare them with
the files in the repository. Every line of `.env.example` is a comment, so that a copy of it changes nothing; a
setting's line without its first `#` is valid in a shell.
"""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from llog.settings import Origin, Setting, Settings, settings_table

_UNITS = (
    "Sizes are bytes, or carry a unit: KiB, MiB, GiB, TiB and the bare letters k, m, g, t are powers of 1024; kB, MB,"
    " GB, TB are powers of 1000. Durations are milliseconds, or carry ms, s, m (minutes), h or d."
)
_PRECEDENCE = (
    "The value of a setting comes from the first of these that is given: an argument (a flag, or a keyword of"
    " `Settings.from_env`), the variable, its fallback variables, a value derived from other settings, the default. An"
    " empty variable counts as not set, except where an empty value turns something off. An unknown `LLOG_` variable is"
    " ignored with a warning that names the nearest setting. llog does not load `.env` files itself:"
    " `cp .env.example .env`, edit it, then `set -a && source .env && set +a`."
)


def env_example() -> str:
    lines = [
        "# Settings of llog. Every line is a comment: remove the # before a setting to change it, then load the file:"
    ]
    lines += ["#   set -a && source .env && set +a", "#"]
    lines += _comment(_UNITS)
    for section, rows in groupby(settings_table(), key=lambda row: row.section):
        lines += ["", f"# ---- {section} ----"]
        for row in rows:
            lines += ["", *_comment(row.doc), *_comment(f"Accepted: {row.kind.accepted}.")]
            if row.fallbacks:
                lines += _comment(f"Fallback: {', '.join(row.fallbacks)}.")
            if row.alias:
                lines += _comment(f"Older name, which still works: {row.alias}.")
            if row.default_doc:
                lines += _comment(f"Default: {row.default_doc}.")
            lines.append(f"#{row.variable}={_default_text(row)}")
    return "\n".join(lines) + "\n"


def markdown() -> str:
    parts = [
        "# Settings",
        "Written by `make docs` from the table in `llog/settings/`; `llog settings` shows the values",
    ]
    parts[-1] += " in force and where each comes from."
    parts += [_PRECEDENCE, _UNITS]
    for section, rows in groupby(settings_table(), key=lambda row: row.section):
        parts.append(f"## {section}")
        table = ["| variable | default | meaning |", "|---|---|---|"]
        table += [f"| `{row.variable}` | {_markdown_default(row)} | {_markdown_meaning(row)} |" for row in rows]
        parts.append("\n".join(table))
    return "\n\n".join(parts) + "\n"


def describe(settings: Settings, *, changed_only: bool = False) -> Iterator[dict[str, Any]]:
    """One row per setting, as `llog settings` shows it. Secrets are masked in `value` and in `text`."""
    for row in settings_table():
        if changed_only and not _changed(settings, row):
            continue
        value = getattr(settings, row.name)
        text = row.display(value)
        yield {
            "variable": row.variable,
            "value": value if isinstance(value, bool | int) else text if value is not None else None,
            "text": text,
            "source": settings.source_of(row.name),
            "section": row.section,
            "doc": row.doc,
            "accepted": row.kind.accepted,
            "secret": row.secret,
        }


def _changed(settings: Settings, row: Setting) -> bool:
    """Whether the user set it, or set a setting that it is derived from."""
    source = settings.sources[row.name]
    if source.origin is not Origin.DERIVED:
        return source.origin is not Origin.DEFAULT
    known = {other.variable: other for other in settings_table()}
    return any(_changed(settings, known[name]) for name in source.names if name in known)


def _default_text(row: Setting) -> str:
    return "" if row.default is None else shlex.quote(row.kind.write(row.default)).replace("''", "")


def _markdown_default(row: Setting) -> str:
    if row.default_doc:
        return row.default_doc
    text = _default_text(row)
    return f"`{text}`" if text else "not set"


def _markdown_meaning(row: Setting) -> str:
    meaning = f"{row.doc} Accepted: {row.kind.accepted}."
    if row.fallbacks:
        meaning += f" Fallback: {', '.join(f'`{name}`' for name in row.fallbacks)}."
    if row.alias:
        meaning += f" Older name, which still works: `{row.alias}`."
    return (meaning + (" Secret: never shown." if row.secret else "")).replace("|", "\\|")


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 110, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
