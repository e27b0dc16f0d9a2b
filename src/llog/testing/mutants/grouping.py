"""Mutants of consumer groups: rows g01 to g09."""

from __future__ import annotations

from llog.testing.mutants.mutant import Edit, Mutant

COMMITS = "llog.broker.groups.commits"
MEMBERSHIP = "llog.groups.consumer.membership"
POSITIONS = "llog.broker.groups.positions"
RECORDS = "llog.broker.groups.group_records"
SLOTS = "llog.broker.groups.slots"

CLAIMS_NEVER_END = Edit(
    SLOTS,
    "return slot in self._held and self._session is not None and not self._session.lost",
    "return slot in self._held",
)
READ_POSITIONS = (
    "        records = await self._context.metadata.get_many([commit.key for commit in commits], strict=strict)\n"
)
READ_HEAD = "        generation = await self._generation_without_members(group)\n"

GROUPING = (
    Mutant("g01", "G10: a coordinator judges its claim by its own clock", (CLAIMS_NEVER_END,)),
    Mutant(
        "g02",
        "G3: a head is written only at the version that was read",
        (
            Edit(
                RECORDS,
                "context.metadata.put(put.key, put.value, expected=put.expected)",
                "context.metadata.put(put.key, put.value)",
            ),
        ),
    ),
    Mutant(
        "g03",
        "G11: a position of a higher generation is not replaced, and G10",
        (
            CLAIMS_NEVER_END,
            Edit(
                COMMITS, "GroupCode.NONE if stored.generation <= write.generation else", "GroupCode.NONE if True else"
            ),
        ),
    ),
    Mutant(
        "g04",
        "G3: edition and writer tell the own head from another one, and G10",
        (
            CLAIMS_NEVER_END,
            Edit(RECORDS, "if (found.edition, found.writer) == (ours.edition, ours.writer):", "if ours is not found:"),
        ),
    ),
    Mutant(
        "g05",
        "G9: pages are stored before the head that names them",
        (
            Edit(RECORDS, "    if pages:\n        await _write_pages(context, pages, may_write)\n    key", "    key"),
            Edit(
                RECORDS,
                "    gone = [name for name in before.pages",
                "    if pages:\n        await _write_pages(context, pages, may_write)\n"
                "    gone = [name for name in before.pages",
            ),
        ),
    ),
    Mutant(
        "g06",
        "G6: a partition that another member has is not given away",
        (
            Edit(MEMBERSHIP, "member.member_id) != member.member_id", "member.member_id) is None"),
            Edit(MEMBERSHIP, "if owner != member.member_id:", "if False:"),
            Edit(MEMBERSHIP, "del self._owners[topic, partition]", "self._owners.pop((topic, partition), None)"),
        ),
    ),
    Mutant(
        "g07",
        "G10: a commit is acknowledged only while the claim is valid",
        (
            Edit(
                COMMITS,
                "        if not self.group.may_write():\n            for place",
                "        if False:\n            for place",
            ),
        ),
    ),
    Mutant(
        "g08",
        "G12: a commit from outside reads the position before the head",
        (
            Edit(POSITIONS, READ_POSITIONS, READ_HEAD + READ_POSITIONS),
            Edit(POSITIONS, READ_HEAD + "        for commit in open_commits", "        for commit in open_commits"),
        ),
    ),
    Mutant(
        "g09",
        "G12: positions are read behind the commits under way",
        (
            Edit(
                "llog.broker.groups.coordinator",
                "        await self._commits.settled(group)\n        positions: dict",
                "        positions: dict",
            ),
        ),
    ),
)
