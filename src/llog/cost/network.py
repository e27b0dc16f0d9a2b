"""Network prices, in US dollars, of us-east-1. Prices of object storage are in `llog.stores.objects.pricing`."""

from __future__ import annotations

from typing import Final

import msgspec


class NetworkPrices(msgspec.Struct, frozen=True, kw_only=True):
    """A gigabyte is 2**30 bytes, as on the bill."""

    cross_zone_per_gib: float = 0.02
    """For a byte that crosses from one availability zone to another: 0.01 for sending it and 0.01 for receiving it."""


NETWORK_US_EAST_1: Final = NetworkPrices()
