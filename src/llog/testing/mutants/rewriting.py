"""Mutants of compaction, merge, retention and reading: rows h07 to h10, h15, h21."""

from __future__ import annotations

from llog.testing.mutants.mutant import MOVE_AT_ANY_VERSION, PUBLISH, PUBLISH_AT_ANY_VERSION, Edit, Mutant

REWRITING = (
    Mutant(
        "h07",
        "the cursor moves before lower keys are deleted",
        (
            Edit(
                PUBLISH,
                "await _move(context, log, record, run.end_offset + 1,",
                "await _delete_lower_keys(context, log, run)\n"
                "                    await _move(context, log, record, run.end_offset + 1,",
            ),
        ),
    ),
    Mutant(
        "h08a",
        "step 6: a run is published at the version that was read before anything was selected",
        (PUBLISH_AT_ANY_VERSION,),
    ),
    Mutant(
        "h08b",
        "steps 8 and 10 move only the very run that was seen",
        (MOVE_AT_ANY_VERSION,),
    ),
    Mutant(
        "h08c",
        "a run is abandoned only after a strict read",
        (
            Edit(
                PUBLISH,
                "pass\n    found = await context.metadata.get(key, strict=True)",
                "pass\n    found = await context.metadata.get(key)",
            ),
        ),
    ),
    Mutant(
        "h09a",
        "the floor is the later of cursor and log start",
        (Edit(PUBLISH, "floor = max(bounds.cursor, bounds.log_start_offset)", "floor = bounds.cursor"),),
    ),
    Mutant(
        "h09b",
        "R9: retention removes whatever lies below the log's start, also when it did not just raise it",
        (
            Edit(
                "llog.log.cleanup.retention",
                "    if start > control.log_start_offset:\n",
                "    if start <= control.log_start_offset:\n        return Retained(log, start, 0, 0)\n    else:\n",
            ),
        ),
    ),
    Mutant(
        "h10",
        "section 6 step 1: 'beyond the end' is said only after a strict read",
        (Edit("llog.log.read.view", "for strict in (False, True):", "for strict in (False, False):"),),
    ),
    Mutant(
        "h15",
        "R11: whole entries only. (What is rewritten is compared with its entry, so compaction stops for ever instead "
        "of losing data)",
        (
            Edit(
                PUBLISH,
                "if chosen and (offsets > bounds.max_offsets or",
                "cut = chosen[0].start_offset + bounds.max_offsets - 1 if chosen else entry.end_offset\n"
                "        if cut < entry.end_offset:\n"
                "            from msgspec.structs import replace\n"
                "            part = replace(entry.value, msg_count=cut - entry.start_offset + 1)\n"
                "            chosen.append(Entry(cut, part, entry.version))\n"
                "            break\n"
                "        if chosen and (offsets > bounds.max_offsets or",
            ),
        ),
    ),
    Mutant(
        "h21",
        "R10: an object that is gone means 'look again'; taken for the end",
        (Edit("llog.log.read.read", "await walk.retry(error)", "return"),),
    ),
    Mutant(
        "h21",
        "R10: a gap means 'look again'; taken for the end",
        (
            Edit(
                "llog.log.read.view",
                'await self.retry(f"no entry covers',
                'return str and ()  # (f"no entry covers',
            ),
        ),
        "gap",
    ),
)
