"""`llog topic …`"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from llog.cli import topic
from llog.cli.exits import NOT_FOUND
from llog.cli.topic import parse_configs
from llog.errors import InvalidArgument
from llog.log.topics.admin import create_topic
from llog.log.topics.delete import delete_topic
from llog.wiring import opened_log
from tests.unit.cli.feeding import FedCluster


@pytest.fixture
def cluster(tmp_path: Path) -> FedCluster:
    return FedCluster(tmp_path)


def test_a_created_topic_is_listed_and_described(cluster: FedCluster) -> None:
    made = cluster.run("topic", "create", "orders", "--partitions", "3", "--config", "retention.ms=5000")
    assert made.exit_code == 0, made.output
    assert "3 partitions, retention.ms=5000" in made.stdout
    assert "orders" in cluster.run("topic", "list").stdout
    [listed] = json.loads(cluster.run("topic", "list", "--json").stdout)
    assert (listed["topic"], listed["partitions"], listed["state"]) == ("orders", 3, "LIVE")
    document = json.loads(cluster.run("topic", "describe", "orders", "--json").stdout)
    assert document["config"] == {"retention.ms": "5000"}
    assert [(one["partition"], one["log_state"], one["next_offset"]) for one in document["partitions"]] == [
        (0, "OPEN", 1), (1, "OPEN", 1), (2, "OPEN", 1),
    ]  # fmt: skip
    shown = cluster.run("topic", "describe", "orders")
    assert shown.exit_code == 0
    assert "retention.ms" in shown.stdout


def test_a_topic_begins_where_it_was_told_to(cluster: FedCluster) -> None:
    assert cluster.run("topic", "create", "orders", "--first-offset", "100").exit_code == 0
    document = json.loads(cluster.run("topic", "describe", "orders", "--json").stdout)
    assert document["partitions"][0]["log_start_offset"] == 100


def test_configs_are_set_and_brought_back_to_their_default(cluster: FedCluster) -> None:
    cluster.run("topic", "create", "orders", "--config", "retention.ms=5000")
    altered = cluster.run(
        "topic", "alter", "orders", "--config", "cleanup.policy=compact", "--default", "retention.ms", "--json"
    )
    assert json.loads(altered.stdout)["config"] == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("create", "orders", "--config", "retention"), "retention"),
        (("create", "orders", "--config", "retention.ms=soon"), "retention.ms"),
        (("create", "orders", "--partitions", "0"), "partitions"),
        (("create", "no/topic"), "no/topic"),
        (("alter", "orders"), "nothing to change"),
    ],
)
def test_what_can_never_be_accepted_ends_with_code_2(
    cluster: FedCluster, arguments: tuple[str, ...], named: str
) -> None:
    done = cluster.run("topic", *arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert named in done.stderr


def test_a_config_given_twice_is_refused() -> None:
    assert parse_configs(["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    with pytest.raises(InvalidArgument, match="twice"):
        parse_configs(["a=1", "a=2"])


def test_what_is_not_there_or_there_already_ends_with_a_code_of_its_own(cluster: FedCluster) -> None:
    assert cluster.run("topic", "create", "orders").exit_code == 0
    assert cluster.run("topic", "create", "orders").exit_code == 1
    for command in (("describe",), ("alter", "--config", "retention.ms=1"), ("delete", "--yes")):
        done = cluster.run("topic", command[0], "missing", *command[1:])
        assert done.exit_code == NOT_FOUND
        assert "missing: no such topic" in done.stderr


def test_partitions_grow_and_never_shrink(cluster: FedCluster) -> None:
    cluster.run("topic", "create", "orders", "--partitions", "2")
    assert json.loads(cluster.run("topic", "partitions", "orders", "4", "--json").stdout)["partitions"] == 4
    assert cluster.run("topic", "partitions", "orders", "3").exit_code == 2


def test_configs_without_effect_are_named_when_they_are_set_and_shown(cluster: FedCluster) -> None:
    made = cluster.run("topic", "create", "orders", "--config", "segment.bytes=1048576", "--config", "retention.ms=5")
    assert made.exit_code == 0
    assert "note: segment.bytes has no effect" in made.stderr
    altered = cluster.run("topic", "alter", "orders", "--config", "flush.ms=5")
    assert "note: flush.ms, segment.bytes have no effect" in altered.stderr
    shown = cluster.run("topic", "describe", "orders").stdout
    assert "1048576 (no effect)" in shown
    assert shown.count("(no effect)") == 2
    document = json.loads(cluster.run("topic", "describe", "orders", "--json").stdout)
    assert document["without_effect"] == ["flush.ms", "segment.bytes"]
    enforced = cluster.run("topic", "alter", "orders", "--default", "flush.ms", "--default", "segment.bytes")
    assert enforced.stderr == ""
    refused = cluster.run("topic", "alter", "orders", "--config", "message.timestamp.difference.max.ms=5")
    assert refused.exit_code == 2
    assert "message.timestamp.before.max.ms" in refused.stderr


def test_produce_adds_no_partitions_and_says_how_to(cluster: FedCluster) -> None:
    cluster.run("topic", "create", "orders", "--partitions", "3")
    refused = cluster.run("produce", "orders", "--partition", "50", stdin=b"a\n")
    assert refused.exit_code == NOT_FOUND
    assert "the topic has 3 partitions" in refused.stderr
    assert "llog topic partitions orders 51" in refused.stderr
    assert cluster.run("produce", "new", "--partition", "1", stdin=b"a\n").exit_code == 0
    document = json.loads(cluster.run("topic", "describe", "new", "--json").stdout)
    assert (len(document["partitions"]), document["auto_created"]) == (2, True)
    assert "by a first write" in cluster.run("topic", "describe", "new").stdout


def test_a_dry_run_deletes_nothing(cluster: FedCluster) -> None:
    cluster.write(3)
    done = cluster.run("topic", "delete", "orders", "--dry-run")
    assert done.exit_code == 0
    assert "2 partitions, 12 offsets" in done.stdout
    assert json.loads(cluster.run("topic", "delete", "orders", "--dry-run", "--json").stdout)["offsets"] == 12
    assert cluster.run("topic", "describe", "orders").exit_code == 0


def test_a_topic_is_deleted_only_when_agreed_to(cluster: FedCluster) -> None:
    cluster.write(3)
    refused = cluster.run("topic", "delete", "orders", stdin="n\n")
    assert refused.exit_code == 1
    assert "12 offsets" in refused.stderr
    assert "nothing was changed" in refused.stderr
    unanswered = cluster.run("topic", "delete", "orders", "--json")
    assert (unanswered.exit_code, unanswered.stdout) == (1, "")
    assert "use --yes" in unanswered.stderr
    assert cluster.run("topic", "describe", "orders").exit_code == 0
    done = cluster.run("topic", "delete", "orders", stdin="y\n")
    assert done.exit_code == 0, done.output
    assert cluster.run("topic", "describe", "orders").exit_code == NOT_FOUND
    assert json.loads(cluster.run("topic", "list", "--json").stdout) == []
    [left] = json.loads(cluster.run("topic", "list", "--all", "--json").stdout)
    assert left["state"] == "DELETED"


def test_a_topic_created_again_while_the_question_stood_is_not_deleted(
    cluster: FedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.write(1)

    async def created_again() -> None:
        async with opened_log(cluster.settings) as stores:
            await delete_topic(stores.context, "orders")
            await create_topic(stores.context, "orders")

    monkeypatch.setattr(topic, "ask", lambda _: asyncio.run(created_again()))
    done = cluster.run("topic", "delete", "orders", "--json")
    assert json.loads(done.stdout)["partitions"] == 0
    assert json.loads(cluster.run("topic", "list", "--json").stdout)[0]["incarnation"] == 2
