"""Where the store's URL leads, in the error every store answers a wrong URL with."""

from __future__ import annotations

from llog.errors import SettingsError
from llog.settings.urls import OxiaTarget, mask_url, parse_oxia_url


def parse_url(url: str) -> OxiaTarget:
    """Raises `SettingsError`."""
    try:
        return parse_oxia_url(url)
    except ValueError as reason:
        accepted = "oxia://host[:port][,host[:port]…][/namespace], or oxia+tls://… for TLS"
        raise SettingsError("LLOG_METADATA_URL", mask_url(url), f"{reason}; accepted: {accepted}") from None
