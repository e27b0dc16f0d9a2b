"""Mutants of deletion, re-creation and vacuum: rows h01 to h04, h11, h12, h17, h22, h23, h25."""

from __future__ import annotations

from llog.testing.mutants.mutant import MOVE_AT_ANY_VERSION, PUBLISH, PUBLISH_AT_ANY_VERSION, Edit, Mutant

APPEND = "llog.log.append.append"
INDEX = "llog.log.index"
SETTLE = "llog.log.append.settle"
TOPICS = "llog.log.topics.create"
VACUUM = "llog.log.cleanup.vacuum"
VACUUM_JOB = "llog.pipeline.vacuum.job"
VACUUM_LOOK = "llog.pipeline.vacuum.references"
VACUUM_CHECK = "llog.log.cleanup.vacuum_check"

# A log that is not known here counts as one that names nothing.
UNKNOWN_LOGS_NAME_NOTHING = (
    Edit(VACUUM_JOB, "elif not logs <= self.overview.logs:", "elif False:"),
    Edit(VACUUM, "if any(named is None for named in answers):", "if False:"),
)
NO_MARKER_CHECK = Edit(VACUUM_JOB, "await (compare_cluster if dry_run else join_cluster)(context)", "pass")
CATALOGUE_RECORDS_ARE_REFERENCES = Edit(
    VACUUM_LOOK,
    "state.segments = await list_segments(context, log)\n",
    "state.segments = await list_segments(context, log)\n"
    "        state.named.update(known.record.data_key for known in state.segments)\n",
)

DELETION = (
    Mutant(
        "h01a",
        "R3, R13: an entry of a higher incarnation means that the settler is stale",
        (Edit(SETTLE, "return _Occupant.FUTURE", "return _Occupant.PHANTOM"),),
    ),
    Mutant(
        "h01a",
        "R3, R13: an entry of a lower incarnation is a phantom, and replaced",
        (Edit(SETTLE, "return _Occupant.PHANTOM", "return _Occupant.SETTLED"),),
        "phantom",
    ),
    Mutant(
        "h01b",
        "R13: an entry of a higher incarnation is no phantom",
        (Edit(INDEX, "return EntryVerdict.FROM_THE_FUTURE", "return EntryVerdict.PHANTOM"),),
    ),
    Mutant(
        "h01c",
        "R13: a run is published only at the version that was read",
        (PUBLISH_AT_ANY_VERSION,),
    ),
    Mutant("h01c", "R13: the cursor moves only at the version that was read", (MOVE_AT_ANY_VERSION,), "move"),
    Mutant(
        "h01c",
        "the same, and a cursor counts whatever incarnation it is of: new entries become phantoms",
        (
            MOVE_AT_ANY_VERSION,
            Edit(
                "llog.log.read.view",
                "cursor = compaction.offset if compaction.incarnation == control.incarnation else 0",
                "cursor = compaction.offset",
            ),
        ),
        "cursor",
    ),
    Mutant(
        "h01d",
        "deletes are by version: retention",
        (Edit("llog.log.cleanup.retention", "delete(record.key, expected=record.version)", "delete(record.key)"),),
    ),
    Mutant(
        "h01d",
        "deletes are by version: a second deleter",
        (Edit("llog.log.cleanup.leftovers", "Delete(record.key, record.version)", "Delete(record.key)"),),
        "deleter",
    ),
    Mutant(
        "h01d",
        "deletes are by version: compaction",
        (Edit(PUBLISH, "delete(record.key, expected=record.version)", "delete(record.key)"),),
        "compaction",
    ),
    Mutant(
        "h01e",
        "R13: a tombstone is made also where control is absent",
        (
            Edit(
                "llog.log.topics.delete",
                "if current is None or current.incarnation < topic.incarnation:",
                "if current is None:\n        return None\n    if current.incarnation < topic.incarnation:",
            ),
        ),
    ),
    Mutant(
        "h01e",
        "R13: a value of a dead incarnation at a key is replaced",
        (Edit(TOPICS, "if value.incarnation < first.incarnation:", "if False:"),),
        "refused",
    ),
    Mutant(
        "h12",
        "the store's contract: no version is given twice for a key",
        (Edit("llog.testing.sim.metadata_server", "if self._versions is Versions.RESTARTING:", "if True:"),),
    ),
    Mutant(
        "h23",
        "DELETING: nothing is initialized or grown any more",
        (Edit(TOPICS, 'if topic is not None and topic.state == "DELETING":', "if False:"),),
    ),
)

VACUUMING = (
    Mutant(
        "h02",
        "R8: vacuum raises the segment horizon before it deletes a segment",
        (
            Edit(
                VACUUM_CHECK,
                "return replace(compaction, segment_horizon_ms=max(horizon_ms, compaction.segment_horizon_ms))",
                "return None",
            ),
        ),
    ),
    Mutant(
        "h03",
        "R7: vacuum scans the index strictly",
        (Edit(VACUUM_CHECK, "scan_all(context.keys.index(log), strict=True)", "scan_all(context.keys.index(log))"),),
    ),
    Mutant(
        "h04",
        "section 5 step 0 and section 9, of which each suffices: the blob's id is drawn after the log is known, and a "
        "blob that names a log without a control record is kept",
        (
            Edit(
                APPEND,
                "incarnations = await self._know(call, deliveries)",
                "early = await self._upload([d.remaining() for d in deliveries], {d.log: 0 for d in deliveries})\n"
                "        incarnations = await self._know(call, deliveries)",
            ),
            Edit(
                APPEND,
                "slices = await self._upload([delivery.remaining() for delivery in by_log.values()], incarnations)",
                "slices = {log: early[log]._replace(incarnation=incarnations[log]) for log in by_log}",
            ),
            *UNKNOWN_LOGS_NAME_NOTHING,
        ),
    ),
    Mutant(
        "h11a", "catalogue records are not references: after a crash before step 6", (CATALOGUE_RECORDS_ARE_REFERENCES,)
    ),
    Mutant(
        "h11b",
        "catalogue records are not references, and sources are retired before the run is cleared: each suffices",
        (
            Edit(
                PUBLISH,
                "await _finish_segments(context, log, run)\n"
                "                await _move(context, log, record, record.value.offset, None)\n",
                "await _move(context, log, record, record.value.offset, None)\n"
                "                await _finish_segments(context, log, run)\n",
            ),
            CATALOGUE_RECORDS_ARE_REFERENCES,
        ),
    ),
    Mutant(
        "h11c",
        "catalogue records are not references, and retention marks segments before it removes entries: each suffices",
        (
            Edit("llog.log.cleanup.retention", 'if entry.value.type == "COMPACTED":', "if False:"),
            CATALOGUE_RECORDS_ARE_REFERENCES,
        ),
    ),
    Mutant(
        "h11d",
        "catalogue records are not references, and a segment's record moves by version: each suffices",
        (
            Edit(
                "llog.log.rewrite.segments",
                "put(key, encode_value(marked, key.path), expected=known.version)",
                "put(key, encode_value(marked, key.path))",
            ),
            CATALOGUE_RECORDS_ARE_REFERENCES,
        ),
    ),
    Mutant(
        "h17",
        "vacuum's T: the earliest of several clocks, and none when they differ; each suffices",
        (
            Edit("llog.log.cleanup.vacuum_check", "if apart_ms > grace_ms // 10:", "if False:"),
            Edit("llog.log.cleanup.vacuum_check", "return clocks_ms[earliest]", "return clocks_ms[latest]"),
        ),
    ),
    Mutant(
        "h22",
        "R9: entries below the log's start are retention's to remove",
        (Edit(INDEX, "return EntryVerdict.BELOW_START if", "return EntryVerdict.PHANTOM if"),),
    ),
    Mutant(
        "h25",
        "section 9: vacuum refuses when the bucket's marker names another cluster, or none is known",
        (NO_MARKER_CHECK,),
        "refusal",
    ),
    Mutant(
        "h25",
        "the same, and a blob that names a log without a control record is not kept: the bucket is emptied",
        (NO_MARKER_CHECK, *UNKNOWN_LOGS_NAME_NOTHING),
    ),
    Mutant(
        "h26",
        "vacuum looks at the partitions of a topic's earlier incarnations too",
        (Edit(VACUUM_LOOK, "max(topic.partition_count, topic.partition_count_ever)", "topic.partition_count"),),
    ),
    Mutant(
        "h27",
        "R9: a phantom names nothing, also when vacuum looks for candidates",
        (Edit(VACUUM_LOOK, "if verdict is EntryVerdict.PHANTOM:", "if False:"),),
    ),
    Mutant(
        "h28",
        "a new log's horizon is not its creator's clock alone",
        (Edit(TOPICS, "await context.earliest_now_ms()", "context.now_ms()"),),
    ),
    Mutant(
        "h29",
        "producers are dropped by offset, not by the clock of the last writer",
        (
            Edit(
                "llog.log.producer_state",
                "latest[-LOG_PRODUCERS_MAX:]",
                "[one for one in latest if one.updated_at_ms >= max(s.updated_at_ms for s in latest) - 86_400_000]",
            ),
        ),
    ),
)
