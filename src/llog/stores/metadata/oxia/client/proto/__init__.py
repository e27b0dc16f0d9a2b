"""Oxia's wire messages. `llog_oxia_pb2.py` is generated (see `generate.py`); everything else imports `pb` from here."""

from __future__ import annotations

from llog.stores.metadata.oxia.client.proto import llog_oxia_pb2 as pb

__all__ = ["pb"]
