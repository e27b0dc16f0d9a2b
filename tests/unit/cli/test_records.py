"""`llog produce`, `llog consume`, `llog tail`"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llog.cli.exits import NOT_FOUND
from llog.cli.records import produce, record_text
from llog.cli.records.consume import RecordOutput, follow
from llog.cli.records.record_text import (
    LineParser,
    LineSplitter,
    ParsedRecord,
    parse_format,
    partition_of,
    unescaped,
    writer,
)
from llog.cli.seek import SeekTarget, parse_target
from llog.errors import InvalidArgument, ValueTooLarge
from llog.log.keys import Log
from llog.log.read.records import LogRecord
from llog.log.topics.admin import PartitionDescription
from llog.wiring import opened_log
from tests.patience import PATIENCE_SECONDS
from tests.unit.cli.feeding import FedCluster


@pytest.fixture
def cluster(tmp_path: Path) -> FedCluster:
    return FedCluster(tmp_path)


# -- text -------------------------------------------------------------------------------------------------------------


def test_lines_are_the_same_however_the_input_is_cut() -> None:
    text = b"one\n\ntwo\r\nlast"
    for size in range(1, len(text) + 1):
        lines = LineSplitter()
        cut = [line for at in range(0, len(text), size) for line in lines.feed(text[at : at + size])]
        assert [*cut, *lines.end()] == [b"one", b"", b"two\r", b"last"]


def test_a_line_without_end_is_refused_before_it_fills_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_text, "INPUT_LINE_BYTES_MAX", 10)
    lines = LineSplitter()
    assert list(lines.feed(b"12345\n1234567890")) == [b"12345"]
    with pytest.raises(ValueTooLarge):
        list(lines.feed(b"1"))


def test_a_line_is_cut_at_the_first_separator() -> None:
    parser = LineParser(key_separator=r"\t")
    assert parser.parse(b"k\tv\tw", 1) == ParsedRecord(b"k", b"v\tw")
    assert parser.parse(b"no key", 1) == ParsedRecord(None, b"no key")
    assert LineParser(key_separator=":", tombstones=True).parse(b"k:", 1) == ParsedRecord(b"k", None)
    assert LineParser(key_separator=":").parse(b"k:", 1) == ParsedRecord(b"k", b"")
    with pytest.raises(InvalidArgument, match="key-separator"):
        LineParser(key_separator="")


def test_a_line_that_is_no_base64_is_named_by_its_number() -> None:
    parser = LineParser(decode_base64=True, key_separator=":")
    assert parser.parse(b"AAE=:/w==", 1) == ParsedRecord(b"\x00\x01", b"\xff")
    with pytest.raises(InvalidArgument, match="line 7"):
        parser.parse(b"?", 7)


def test_records_of_one_key_share_a_partition_and_keyless_ones_go_round() -> None:
    assert len({partition_of(b"k", batch, 7) for batch in range(20)}) == 1
    assert {partition_of(None, batch, 3) for batch in range(3)} == {0, 1, 2}
    assert partition_of(b"123456789", 0, 2**32) == 0xCBF43926  # the check value of CRC-32, as other clients have it


RECORD = LogRecord(7, b"v\xff", b"k", (("h", b"1"), ("n", None)), 1_234)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%s\n", b"v\xff\n"),
        (r"%t:%p:%o %k=%s\t%T %h", b"t:3:7 k=v\xff\t1234 h=1,n=NULL"),
        (r"%S %K 100%% \\n", b"2 1 100% \\n"),
        ("plain", b"plain"),
    ],
)
def test_a_format_writes_what_it_says(text: str, expected: bytes) -> None:
    assert writer(text)(Log("t", 3), RECORD) == expected


def test_base64_is_for_keys_and_payloads_alone() -> None:
    assert writer("%t %k %s %o", as_base64=True)(Log("t", 3), RECORD) == b"t aw== dv8= 7"


@pytest.mark.parametrize("text", ["%x", "%", r"\q", "ends with \\"])
def test_an_unknown_format_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not known"):
        parse_format(text)


def test_a_percent_sign_in_a_separator_is_itself() -> None:
    assert unescaped(r"%\t%", "x") == b"%\t%"


def test_json_loses_no_byte() -> None:
    line = json.loads(writer("", as_json=True)(Log("t", 3), RECORD))
    assert line["payload"] == {"base64": "dv8="}
    assert (line["key"], line["offset"], line["timestamp_ms"]) == ("k", 7, 1_234)
    assert line["headers"] == [["h", "1"], ["n", None]]


def test_places_are_words_offsets_or_timestamps() -> None:
    assert parse_target("earliest") == SeekTarget("earliest")
    assert parse_target("17") == SeekTarget("offset", 17)
    assert parse_target("-5") == SeekTarget("last", 5)
    assert parse_target("@99") == SeekTarget("timestamp", 99)
    for wrong in ("", "soon", "@", "@-1", "1_0", "99999999999999999999", "--1"):
        with pytest.raises(InvalidArgument, match="earliest, latest"):
            parse_target(wrong)


# -- the commands -----------------------------------------------------------------------------------------------------


def test_what_goes_in_comes_out(cluster: FedCluster) -> None:
    made = cluster.run("produce", "orders", stdin=b"alpha\n\nbeta \xff\ngamma")
    assert made.exit_code == 0, made.output
    assert "orders:0: 4 records, offsets 1 … 4" in made.stdout
    assert cluster.run("consume", "orders").stdout_bytes == b"alpha\n\nbeta \xff\ngamma\n"
    assert cluster.run("consume", "orders", "--from", "2", "--max", "2").stdout_bytes == b"\nbeta \xff\n"
    assert cluster.run("consume", "orders", "--from", "-1").stdout_bytes == b"gamma\n"
    assert cluster.run("consume", "orders", "--from", "latest").stdout_bytes == b""
    assert cluster.run("consume", "orders", "--from", "@0", "-f", "%o,").stdout_bytes == b"1,2,3,4,"
    assert cluster.run("consume", "orders", "--from", f"@{2**50}").stdout_bytes == b""


def test_offsets_are_printed_as_they_land(cluster: FedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "PRODUCE_RECORDS_MAX", 2)
    landed = cluster.run("produce", "orders", "--json", stdin=b"1234\n5678\n9\n")
    lines = [json.loads(line) for line in landed.stdout.splitlines()]
    assert [(one["start_offset"], one["end_offset"], one["count"]) for one in lines] == [(1, 2, 2), (3, 3, 1)]


def test_a_topic_is_copied_with_all_that_its_records_carry(cluster: FedCluster) -> None:
    document = {"key": {"base64": "/w=="}, "payload": "v", "headers": [["h", "1"], ["n", None]], "timestamp_ms": 7}
    lines = b"\n".join(json.dumps(one).encode() for one in (document, {"payload": None}))
    assert cluster.run("produce", "orders", "--input", "json", "-H", "by=hand", stdin=lines).exit_code == 0
    first, second = map(json.loads, cluster.run("consume", "orders", "--json").stdout.splitlines())
    assert (first["key"], first["payload"], first["timestamp_ms"]) == ({"base64": "/w=="}, "v", 7)
    assert first["headers"] == [["h", "1"], ["n", None], ["by", "hand"]]
    assert (second["key"], second["payload"]) == (None, None)
    assert second["timestamp_ms"] > 10**12, "one without a timestamp gets the time of now"
    shown = cluster.run("consume", "orders", "--json", "--base64").stdout
    assert cluster.run("produce", "copy", "--input", "json", "--base64", stdin=shown).exit_code == 0
    copied = [json.loads(line) for line in cluster.run("consume", "copy", "--json").stdout.splitlines()]
    assert [{**one, "topic": "orders"} for one in copied] == [first, second]


@pytest.mark.parametrize(
    "line", [b"", b"text", b'{"key": "k"}', b'{"payload": 1}', b'{"payload": {"base64": "?"}}', b"\xff"]
)
def test_a_line_that_is_no_record_is_named_by_its_number(cluster: FedCluster, line: bytes) -> None:
    done = cluster.run("produce", "orders", "--input", "json", stdin=b'{"payload": "ok"}\n' + line + b"\n")
    assert done.exit_code == 2
    assert "line 2" in done.stderr


def test_options_that_contradict_each_other_are_refused(cluster: FedCluster) -> None:
    assert cluster.run("produce", "orders", "--input", "json", "-K", ":").exit_code == 2
    assert cluster.run("produce", "orders", "-H", "no equals sign").exit_code == 2


def test_the_words_of_kcat_are_understood(cluster: FedCluster) -> None:
    cluster.run("produce", "orders", stdin=b"a\nb\nc\n")
    assert cluster.run("consume", "orders", "-e", "-o", "beginning", "-c", "2").stdout == "a\nb\n"
    assert cluster.run("consume", "orders", "-o", "end").stdout == ""
    assert cluster.run("tail", "orders", "-e", "-o", "-1").stdout == "c\n"


def test_keys_tombstones_and_base64_come_out_as_they_went_in(cluster: FedCluster) -> None:
    assert cluster.run("produce", "orders", "-K", ":", "-Z", stdin=b"a:1\nb:\nplain\n").exit_code == 0
    shown = [json.loads(line) for line in cluster.run("consume", "orders", "--json").stdout.splitlines()]
    assert [(one["key"], one["payload"]) for one in shown] == [("a", "1"), ("b", None), (None, "plain")]
    raw = bytes(range(256))
    cluster.run("produce", "raw", "--base64", stdin=base64.b64encode(raw) + b"\n")
    assert cluster.run("consume", "raw", "-f", "%s").stdout_bytes == raw
    assert cluster.run("consume", "raw", "--base64").stdout_bytes == base64.b64encode(raw) + b"\n"


def test_keys_spread_over_the_partitions_and_every_record_is_read(cluster: FedCluster) -> None:
    cluster.run("topic", "create", "orders", "--partitions", "3")
    text = b"".join(b"key-%d:%d\n" % (number % 9, number) for number in range(90))
    assert cluster.run("produce", "orders", "-K", ":", stdin=text).exit_code == 0
    seen = [json.loads(line) for line in cluster.run("consume", "orders", "--json").stdout.splitlines()]
    assert sorted(int(one["payload"]) for one in seen) == list(range(90))
    assert len({one["partition"] for one in seen}) > 1
    for key in {one["key"] for one in seen}:
        mine = [one for one in seen if one["key"] == key]
        assert len({one["partition"] for one in mine}) == 1
        assert [int(one["payload"]) for one in mine] == sorted(int(one["payload"]) for one in mine)
    only = cluster.run("consume", "orders", "-p", "1", "-f", "%p").stdout
    assert set(only) <= {"1"}
    assert cluster.run("consume", "orders", "--max", "5", "-f", "x").stdout == "xxxxx"


def test_nothing_on_stdin_appends_nothing(cluster: FedCluster) -> None:
    done = cluster.run("produce", "orders")
    assert done.exit_code == 0
    assert "empty" in done.stdout


def test_a_wrong_line_says_how_much_was_appended_before_it(
    cluster: FedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "PRODUCE_RECORDS_MAX", 2)
    done = cluster.run("produce", "orders", "--base64", stdin=b"AAAA\nAAAA\n??\n")
    assert done.exit_code == 2
    assert "2 records were appended before this" in done.stderr
    assert "line 3" in done.stderr


def test_a_fenced_log_refuses_lines(cluster: FedCluster) -> None:
    cluster.run("produce", "orders", stdin=b"a\n")
    cluster.run("fence", "orders", "0", "--reason", "migration")
    done = cluster.run("produce", "orders", stdin=b"b\n")
    assert done.exit_code == 1
    assert "0 records were appended" in done.stderr
    assert cluster.run("consume", "orders").stdout == "a\n"


def test_what_landed_beside_a_refused_partition_is_told(cluster: FedCluster) -> None:
    cluster.run("topic", "create", "orders", "--partitions", "2")
    cluster.run("fence", "orders", "0")
    done = cluster.run("produce", "orders", "-K", ":", "--json", stdin=b"".join(b"%d:x\n" % n for n in range(20)))
    assert done.exit_code == 1
    [landed] = [json.loads(line) for line in done.stdout.splitlines()]
    assert landed["partition"] == 1
    assert f"{landed['count']} records were appended before this" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (("consume", "missing"), NOT_FOUND, "missing: no such topic"),
        (("tail", "missing"), NOT_FOUND, "missing: no such topic"),
        (("consume", "orders", "-p", "9"), NOT_FOUND, "the topic has 2 partitions"),
        (("consume", "orders", "--from", "99"), 1, "offset 99 is outside 1 … 2"),
        (("consume", "orders", "--from", "soon"), 2, "earliest, latest"),
        (("tail", "orders", "--format", "%x"), 2, "%x is not known"),
        (("produce", "no/topic"), 2, "no/topic"),
    ],
)
def test_the_error_names_the_fault(cluster: FedCluster, arguments: tuple[str, ...], code: int, named: str) -> None:
    cluster.write(1)
    done = cluster.run(*arguments)
    assert done.exit_code == code
    assert done.stdout == ""
    assert named in done.stderr


def test_a_partition_without_a_record_reads_as_empty(cluster: FedCluster) -> None:
    cluster.run("topic", "create", "orders", "--partitions", "2")
    assert cluster.run("consume", "orders").exit_code == 0


def test_tail_ends_after_as_many_records_as_it_was_told(cluster: FedCluster) -> None:
    cluster.write(3)
    assert cluster.run("tail", "orders", "-p", "0", "--from", "-4", "--max", "3").stdout == "1\nx\n2\n"


def test_tail_reports_records_removed_before_the_read(cluster: FedCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.write(3)
    assert cluster.run("delete-records", "orders", "0", "5", "--yes").exit_code == 0
    log, stream = Log("orders", 0), io.BytesIO()
    positions = {log: 1}

    async def follow_twice() -> None:
        async with opened_log(cluster.settings) as stores:
            sink = RecordOutput(stream, writer("%o,"), None)
            stale = PartitionDescription(0, "OPEN", 1, 7)
            await follow(stores.context, log, stale, positions, sink)
            assert (positions[log], stream.getvalue()) == (1, b"")
            await follow(stores.context, log, stale._replace(log_start_offset=5), positions, sink)

    asyncio.run(follow_twice())
    assert (positions[log], stream.getvalue()) == (7, b"5,6,")
    assert "orders:0: offsets 1 … 4 were removed before they were read" in capsys.readouterr().err


def test_tail_follows_and_ctrl_c_ends_it_with_0(cluster: FedCluster) -> None:
    cluster.write(1)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LLOG_", "AWS_"))}
    kept |= {"LLOG_METADATA_URL": cluster.settings.metadata_url, "LLOG_OBJECTS_URL": cluster.settings.objects_url}
    command = [sys.executable, "-m", "llog", "tail", "orders", "--from", "-1", "-f", r"%p %s\n"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=kept) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        assert {following.stdout.readline(), following.stdout.readline()} == {b"0 x\n", b"1 x\n"}
        assert cluster.run("produce", "orders", "-p", "1", stdin=b"fresh\n").exit_code == 0
        assert following.stdout.readline() == b"1 fresh\n"
        following.send_signal(signal.SIGINT)
        assert following.wait(PATIENCE_SECONDS) == 0
        assert following.stderr.read() == b""


def test_ctrl_c_ends_the_input_and_what_was_typed_is_appended(cluster: FedCluster) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LLOG_", "AWS_"))}
    kept |= {"LLOG_METADATA_URL": cluster.settings.metadata_url, "LLOG_OBJECTS_URL": cluster.settings.objects_url}
    command = [sys.executable, "-m", "llog", "produce", "orders", "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=kept) as typing:
        assert typing.stdin is not None
        assert typing.stdout is not None
        assert typing.stderr is not None
        typing.stdin.write(b"typed\n")
        typing.stdin.flush()
        assert json.loads(typing.stdout.readline())["end_offset"] == 1  # without waiting for more
        typing.send_signal(signal.SIGINT)
        assert typing.wait(PATIENCE_SECONDS) == 0, typing.stderr.read()
        [audit_line] = typing.stderr.read().splitlines()
        assert json.loads(audit_line)["action"] == "topic.create"
    assert cluster.run("consume", "orders").stdout == "typed\n"
