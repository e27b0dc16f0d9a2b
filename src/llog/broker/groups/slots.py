"""The claims of group coordinators: which node coordinates the groups of a slot.

Groups are divided into `GROUP_SLOTS` by the hash of their names. A node holds a slot by an ephemeral record that it
created while there was none, under a session of its own. So two nodes never hold a slot at once, as long as each stops
when its session may have ended: `holds` asks the session, which judges that by its own clock (rule G10).

The node that ranks first among the live writing nodes takes a free slot at once, the next ones `CLAIM_STEP_MS` later
each. A holder that is not first any more, or drains, gives the slot back: it stops, waits for its writes, and deletes
the claim, so that nobody waits for its session.

Only the answer of a write that created the claim makes this node its holder. A claim of this session that is found
otherwise (the answer was lost, or the claim was given back meanwhile) is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from llog.broker.cluster import ClusterView
from llog.broker.rendezvous import ranked
from llog.errors import StoreError
from llog.formats.buffers import crc32c
from llog.formats.values import CoordinatorClaim, decode_value, encode_value
from llog.limits import GROUP_SLOTS
from llog.log.context import LogContext, write_all
from llog.stores.metadata.port import ABSENT, Delete, Put, Session

CLAIM_SESSION_MS: Final = 6_000
"""How long the store keeps the claims of a coordinator that died."""
CLAIM_STEP_MS: Final = 2_000
"""How much longer each further node waits before it takes a free slot."""
CLAIM_REFRESH_MS: Final = 500
HAND_OVER_AFTER_MS: Final = 2_000
"""How long another node must have ranked first before a slot is given to it."""

_log: Final = logging.getLogger("llog.broker.groups")


def slot_of(group: str, count: int = GROUP_SLOTS) -> int:
    return crc32c(group.encode("utf-8", "surrogatepass")) % count


class Claim(NamedTuple):
    """A claim as it was read."""

    node_id: int
    session: str
    version: int


class ClaimPlan(NamedTuple):
    take: list[int]
    give_back: list[int]
    """Slots that this node holds and another one should."""
    remove: list[int]
    """Slots with a claim of this session that this node does not hold."""


class SlotWaits:
    """Since when each slot has been free, and since when another node has ranked before this one, its holder."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free: dict[int, int] = {}
        self._outranked: dict[int, int] = {}

    def plan(
        self,
        claims: Mapping[int, Claim],
        held: Iterable[int],
        session: str,
        own_node: int,
        candidates: Sequence[int],
        now_ms: int,
    ) -> ClaimPlan:
        """`candidates`: the live nodes that may coordinate; without this one, it drains."""
        own = frozenset(held)
        plan = ClaimPlan([], [], [])
        for slot in range(self._count):
            order = ranked(candidates, "group coordinators", slot)
            rank = order.index(own_node) if own_node in order else len(order)
            claim = claims.get(slot)
            if slot in own:
                self._free.pop(slot, None)
                if rank == 0:
                    self._outranked.pop(slot, None)
                elif own_node not in candidates or self._outranked_ms(slot, now_ms) >= HAND_OVER_AFTER_MS:
                    plan.give_back.append(slot)
            elif claim is not None:
                self._free.pop(slot, None)
                if claim.session == session:
                    plan.remove.append(slot)
            elif own_node in candidates:
                free_ms = now_ms - self._free.setdefault(slot, now_ms)
                if free_ms >= rank * CLAIM_STEP_MS:
                    plan.take.append(slot)
        return plan

    def _outranked_ms(self, slot: int, now_ms: int) -> int:
        return now_ms - self._outranked.setdefault(slot, now_ms)


class CoordinatorSlots:
    def __init__(
        self,
        context: LogContext,
        cluster: ClusterView,
        broker_id: str,
        *,
        now_ms: Callable[[], int],
        count: int = GROUP_SLOTS,
        on_taken: Callable[[Sequence[int]], None] = lambda _: None,
        before_give_back: Callable[[Sequence[int]], Awaitable[None]] | None = None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`before_give_back` runs when this node holds the slots no more and nobody else can take them yet; `on_lost`
        when the session ended and took all of them. `now_ms`: a clock that never goes back; `count`: the number of
        slots, the same on every node."""
        self._context, self._cluster, self._broker_id, self._now_ms = context, cluster, broker_id, now_ms
        self._on_taken, self._before_give_back, self._on_lost = on_taken, before_give_back, on_lost
        self._session: Session | None = None
        self._held: dict[int, int] = {}
        """Slot → version of the claim."""
        self._claims: dict[int, Claim] = {}
        self._waits = SlotWaits(count)
        self._count = count
        self._resigned = False

    # -- asking --------------------------------------------------------------------------------------------------------
    def of(self, group: str) -> int:
        return slot_of(group, self._count)

    def holds(self, slot: int) -> bool:
        """Whether this node coordinates the slot now, by its own clock too (rule G10)."""
        return slot in self._held and self._session is not None and not self._session.lost

    def held(self) -> list[int]:
        return sorted(self._held) if self._session is not None and not self._session.lost else []

    def holder(self, slot: int) -> int | None:
        """The node that clients should ask, as far as this one knows; None: nobody holds the slot."""
        if self.holds(slot):
            return self._cluster.node_id
        claim = self._claims.get(slot)
        return None if claim is None or claim.node_id == self._cluster.node_id else claim.node_id

    # -- claiming ------------------------------------------------------------------------------------------------------
    async def run(self) -> None:
        while True:
            try:
                await self.refresh()
            except StoreError as error:
                _log.warning("claims of group coordinators cannot be read or written now: %s", error)
            await self._context.sleep(CLAIM_REFRESH_MS / 1_000)

    async def refresh(self) -> None:
        """Read the claims, take free slots, give others back."""
        session = await self._live_session()
        self._claims = await self._read()
        plan = self._waits.plan(
            self._claims, self._held, session.id, self._cluster.node_id, self._candidates(), self._now_ms()
        )
        await self._remove([(slot, self._claims[slot].version) for slot in plan.remove])
        if plan.give_back:
            await self._give_back(plan.give_back)
        if plan.take:
            await self._take(session, plan.take)

    async def resign(self) -> None:
        """Give all slots back, and take none any more."""
        self._resigned = True
        await self._give_back(list(self._held))

    async def close(self) -> None:
        self._resigned = True
        session, self._session = self._session, None
        self._held.clear()
        if session is not None:
            await session.close()

    async def _live_session(self) -> Session:
        session = self._session
        if session is not None and session.lost:
            _log.warning("the session of this node's group claims ended; other nodes may coordinate its groups")
            self._session = None
            self._held.clear()
            self._on_lost()
        if self._session is None:
            self._session = await self._context.metadata.open_session(
                timeout_ms=CLAIM_SESSION_MS, on_lost=self._on_lost
            )
        return self._session

    def _candidates(self) -> list[int]:
        own = self._cluster.node_id
        steady = [node.node_id for node in self._cluster.nodes() if node.writes and not node.draining]
        return [node_id for node_id in steady if node_id >= 0 and not (self._resigned and node_id == own)]

    async def _read(self) -> dict[int, Claim]:
        claims = {}
        async for record in self._context.metadata.scan_all(self._context.keys.coordinators()):
            parsed = self._context.keys.parse(record.key.path)
            if parsed is not None and parsed.kind == "coordinator":
                claim = decode_value(CoordinatorClaim, record.value, record.key.path)
                claims[parsed.slot] = Claim(claim.node_id, claim.session, record.version)
        return claims

    async def _take(self, session: Session, slots: Sequence[int]) -> None:
        own = self._cluster.node_id
        value = CoordinatorClaim(
            node_id=own, broker_id=self._broker_id, session=session.id, claimed_at_ms=self._context.now_ms()
        )
        keys = [self._context.keys.coordinator(slot) for slot in slots]
        puts = [(Put(key, encode_value(value, key.path), ABSENT, session),) for key in keys]
        taken = []
        for slot, outcome in zip(slots, await write_all(self._context.metadata, puts), strict=True):
            if isinstance(outcome, tuple) and not self._resigned:
                self._held[slot] = outcome[0]
                self._claims[slot] = Claim(own, session.id, outcome[0])
                taken.append(slot)
        if taken and not session.lost:
            _log.info("coordinates groups", extra={"llog": {"slots_taken": len(taken), "slots": len(self._held)}})
            self._on_taken(taken)

    async def _give_back(self, slots: Sequence[int]) -> None:
        versions = [(slot, self._held.pop(slot)) for slot in slots if slot in self._held]
        if not versions:
            return
        if self._before_give_back is not None:
            await self._before_give_back([slot for slot, _ in versions])
        await self._remove(versions)
        _log.info("gave groups to other coordinators", extra={"llog": {"slots_given": len(versions)}})

    async def _remove(self, versions: Sequence[tuple[int, int]]) -> None:
        """By version: a claim that another node made meanwhile stays. What fails is tried again by `refresh`."""
        keys = [(self._context.keys.coordinator(slot), version) for slot, version in versions]
        await write_all(self._context.metadata, [(Delete(key, version),) for key, version in keys])
        for slot, _ in versions:
            self._claims.pop(slot, None)
