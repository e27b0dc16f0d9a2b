"""Which objects an audit looks at together: all entries of one object in one place, objects packed by their bytes.

One GET per object follows from it, whatever the number of logs that share a blob.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from llog.limits import MIB
from llog.log.keys import Log
from llog.pipeline.audit.task import Claim, ClaimedObject, Objects, bytes_claimed

# What one task of the audit reads, in bytes and in objects, how many entries it is told of (some 400 bytes each), and
# how many objects it reads at a time.
AUDIT_TASK_BYTES: Final = 128 * MIB
AUDIT_TASK_OBJECTS_MAX: Final = 1_000
AUDIT_TASK_CLAIMS_MAX: Final = 10_000


_TASK_BYTES_MIN: Final = 8 * MIB
_TASKS_WANTED: Final = 16
"""A small log is still shared among a few executors."""


Place = tuple[Log, int, int | None]
"""Log, end offset and first byte: whatever says the same of them is one claim."""


class Grouped:
    """Claims by object, each once: the run in flight and the entry it has published say the same."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[Place, Claim]] = {}
        self.claims = 0

    def add(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            of_object = self.objects.setdefault(claim.entry.data_key, {})
            place = (claim.log, claim.end_offset, claim.entry.byte_offset)
            if place not in of_object:
                of_object[place] = claim
                self.claims += 1


def plan_items(grouped: Grouped, *, root: str, fast: bool) -> list[Objects]:
    claimed = [ClaimedObject(uri=uri, claims=tuple(of.values())) for uri, of in sorted(grouped.objects.items())]
    sizes = [bytes_claimed(one.claims) for one in claimed]
    target = max(_TASK_BYTES_MIN, min(AUDIT_TASK_BYTES, sum(sizes) // _TASKS_WANTED))
    return [Objects(root=root, objects=tuple(pack), fast=fast) for pack in _packs(claimed, sizes, target)]


def _packs(claimed: Sequence[ClaimedObject], sizes: Sequence[int], target: int) -> list[list[ClaimedObject]]:
    """In order of their names: neighbours were written at the same time, and lie together in a store."""
    packs, held, claims = list[list[ClaimedObject]](), 0, 0
    for one, size in zip(claimed, sizes, strict=True):
        full = held + size > target or claims + len(one.claims) > AUDIT_TASK_CLAIMS_MAX
        if not packs or full or len(packs[-1]) == AUDIT_TASK_OBJECTS_MAX:
            packs.append([])
            held = claims = 0
        packs[-1].append(one)
        held, claims = held + size, claims + len(one.claims)
    return packs
