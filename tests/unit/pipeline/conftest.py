"""What several modules of these tests begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.pipeline.export.exporting import Exporting


@pytest.fixture
async def exporting(tmp_path: Path) -> AsyncIterator[Exporting]:
    exporting = Exporting(tmp_path)
    await exporting.create()
    yield exporting
    await exporting.close()
