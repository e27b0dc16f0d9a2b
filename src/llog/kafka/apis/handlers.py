"""All handlers, by API key: every module of `llog.kafka.apis` that declares `HANDLER`."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Final

from llog.kafka import apis as modules
from llog.kafka.apis.handler import Handler

_NOT_APIS: Final = frozenset({"handler", "handlers"})


@cache
def handlers() -> MappingProxyType[int, Handler]:
    found: dict[int, Handler] = {}
    for module in pkgutil.iter_modules(modules.__path__):
        if module.name in _NOT_APIS:
            continue
        handler = getattr(import_module(f"{modules.__name__}.{module.name}"), "HANDLER", None)
        if isinstance(handler, Handler):
            assert handler.key not in found, f"two handlers for API {handler.key}"
            found[handler.key] = handler
    return MappingProxyType(dict(sorted(found.items())))
