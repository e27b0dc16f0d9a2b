"""The audit lines among what a test logged."""

from __future__ import annotations

from typing import Any

import pytest

from llog.audit_log import AUDIT_LOGGER


def audit_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Other loggers may be at work too: a test or a library before this one may have set their level."""
    return [record.__dict__["llog"] for record in caplog.records if record.name == AUDIT_LOGGER]
