"""The contract of a metadata store as tests: every adapter's test class inherits `MetadataStoreContract`.

The log relies on the promises in `llog.stores.metadata.port` alone, so a store that passes can carry it. A store of
another package inherits the same class. A subclass provides (see `base`)
- the fixture `open_store`: an async function that opens one more client on the same data, closed when the test ends;
- the fixture `link`: a client with a connection that can be broken (`ProxiedLink` for stores behind a socket).

Every test works below its own key prefix, so one server may serve the whole run. `LLOG_SOAK=1` raises counts.
"""

from __future__ import annotations

import pytest

# Failed asserts should say what they saw, as they do in test modules.
_MODULES = ("base", "faults", "lifecycle", "model", "order", "reads", "sessions", "watching", "writes")
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _MODULES))

from llog.testing.metadata_contract.base import OpenStore, ProxiedLink, StoreLink  # noqa: E402
from llog.testing.metadata_contract.faults import FaultClaims  # noqa: E402
from llog.testing.metadata_contract.lifecycle import LifecycleClaims  # noqa: E402
from llog.testing.metadata_contract.order import OrderClaims  # noqa: E402
from llog.testing.metadata_contract.reads import ReadClaims  # noqa: E402
from llog.testing.metadata_contract.sessions import SessionClaims  # noqa: E402
from llog.testing.metadata_contract.watching import WatchClaims  # noqa: E402
from llog.testing.metadata_contract.writes import ModelClaims, WriteClaims  # noqa: E402

__all__ = ["MetadataStoreContract", "OpenStore", "ProxiedLink", "StoreLink"]


class MetadataStoreContract(
    ReadClaims, OrderClaims, WriteClaims, SessionClaims, FaultClaims, WatchClaims, LifecycleClaims, ModelClaims
):
    """All claims. Name the subclass `Test…` and give it the fixtures `open_store` and `link`."""
