"""Settings as options of the data source: `llog.metadata.url` is LLOG_METADATA_URL, and so is every other one.

What must stay true: no secret is taken from an option, because Spark shows options in its plans.
"""

from __future__ import annotations

from typing import Final

from llog.errors import InvalidArgument
from llog.settings import settings_table
from llog.settings.urls import mask_url

SETTINGS_PREFIX: Final = "llog."


def setting_of(name: str, value: str) -> tuple[str, str]:
    attribute = name.removeprefix(SETTINGS_PREFIX).replace(".", "_")
    row = next((row for row in settings_table() if row.name == attribute), None)
    if row is None:
        raise InvalidArgument(name, f"there is no setting LLOG_{attribute.upper()}")
    if row.secret or mask_url(value) != value:
        raise InvalidArgument(name, f"options are shown in Spark's plans: give it by environment, as {row.variable}")
    return attribute, value
