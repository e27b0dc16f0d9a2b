"""What the options of source and sink share: settings among them, and texts that are to be something else.

An option `llog.metadata.url` is the setting LLOG_METADATA_URL, and so is every other one.

What must stay true: no secret is taken from an option, because Spark shows options in its plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

from llog.errors import InvalidArgument
from llog.log.keys import Keys
from llog.settings import settings_table
from llog.settings.units import parse_bytes
from llog.settings.urls import mask_url

SETTINGS_PREFIX: Final = "llog."
WRITING: Final = {name.lower(): name for name in ("topic", "queryId", "batchId", "compression", "blobBytes")}
"""The sink's own; those of reads are in `source_options`."""


def setting_of(name: str, value: str) -> tuple[str, str]:
    attribute = name.removeprefix(SETTINGS_PREFIX).replace(".", "_")
    row = next((row for row in settings_table() if row.name == attribute), None)
    if row is None:
        raise InvalidArgument(name, f"there is no setting LLOG_{attribute.upper()}")
    if row.secret or mask_url(value) != value:
        raise InvalidArgument(name, f"options are shown in Spark's plans: give it by environment, as {row.variable}")
    return attribute, value


def stripped(name: str, text: str) -> str:
    if not text.strip():
        raise InvalidArgument(name, "is empty")
    return text.strip()


def external_name(option: str, name: str) -> str:
    """Of a consumer group or a query: what keys are made of, which have a length."""
    try:
        Keys().group(name)
    except InvalidArgument as error:
        raise InvalidArgument(option, error.reason) from None
    return name


def size_of(name: str, text: str) -> int:
    """Bytes: `1048576`, `1MiB`."""
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise InvalidArgument(name, str(error)) from None
    if size <= 0:
        raise InvalidArgument(name, f"{text!r} must be more than 0 bytes")
    return size


def close_to(name: str, options: Mapping[str, str]) -> str:
    """`; did you mean …?`, where one of the options is meant. `options` are by their names in lower case."""
    close = get_close_matches(name, [*options, "llog.metadata.url", "llog.objects.url"], 1)
    return f"; did you mean {options.get(close[0], close[0])}?" if close else ""
