"""All handlers, by API key: every module of `llog.kafka.apis` and its folders that declares `HANDLER`."""

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
    for module in pkgutil.walk_packages(modules.__path__, f"{modules.__name__}."):
        if module.name.rpartition(".")[2] in _NOT_APIS:
            continue
        handler = getattr(import_module(module.name), "HANDLER", None)
        if isinstance(handler, Handler):
            assert handler.key not in found, f"two handlers for API {handler.key}"
            found[handler.key] = handler
    return MappingProxyType(dict(sorted(found.items())))
