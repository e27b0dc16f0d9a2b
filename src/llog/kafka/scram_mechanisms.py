"""Kafka's codes of SCRAM mechanisms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CODES: Final[Mapping[str, int]] = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
MECHANISMS: Final[Mapping[int, str]] = {code: name for name, code in CODES.items()}
