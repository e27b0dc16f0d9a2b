"""For tests of llog and of programs that use it: a broker fixture, real servers, a simulator.

with llog.testing.broker() as broker:
    requests.post(f"{broker.url}/produce", …)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llog.testing.broker_fixture import broker

__all__ = ["broker"]

# Loaded on first use: a test that needs a server or the simulator loads no web server.
_HOMES = {"broker": "llog.testing.broker_fixture"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'llog.testing' has no attribute {name!r}")
