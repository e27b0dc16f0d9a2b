"""One group in the memory of its coordinator: its state machine, its record, and the requests that wait.

The machine decides; this class loads it, writes its records one after the other, wakes it at its deadlines, and sends
its answers. Before anything is given to the machine, and again before any answer leaves, the claim of the group's slot
is asked (rule G10): a coordinator that was paused beyond its session answers NOT_COORDINATOR and forgets the group.
It forgets the group also when a write fails or conflicts, when a record cannot be made, and when the machine raises;
the next request loads it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from llog.broker.groups.commits import CommitRequest
from llog.broker.groups.group_records import StoredHead, delete_group, load_group, write_head
from llog.errors import LlogError, VersionConflict
from llog.groups.classic.group import ClassicGroup
from llog.groups.codes import GroupCode
from llog.groups.consumer.group import ConsumerGroup
from llog.groups.outbox import Answer, Step
from llog.groups.records import CONSUMER, GroupHead, simple_head
from llog.groups.timers import NEVER_MS
from llog.groups.types import type_refused
from llog.stores.metadata.port import ABSENT, Key

if TYPE_CHECKING:
    from llog.broker.groups.coordinator import Shared

Machine = ClassicGroup | ConsumerGroup
Ticket = asyncio.Future[Any]
Ask = Callable[[Any, Ticket, int], Step]
"""What to ask the machine: machine, ticket and time in, its step out."""
Refuse = Callable[[GroupCode], Answer]
"""The answer of the API that says nothing but this error."""

_DEAD: Final = "Dead"
_log: Final = logging.getLogger("llog.broker.groups")


class LiveGroup:
    def __init__(self, shared: Shared, group_id: str) -> None:
        self.group_id, self.slot = group_id, shared.slots.of(group_id)
        self.machine: Machine | None = None
        self.stored = StoredHead(None, ABSENT)
        self.versions: dict[Key, int] = {}
        self.gone: GroupCode | None = None
        """Why the coordinator has forgotten the group."""
        self.used_ms = shared.now_ms()
        self.keeps_positions = False
        """Deleting the group leaves its positions: all that may go are gone."""
        self._shared = shared
        self._before_load: list[Callable[[], None]] = []
        self._wake_at_ms = NEVER_MS
        self.writing: asyncio.Task[None] | None = None
        self._loading = asyncio.create_task(self._load(), name="llog-group-load")

    # -- loading -------------------------------------------------------------------------------------------------------
    async def _load(self) -> None:
        shared = self._shared
        try:
            stored = await load_group(shared.context, self.group_id, shared.now_ms())
            if stored.head is not None and stored.head.type == CONSUMER:
                await shared.catalogue.load()
            if self.gone is None and shared.slots.holds(self.slot):
                self._begin(stored, stored.head is not None and stored.head.type == CONSUMER)
            else:
                self.abandon(GroupCode.NOT_COORDINATOR)
        except LlogError as error:
            _log.warning("group %s cannot be loaded: %s", self.group_id, error)
            self.abandon(GroupCode.COORDINATOR_NOT_AVAILABLE)
        except Exception:
            _log.exception("group %s cannot be loaded", self.group_id)
            self.abandon(GroupCode.UNKNOWN_SERVER_ERROR)
        waiting, self._before_load = self._before_load, []
        for ask in waiting:
            ask()

    def _begin(self, stored: StoredHead, consumer: bool) -> None:
        """Continue from a record, under a new writer's name."""
        shared, now_ms = self._shared, self._shared.now_ms()
        self.stored = stored
        writer = f"{shared.context.random_bits(64):016x}"
        if consumer:
            self.machine = ConsumerGroup(
                self.group_id,
                writer,
                shared.catalogue.current,
                now_ms,
                head=stored.head,
                settings=shared.settings.consumer,
                describes=shared.describes,
            )
        else:
            self.machine = ClassicGroup(
                self.group_id, writer, now_ms, head=stored.head, settings=shared.settings.classic
            )
        self._take(self.machine.tick(now_ms))

    async def loaded(self) -> Machine | GroupCode:
        if self.machine is None and self.gone is None:
            await asyncio.shield(self._loading)
        if self.gone is not None:
            return self.gone
        assert self.machine is not None
        return self.machine if self.may_write() else GroupCode.NOT_COORDINATOR

    @property
    def exists(self) -> bool:
        """There is a record of the group, or there are clients about to join."""
        return self.stored.head is not None or (self.machine is not None and not self.machine.disposable)

    @property
    def is_consumer(self) -> bool:
        return isinstance(self.machine, ConsumerGroup)

    # -- requests ------------------------------------------------------------------------------------------------------
    def ask(self, wanted: str, joins: bool, ask: Ask, refuse: Refuse) -> Ticket:
        """Give a request to the machine, behind all earlier ones; the future of its answer. `wanted`: the type of group
        that the request belongs to; empty: any."""
        ticket: Ticket = asyncio.get_running_loop().create_future()
        if self.machine is None and self.gone is None:
            self._before_load.append(lambda: self._ask(ticket, wanted, joins, ask, refuse))
        else:
            self._ask(ticket, wanted, joins, ask, refuse)
        return ticket

    def _ask(self, ticket: Ticket, wanted: str, joins: bool, ask: Ask, refuse: Refuse) -> None:
        now_ms = self.used_ms = self._shared.now_ms()
        if self.gone is None and not self.may_write():
            self.abandon(GroupCode.NOT_COORDINATOR)
        code = self.gone if self.gone is not None else self._become(wanted, joins)
        if code != GroupCode.NONE:
            _deliver(ticket, refuse(code))
            return
        try:
            step = ask(self.machine, ticket, now_ms)
        except Exception:
            self._fail()
            _deliver(ticket, refuse(GroupCode.UNKNOWN_SERVER_ERROR))
        else:
            self._take(step)

    def _become(self, wanted: str, joins: bool) -> GroupCode:
        """A group without members takes the type of its next member."""
        machine = self.machine
        assert machine is not None
        current = CONSUMER if self.is_consumer else ""
        if not wanted or (current == CONSUMER) == (wanted == CONSUMER):
            return GroupCode.NONE
        code = type_refused(current, has_members=not machine.disposable, wanted=wanted, joins=joins)
        if code == GroupCode.NONE:
            self._begin(self.stored, wanted == CONSUMER)
        return self.gone or code

    # -- steps ---------------------------------------------------------------------------------------------------------
    def _take(self, step: Step) -> None:
        """Send answers, write, and set the next deadline; all that only while the claim is valid (rule G10)."""
        if not self.may_write():
            for reply in step.replies:
                _deliver(reply.ticket, reply.answer.refused(GroupCode.NOT_COORDINATOR))
            self.abandon(GroupCode.NOT_COORDINATOR)
            return
        for reply in step.replies:
            _deliver(reply.ticket, reply.answer)
        if step.write is not None:
            self.writing = asyncio.create_task(self._write(step.write), name="llog-group-write")
        if step.wake_at_ms < self._wake_at_ms:
            self._wake_at_ms = step.wake_at_ms
            self._shared.wheel.at(step.wake_at_ms, self)

    async def _write(self, head: GroupHead) -> None:
        context = self._shared.context
        is_dead = head.state == _DEAD
        try:
            if is_dead:
                await delete_group(
                    context, self.group_id, self.stored, self.may_write, with_positions=not self.keeps_positions
                )
            else:
                self.stored = await write_head(context, self.group_id, head, self.stored, self.may_write)
        except VersionConflict as error:
            _log.info("another coordinator may have group %s: %s", self.group_id, error)
            self.abandon(GroupCode.NOT_COORDINATOR)
        except LlogError as error:
            _log.warning("group %s cannot be stored: %s", self.group_id, error)
            self.abandon(GroupCode.COORDINATOR_NOT_AVAILABLE)
        except Exception:
            self._fail()
        if self.gone is not None or self.machine is None:
            return
        self.writing = None
        try:
            step = self.machine.written(self._shared.now_ms())
        except Exception:
            self._fail()
            return
        self._take(step)
        if is_dead:
            self.abandon(GroupCode.COORDINATOR_NOT_AVAILABLE)

    def wake(self) -> None:
        """A deadline may have passed."""
        if self.gone is not None or self.machine is None:
            return
        now_ms = self._shared.now_ms()
        if now_ms < self._wake_at_ms:
            return  # the wheel's entry is of an earlier deadline
        self._wake_at_ms = NEVER_MS
        self._step(lambda machine: machine.tick(now_ms))

    def topics_changed(self) -> None:
        catalogue, now_ms = self._shared.catalogue.current, self._shared.now_ms()
        if isinstance(self.machine, ConsumerGroup) and self.gone is None:
            self._step(lambda machine: machine.topics_changed(catalogue, now_ms))

    def _step(self, do: Callable[[Any], Step]) -> None:
        if not self.may_write():
            self.abandon(GroupCode.NOT_COORDINATOR)
            return
        try:
            step = do(self.machine)
        except Exception:
            self._fail()
        else:
            self._take(step)

    # -- the end -------------------------------------------------------------------------------------------------------
    def _fail(self) -> None:
        _log.exception("group %s failed; it is loaded again", self.group_id)
        self.abandon(GroupCode.COORDINATOR_NOT_AVAILABLE)

    def abandon(self, code: GroupCode) -> None:
        """Forget the group. Whoever waits is answered with `code`."""
        if self.gone is not None:
            return
        self.gone = code
        self._shared.forget(self)
        if self.machine is not None:
            for reply in self.machine.abandon(code):
                _deliver(reply.ticket, reply.answer)

    # -- commits -------------------------------------------------------------------------------------------------------
    def may_write(self) -> bool:
        return self.gone is None and self._shared.slots.holds(self.slot)

    @property
    def generation(self) -> int:
        return 0 if self.machine is None else self.machine.generation

    @property
    def superseded(self) -> GroupCode:
        return GroupCode.STALE_MEMBER_EPOCH if self.is_consumer else GroupCode.ILLEGAL_GENERATION

    async def ready(self, *, store: bool) -> None:
        machine = await self.loaded()
        if isinstance(machine, GroupCode) or not store or self.stored.version != ABSENT or not machine.disposable:
            return
        now_ms = self._shared.now_ms()
        head = simple_head(f"{self._shared.context.random_bits(64):016x}", now_ms, machine.generation)
        try:
            stored = await write_head(self._shared.context, self.group_id, head, self.stored, self.may_write)
        except VersionConflict:
            self.abandon(GroupCode.NOT_COORDINATOR)  # a consumer over HTTP was faster: load what it wrote
            return
        if self.machine is machine and machine.disposable and self.gone is None:
            self._begin(stored, self.is_consumer)
        else:
            self.abandon(GroupCode.NOT_COORDINATOR)

    def check_commit(self, request: CommitRequest) -> GroupCode:
        if self.gone is not None:
            return self.gone
        if not self.may_write():
            self.abandon(GroupCode.NOT_COORDINATOR)
            return GroupCode.NOT_COORDINATOR
        now_ms = self.used_ms = self._shared.now_ms()
        if isinstance(self.machine, ConsumerGroup):
            return self.machine.check_commit(request.member_id, request.generation, version=request.version)
        assert self.machine is not None
        return self.machine.check_commit(request.member_id, request.instance_id, request.generation, now_ms)

    def check_partition(self, request: CommitRequest, topic_id: str, partition: int) -> GroupCode:
        assert isinstance(self.machine, ConsumerGroup)
        return self.machine.check_partition_commit(request.member_id, request.generation, topic_id, partition)


def _deliver(ticket: object, answer: Answer) -> None:
    assert isinstance(ticket, asyncio.Future)
    if not ticket.done():
        ticket.set_result(answer)
