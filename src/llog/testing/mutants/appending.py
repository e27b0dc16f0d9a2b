"""Mutants of committing, settling and producer state: rows h05, h06, h13, h14, h16, h18, h19, h20, h30 to h33."""

from __future__ import annotations

from llog.testing.mutants.mutant import PUBLISH, Edit, Mutant

CONTROL = "llog.log.control"
RESOLVE = "llog.log.append.resolve"
PRODUCERS = "llog.log.producers"
PRODUCER_STATE = "llog.log.producer_state"

# A hole in the entries is passed over: whatever is missing counts as never written.
NO_HOLES = (
    Edit(PRODUCER_STATE, 'if entry.start_offset != self.as_of or entry.value.type != "WAL":', "if False:"),
    Edit(PRODUCER_STATE, "return self.as_of >= end", "return True"),
    Edit(
        PRODUCER_STATE,
        "self.add(pending)\n        return self.as_of == control.",
        "self.add(pending)\n        return True or self.as_of == control.",
    ),
)

SNAPSHOT_STAYS_AT_SWAP = Edit(PUBLISH, "await move_snapshot(context, log, control, run.end_offset + 1)", "pass")
SNAPSHOT_STAYS_AT_RETENTION = Edit(
    "llog.log.cleanup.retention", "await move_snapshot(context, log, control, below[-1][1].end_offset + 1)", "pass"
)

APPENDING = (
    Mutant(
        "h05a",
        "R4: at the same version the attempt is undecided; taken for 'it did not happen'",
        (Edit(CONTROL, 'return Evidence("undecided")', 'return Evidence("not_committed")'),),
    ),
    Mutant(
        "h05b",
        "R4: a COMPACTED entry over the offset leaves the attempt uncertain; judged by its append id instead",
        (Edit(RESOLVE, 'if entry.value.type == "COMPACTED" or', "if"),),
    ),
    Mutant(
        "h05c",
        "R4 and R7, of which each suffices: the index is read strictly, and an offset that nothing covers means "
        "'read again'",
        (
            Edit(RESOLVE, "start=start, strict=True)", "start=start)"),
            Edit(
                RESOLVE,
                'return _weigh_entry(entry, attempt)\n    return "stale"',
                'break\n    return "not_committed"',
            ),
        ),
    ),
    Mutant(
        "h06a",
        "section 7 step 7: the producer snapshot passes the run before its end key is swapped",
        (SNAPSHOT_STAYS_AT_SWAP,),
    ),
    Mutant(
        "h06a",
        "the same, and holes are passed over: the retry is stored twice instead of being refused",
        (SNAPSHOT_STAYS_AT_SWAP, *NO_HOLES),
        "holes",
    ),
    Mutant("h06b", "producer state tiles without a hole", NO_HOLES[:1]),
    Mutant(
        "h06c",
        "`pending` counts in producer state; without it, the state would have to end where it begins",
        (
            Edit(
                PRODUCER_STATE,
                "self.add(pending)\n        return self.as_of == control.",
                "pass\n        return True or self.as_of == control.",
            ),
        ),
    ),
    Mutant(
        "h06d",
        "section 9: retention moves the producer snapshot before it removes entries",
        (SNAPSHOT_STAYS_AT_RETENTION,),
    ),
    Mutant(
        "h06d",
        "the same, and holes are passed over: the retry is stored twice instead of being refused",
        (SNAPSHOT_STAYS_AT_RETENTION, *NO_HOLES),
        "holes",
    ),
    Mutant(
        "h06e",
        "the snapshot's head moves by compare-and-set",
        (
            Edit(
                PRODUCER_STATE,
                "encode_value(moved, key.path), expected=found.version)",
                "encode_value(moved))",
            ),
        ),
    ),
    Mutant(
        "h13",
        "R3: settling is create-if-absent, also for another process's append",
        (Edit("llog.log.append.settle", "put(key, data, expected=expected)", "put(key, data)"),),
    ),
    Mutant(
        "h13",
        "R3: settling is create-if-absent, when a writer settles its own append",
        (
            Edit(
                "llog.log.append.settle",
                "encode_value(index_entry_of(pending)), ABSENT)]",
                "encode_value(index_entry_of(pending)))]",
            ),
        ),
        "own",
    ),
    Mutant(
        "h14",
        "R2: a pending append is replaced only by a process that saw its entry written; ensured before "
        "`reserve`, and checked inside it: each suffices",
        (
            Edit(
                CONTROL,
                "if control.pending is not None and control.pending.append_id != settled_append_id:",
                "if False:",
            ),
            Edit(
                "llog.log.append.known",
                "return pending is None or pending.append_id == self.settled_append_id",
                "return True",
            ),
        ),
    ),
    Mutant(
        "h16",
        "fence(expected_epoch): a repeated call does nothing once the epoch has moved on",
        (
            Edit(
                CONTROL,
                'control.log_state != "OPEN" or (expected_epoch is not None and control.epoch != expected_epoch)',
                'control.log_state != "OPEN"',
            ),
        ),
    ),
    Mutant(
        "h16",
        "the first epoch read stands in for one that was not given",
        (Edit("llog.log.fence", "change(control) if control.epoch == first_epoch else None", "change(control)"),),
        "retry",
    ),
    Mutant(
        "h18",
        "`v`: a value of a newer release is not written back",
        (Edit("llog.formats.values", "if value.v > value.known_version:", "if False:"),),
    ),
    Mutant(
        "h19",
        "R1: the blob is durable before anything names it",
        (
            Edit(
                "llog.log.append.append",
                "await self._wal.put(name, blob.buffers)",
                "self.put = asyncio.create_task(self._wal.put(name, blob.buffers))",
            ),
        ),
    ),
    Mutant(
        "h20",
        "R6: FENCED refuses inside the compare-and-set",
        (Edit(CONTROL, 'if control.log_state == "FENCED":', "if False:"),),
    ),
    Mutant(
        "h30",
        "R7: a repeat that rests on what is remembered is confirmed by a strict read",
        (
            Edit(
                "llog.log.append.commit",
                "isinstance(decision, NothingNew) and confirmed:",
                "isinstance(decision, NothingNew):",
            ),
        ),
    ),
    Mutant(
        "h31",
        "section 5: an unknown producer begins at sequence 0; taken as new with any number",
        (
            Edit(
                PRODUCERS,
                "if claim.first_sequence == 0:\n                return _NEW",
                "if claim.first_sequence == 0 or self.is_unknown():\n                return _NEW",
            ),
        ),
    ),
    Mutant(
        "h32",
        "section 5: an append stores the last five claims of each producer; only the last one instead",
        (Edit(CONTROL, "for batch in window.batches if", "for batch in window.batches[-1:] if"),),
    ),
    Mutant(
        "h32",
        "the same; the first five instead",
        (Edit(PRODUCERS, "del batches[0]", "del batches[-1]"),),
        "first",
    ),
    Mutant(
        "h33",
        "section 2: producer ids are taken by compare-and-set",
        (Edit("llog.log.producer_ids", "encode_value(taken, key.path), expected=version)", "encode_value(taken))"),),
    ),
    Mutant(
        "h33",
        "section 2: after a write without an answer the ids are not ours",
        (
            Edit(
                "llog.log.producer_ids",
                "    await context.metadata.put(key, encode_value(taken, key.path), expected=version)",
                "    try:\n        await context.metadata.put(key, encode_value(taken, key.path), expected=version)\n"
                "    except MetadataStoreError as error:\n        if not error.retriable:\n            raise",
            ),
        ),
        "uncertain",
    ),
)
