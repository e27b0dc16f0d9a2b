"""What a restore changes in the values it puts back, and why. Pure.

Time passed between the backup and the loss, and what happened in it is unknown. Where that could do harm, a value is
moved to where it is safe whatever happened:

- horizons go up to the instant of the restore: vacuum may have raised them, and deleted, since the backup, so nothing
  drawn before can be committed or published by somebody who slept (R8);
- a run in flight gets the version that its end key has now, or none that ever fits, if the key was not what the run
  was planned on: then it is abandoned, as it would have been;
- the next producer id leaps ahead: ids given since the backup are in use by clients;
- the logs of a topic that was deleted while the backup was taken become tombstones.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from llog.formats.values import CompactionRecord, ControlRecord, ProducerIdBlock, TopicRecord

RESTORE_PRODUCER_ID_LEAP: Final = 2**32


NO_VERSION = 2**63 - 1
"""No store ever gives it."""


def plan_control(control: ControlRecord, topic: TopicRecord | None, *, restored_at_ms: int) -> ControlRecord:
    raised = replace(control, commit_horizon_ms=max(control.commit_horizon_ms, restored_at_ms))
    return replace(raised, log_state="DELETED", pending=None) if is_dead(control, topic) else raised


def is_dead(control: ControlRecord, topic: TopicRecord | None) -> bool:
    """A log of a life that the topic's record says is over."""
    if control.log_state == "DELETED":
        return True
    return topic is not None and topic.state == "DELETED" and control.incarnation <= topic.incarnation


def plan_compaction(
    record: CompactionRecord,
    *,
    restored_at_ms: int,
    end_key_version_then: int | None,
    end_key_version_now: int | None,
) -> CompactionRecord:
    """`then` and `now`: the version of the key at the run's end in the backup, and as it is restored."""
    raised = replace(record, segment_horizon_ms=max(record.segment_horizon_ms, restored_at_ms))
    run = record.in_flight
    if run is None:
        return raised
    as_planned = end_key_version_then == run.end_version and end_key_version_now is not None
    version = end_key_version_now if as_planned and end_key_version_now is not None else NO_VERSION
    return replace(raised, in_flight=replace(run, end_version=version))


def plan_producer_ids(block: ProducerIdBlock) -> ProducerIdBlock:
    return replace(block, next_producer_id=block.next_producer_id + RESTORE_PRODUCER_ID_LEAP)
