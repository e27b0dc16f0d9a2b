from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks compute on the event loop, so that `settle` and a clock that tests move wait for them."""

    async def on_the_loop(function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    monkeypatch.setattr(asyncio, "to_thread", on_the_loop)
