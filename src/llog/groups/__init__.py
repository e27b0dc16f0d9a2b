"""Consumer groups as pure state machines: requests and times in, answers, records and deadlines out.

A coordinator drives them: it owns tickets, clocks, the metadata store and the claim that makes it the coordinator.
These rules keep a group safe; docs/protocol.md (protocol section 13) defines them together with those of coordinators,
and simulations and mutants cite them.

- G1, persist before reveal. An answer that names a generation, an epoch, a member id that others see, a leader, or an
  assignment leaves after the record with it is stored. So a coordinator that fails takes no knowledge with it that a
  client has. Classic heartbeats, MEMBER_ID_REQUIRED and refusals of a superseded request reveal nothing.
- G2, one write at a time. A machine has at most one write under way; later changes form the next record, and an
  answer waits for the first record that holds what it names.
- G3, the version fences zombies. Every record is written at the version of the one before. A version conflict means
  that another coordinator has the group: this one answers NOT_COORDINATOR to all who wait, and forgets it (`abandon`).
- G4, resume, do not rebalance. A coordinator continues the stored generation, members, partitions and state, and asks
  nobody to join again. All sessions and timeouts begin anew: nobody is fenced for time without a coordinator, and a
  member that is silent keeps its partitions for a session after the takeover. Requests that waited are lost; clients
  repeat them.
- G5, numbers only grow. The generation of a classic group and the epoch of a consumer group are one number that grows
  with every rebalance, over changes of type too. A stored position carries it, so that a member or a coordinator of
  former days cannot move a position back.
- G6, release before assign. A consumer group gives a partition to a member after its former owner's record shows it
  released: the owner no longer named it, left, or was fenced. The new owner's record is written with or after it.
- G7, a heartbeat keeps a member. A session ends only when its whole timeout passed without a request of the member, and
  never while an answer to the member is held back. The same holds for the time that a member has to join again, to sync
  or to give partitions up.
- G8, every request is answered once. A JoinGroup or SyncGroup that waits is answered by exactly one step, or by
  `abandon`.
- G9, pages before the head. Pages have names that no other write uses, and are stored before the head that names them.

The caller's part in safety: it drives a machine only while its claim is valid by its own clock, it checks commits
with `check_commit` under the same rule, and it stores positions together with `generation`.
"""

from llog.groups.classic.group import ClassicGroup
from llog.groups.classic.settings import ClassicSettings
from llog.groups.codes import GroupCode
from llog.groups.consumer.group import ConsumerGroup
from llog.groups.consumer.messages import ConsumerSettings
from llog.groups.outbox import Reply, Step
from llog.groups.records import GroupHead, GroupPage

__all__ = [
    "ClassicGroup",
    "ClassicSettings",
    "ConsumerGroup",
    "ConsumerSettings",
    "GroupCode",
    "GroupHead",
    "GroupPage",
    "Reply",
    "Step",
]
