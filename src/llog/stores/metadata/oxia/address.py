"""`oxia://host:port[,host:port…][/namespace]` and `oxia+tls://…`, taken apart."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from llog.errors import SettingsError

DEFAULT_PORT: Final = 6648
_ACCEPTED: Final = "oxia://host[:port][,host[:port]…][/namespace], or oxia+tls://… for TLS"
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?", re.ASCII)
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


class OxiaAddress(NamedTuple):
    addresses: tuple[str, ...]
    namespace: str
    """Empty when the URL names none."""
    tls: bool


def parse_url(url: str) -> OxiaAddress:
    """Raises `SettingsError`."""
    scheme, separator, rest = url.partition("://")
    hosts, _, namespace = rest.partition("/")
    if not separator or scheme not in ("oxia", "oxia+tls") or (namespace and not _NAMESPACE.fullmatch(namespace)):
        raise SettingsError("LLOG_METADATA_URL", url, _ACCEPTED)
    addresses = []
    for host in hosts.split(","):
        match = _HOST.fullmatch(host)
        port = int(match[2] or DEFAULT_PORT) if match else 0
        if match is None or not 0 < port < 65_536:
            raise SettingsError("LLOG_METADATA_URL", url, _ACCEPTED)
        addresses.append(f"{match[1]}:{port}")
    return OxiaAddress(tuple(addresses), namespace, scheme == "oxia+tls")
