"""Node ids: each live broker holds one number, by an ephemeral record `@cluster/nodes/{id}`.

A claim is created if absent, under the session that also holds the broker's registration, so an id is free again when
its broker is gone. A broker that comes back under its own broker id takes its claim over at once; another broker waits
until the store has dropped the claim of a broker that died.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from llog.errors import MetadataUncertain, SettingsError, VersionConflict
from llog.formats.values import NodeClaim, decode_value, encode_value
from llog.log.context import LogContext
from llog.stores.metadata.port import ABSENT, Session

NODE_ID_ROUNDS_MAX: Final = 256
"""Attempts to claim an id while other brokers claim theirs."""
NODE_ID_POLL_MS: Final = 250

_log: Final = logging.getLogger("llog.broker.membership")


class HeldNodeId(NamedTuple):
    broker_id: str
    version: int


def choose_node_id(held: Mapping[int, HeldNodeId], broker_id: str, wanted: int | None) -> int:
    """The wanted id; else the one that this broker has already, else the lowest free one."""
    if wanted is not None:
        return wanted
    own = [node_id for node_id, holder in held.items() if holder.broker_id == broker_id]
    return min(own) if own else next(node_id for node_id in range(len(held) + 1) if node_id not in held)


async def claim_node_id(
    context: LogContext, session: Session, broker_id: str, *, wanted: int | None = None, wait_ms: int = 0
) -> int:
    """Claim an id under `session`. A `wanted` id that another broker holds is waited for until `wait_ms` are over, then
    refused with a `SettingsError` that names the holder."""
    deadline_ms = context.now_ms() + wait_ms
    warned, rounds = False, 0
    while True:
        held = await _read_claims(context)
        node_id = choose_node_id(held, broker_id, wanted)
        holder = held.get(node_id)
        if holder is not None and holder.broker_id != broker_id:
            if context.now_ms() >= deadline_ms:
                reason = f"broker {holder.broker_id} has this id; every live broker needs its own"
                raise SettingsError("LLOG_NODE_ID", str(node_id), reason)
            if not warned:
                _log.warning("node id %d is held by broker %s; waiting for it", node_id, holder.broker_id)
                warned = True
            await context.sleep(NODE_ID_POLL_MS / 1_000)
            continue
        try:
            key = context.keys.node(node_id)
            value = encode_value(NodeClaim(broker_id=broker_id, claimed_at_ms=context.now_ms()), key.path)
            expected = ABSENT if holder is None else holder.version
            await context.metadata.put(key, value, expected=expected, session=session)
            return node_id
        except (VersionConflict, MetadataUncertain):
            # Another broker was faster, or this claim may have been written: the next round reads what is there.
            rounds += 1
            if rounds >= NODE_ID_ROUNDS_MAX:
                raise
            await context.back_off(rounds)


async def _read_claims(context: LogContext) -> dict[int, HeldNodeId]:
    """Every claim, by id. A value that cannot be read is an error: its id must not be taken for free."""
    held = {}
    async for record in context.metadata.scan_all(context.keys.nodes(), strict=True):
        parsed = context.keys.parse(record.key.path)
        if parsed is not None and parsed.kind == "node":
            claim = decode_value(NodeClaim, record.value, record.key.path)
            held[parsed.node_id] = HeldNodeId(claim.broker_id, record.version)
    return held
