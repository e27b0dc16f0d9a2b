"""Failed authentications per address: after a burst, an address gets one attempt every few seconds.

Guessing passwords is slow then, and a client with a wrong password costs nothing. Addresses that share a translation
share the allowance; success does not restore it, so that one good password does not pay for guesses of others.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Final

FAILURES_BURST: Final = 20
"""Failures of one address in a row before it has to wait."""
FAILURE_REFILL_MS: Final = 3_000
"""Then one more attempt per this time."""
ADDRESSES_MAX: Final = 10_000
"""Addresses with recent failures; beyond that the longest unseen is forgotten."""
_IPV6_NETWORK_BITS: Final = 64


class FailureLimit:
    """`now_ms` is a monotonic clock."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self._debts: dict[str, tuple[float, float]] = {}
        """By network: failures not yet forgiven, and when they were counted."""

    def is_blocked(self, address: str) -> bool:
        return self._debt(_network_of(address)) > FAILURES_BURST - 1

    def failed(self, address: str) -> None:
        network = _network_of(address)
        debt = self._debt(network) + 1
        self._debts.pop(network, None)
        if len(self._debts) >= ADDRESSES_MAX:
            self._debts.pop(next(iter(self._debts)))
        self._debts[network] = (debt, self._now_ms())

    def _debt(self, network: str) -> float:
        debt, counted_ms = self._debts.get(network, (0.0, 0.0))
        return max(0.0, debt - (self._now_ms() - counted_ms) / FAILURE_REFILL_MS)


def _network_of(address: str) -> str:
    """One machine can have any address of an IPv6 network."""
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if known.version == 4:
        return address
    if known.ipv4_mapped is not None:
        return str(known.ipv4_mapped)
    return str(ipaddress.ip_network((known, _IPV6_NETWORK_BITS), strict=False))
