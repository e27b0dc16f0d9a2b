"""Audit lines: their fields, who acts, and that no name from a client can forge or swell one."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from llog.audit_log import (
    AUDIT_ITEMS_MAX,
    AUDIT_LOGGER,
    AUDIT_TEXT_CHARS_MAX,
    Principal,
    act_as,
    os_user,
    write_change,
    write_line,
    write_refusal,
)
from llog.errors import MetadataUncertain, TopicNotFound
from llog.formats.values import TopicRecord
from llog.log.change import change_value
from llog.log.cleanup.retention import delete_records
from llog.log.context import LogChange, LogContext
from llog.log.fence import fence, unfence
from llog.log.keys import Log
from llog.log.topics.admin import add_partitions, alter_topic, create_topic
from llog.log.topics.create import initialize
from llog.log.topics.delete import delete_topic
from llog.telemetry.process_logs import LOGGER, TerminalLines, configure_logging
from tests.unit.compactor.stage import Writer
from tests.unit.http.broker_double import memory_context

ORDERS = Log("orders", 0)


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where a process at the highest log level writes."""
    stream = io.StringIO()
    handler = configure_logging(stream, "ERROR")
    yield stream
    logging.getLogger(LOGGER).removeHandler(handler)
    logging.getLogger(LOGGER).propagate = True
    logging.getLogger(LOGGER).setLevel(logging.NOTSET)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_written_at_every_log_level_and_names_the_user(stream: io.StringIO) -> None:
    logging.getLogger("llog.broker").warning("not written at this level")
    write_change("topic.grow", "orders", {"partitions": 3}, {"partitions": 6}, True)
    write_refusal("topic.delete", "none", "refused", TopicNotFound("none", "no such topic"))
    grown, refused = lines(stream)
    assert (grown["logger"], grown["event"], grown["level"]) == (AUDIT_LOGGER, "audit", "info")
    assert (grown["action"], grown["object"], grown["outcome"]) == ("topic.grow", "orders", "done")
    assert (grown["before"], grown["after"]) == ({"partitions": 3}, {"partitions": 6})
    assert grown["principal"] == f"os-user:{os_user()}"
    assert (refused["outcome"], refused["error_type"]) == ("refused", "TopicNotFound")


async def test_a_task_acts_for_its_principal_and_so_do_the_tasks_it_creates(stream: io.StringIO) -> None:
    async def request(number: int) -> None:
        act_as(Principal("write-token", f"10.0.0.{number}", f"id-{number}"))
        await asyncio.sleep(0)
        await asyncio.create_task(change())

    async def change() -> None:
        write_line("log.fence", "orders:0")

    await asyncio.gather(request(1), request(2))
    write_line("log.fence", "orders:0")
    logging.getLogger(LOGGER).handlers[0].flush()
    *requests, own = lines(stream)
    assert {(line["principal"], line["client"], line["request_id"]) for line in requests} == {
        ("write-token", "10.0.0.1", "id-1"),
        ("write-token", "10.0.0.2", "id-2"),
    }
    assert own["principal"].startswith("os-user:")
    assert "client" not in own


@pytest.mark.parametrize("name", ['a\n{"event":"audit"}', "a\x1b[2Ja", "a\r\x00", "a\u2028b\u202e", "a\udc80"])
def test_a_name_with_control_characters_stays_one_printable_line(name: str, stream: io.StringIO) -> None:
    write_line("topic.delete", name, reason=name, after={name: name})
    [line] = lines(stream)
    for text in (line["object"], line["reason"], *line["after"], *line["after"].values()):
        assert text.isprintable()
        assert text.startswith("a")
    record = logging.LogRecord("llog.http", logging.INFO, "", 0, "request", None, None)
    record.__dict__["llog"] = {"error": name}
    assert TerminalLines().format(record).isprintable(), "lines for a terminal escape what clients chose as well"


def test_texts_and_lists_are_cut_to_their_limits(stream: io.StringIO) -> None:
    positions = {f"orders:{number}": number for number in range(1_000)}
    write_line("group.commit", "g" * 10_000, after=positions, error="\n" * 10_000)
    [line] = lines(stream)
    assert len(line["object"]) == AUDIT_TEXT_CHARS_MAX
    assert len(line["error"]) <= AUDIT_TEXT_CHARS_MAX
    assert len(line["after"]) == AUDIT_ITEMS_MAX + 1
    assert line["after"]["and_more"] == 1_000 - AUDIT_ITEMS_MAX


# -- what the log reports ----------------------------------------------------------------------------------------------


def recording() -> tuple[LogContext, list[LogChange]]:
    changes: list[LogChange] = []
    return replace(memory_context(), on_change=changes.append), changes


async def test_every_change_of_a_topic_is_reported_with_what_it_was_before() -> None:
    context, changes = recording()
    await create_topic(context, "orders", partitions=2, config={"retention.ms": "1000"})
    await alter_topic(context, "orders", put={"retention.ms": "2000", "retention.bytes": "5"})
    await alter_topic(context, "orders", put={"retention.ms": "2000"})
    await add_partitions(context, "orders", 3)
    await delete_topic(context, "orders")
    created, altered, grown, began, *partitions, ended = changes
    assert (created.action, created.after["partitions"], created.after["retention.ms"]) == ("topic.create", 2, "1000")
    assert altered.before == {"retention.bytes": None, "retention.ms": "1000"}
    assert altered.after == {"retention.bytes": "5", "retention.ms": "2000"}
    assert (grown.action, grown.before, grown.after) == ("topic.grow", {"partitions": 2}, {"partitions": 3})
    assert (began.action, began.before["state"], began.after["state"]) == ("topic.delete", "LIVE", "DELETING")
    assert sorted((one.action, one.subject) for one in partitions) == [
        ("partition.delete", f"orders:{number}") for number in range(3)
    ]
    assert (ended.action, ended.after["state"]) == ("topic.delete", "DELETED")


async def test_a_topic_made_by_its_first_use_is_reported() -> None:
    context, changes = recording()
    await initialize(context, ORDERS)
    await initialize(context, ORDERS)
    await initialize(context, Log("orders", 4))
    assert [(one.action, one.after["partitions"], one.after["by"]) for one in changes] == [
        ("topic.create", 1, "first use"),
        ("topic.grow", 5, "first use"),
    ]


async def test_fences_are_reported_with_epoch_and_reason_and_only_when_something_changed() -> None:
    context, changes = recording()
    await initialize(context, ORDERS)
    changes.clear()
    await fence(context, ORDERS, reason="moving")
    await fence(context, ORDERS)
    await unfence(context, ORDERS)
    fenced, opened = changes
    assert (fenced.action, fenced.subject, fenced.after["reason"]) == ("log.fence", "orders:0", "moving")
    assert (fenced.before["log_state"], fenced.after["log_state"]) == ("OPEN", "FENCED")
    assert (opened.action, opened.after["epoch"]) == ("log.unfence", 2)


async def test_deleted_records_are_reported_with_both_starts() -> None:
    context, changes = recording()
    await Writer(context).append(ORDERS)
    changes.clear()
    done = await delete_records(context, ORDERS, -1)
    await delete_records(context, ORDERS, -1)
    [deleted] = changes
    assert deleted == LogChange(
        "records.delete", "orders:0", {"log_start_offset": 1}, {"log_start_offset": done.log_start_offset}
    )


@pytest.mark.parametrize("lands", [True, False])
async def test_a_change_without_an_answer_is_reported_as_what_it_turned_out_to_be(lands: bool) -> None:
    """The put that lands is found by the next read; one that never gets an answer is reported as uncertain."""
    context, changes = recording()
    await create_topic(context, "orders")
    changes.clear()
    put = context.metadata.put

    async def unanswered(*args: Any, **kwargs: Any) -> int:
        if lands:
            await put(*args, **kwargs)
        raise MetadataUncertain("put", "orders", "no answer")

    context.metadata.put = unanswered  # type: ignore[method-assign]
    if lands:
        await alter_topic(context, "orders", put={"retention.ms": "5"})
        assert [(one.action, one.certain) for one in changes] == [("topic.alter", True)]
        return
    with pytest.raises(MetadataUncertain):
        await change_value(
            context,
            context.keys.topic("orders"),
            TopicRecord,
            lambda current: current,
            rounds_max=1,
            busy=TopicNotFound("orders", "busy"),
            retry=lambda _: False,
            describe=lambda before, after: LogChange("topic.alter", "orders"),
        )
    assert [(one.action, one.certain) for one in changes] == [("topic.alter", False)]
