"""Stamps in answers: every record is found once, whatever surrounds it, and hostile bytes end in an error."""

from __future__ import annotations

import numpy as np
import pytest

from llog.errors import FormatError
from llog.formats.records.record_batch import Codec
from llog.loadtest.client import stamp
from llog.loadtest.client.consume import scan_kernels as kernels
from llog.loadtest.client.consume.scan import Fetched, Scanner
from llog.loadtest.client.histograms import Latencies, decode
from llog.loadtest.client.ledger import ReceivedLedger
from tests.unit.loadtest.consuming import DUE_US, RUN, TOPIC_ID, VALUE_BYTES, batch, fetch_answer, places, value


class Scan:
    """A scanner with what it hands its records to."""

    def __init__(self, partitions: int = 2) -> None:
        self.scanner = Scanner(RUN, VALUE_BYTES)
        self.places = places(partitions)
        self.ledger, self.latencies = ReceivedLedger(), Latencies()

    def fetched(self, answer: memoryview) -> Fetched:
        return self.scanner.fetched(answer, 0, self.places, TOPIC_ID)

    def take(self, received_us: int = DUE_US) -> int:
        return self.scanner.take(self.ledger, self.latencies, received_us)

    def ranges(self, partition: int, producer: int = 3) -> list[tuple[int, int]]:
        found = self.ledger.received[producer, 0, partition]
        return list(zip(found.starts, found.ends, strict=True))

    def sum(self, row: int) -> int:
        return int(self.scanner.sums[row])


def text_of(values: list[bytes]) -> bytes:
    return b",".join(b'{"offset":%d,"payload":"%b"}' % (number, one) for number, one in enumerate(values))


@pytest.mark.parametrize("codec", list(Codec))
def test_every_record_of_a_fetch_answer_is_found(codec: Codec) -> None:
    scan = Scan()
    first, second = [value(0, n) for n in range(5)], [value(0, n) for n in range(5, 9)]
    answer = fetch_answer({0: batch(0, first, codec) + batch(5, second), 1: batch(0, [value(1, 0)])})
    fetched = scan.fetched(answer)
    assert scan.take() == 10
    assert (scan.ranges(0), scan.ranges(1)) == ([(0, 9)], [(0, 1)])
    assert fetched.rows.tolist() == [0, 1]
    assert fetched.next_offsets.tolist() == [9, 1]
    assert fetched.high_watermarks.tolist() == [1_000, 1_000]
    assert scan.sum(kernels.PAYLOAD_BYTES) == 10 * VALUE_BYTES
    assert scan.sum(kernels.OFFSET_GAPS) == 0


def test_records_before_the_offset_that_was_asked_for_are_not_taken() -> None:
    scan = Scan()
    scan.places.offsets[0] = 12
    scan.fetched(fetch_answer({0: batch(0, [value(0, 0)]) + batch(10, [value(0, n) for n in range(10, 15)])}))
    assert scan.take() == 3
    assert scan.ranges(0) == [(12, 15)]


def test_a_batch_that_the_broker_cut_is_left_for_the_next_request() -> None:
    scan = Scan()
    whole, cut = batch(0, [value(0, 0)]), batch(1, [value(0, 1), value(0, 2)])[:-1]
    assert scan.fetched(fetch_answer({0: whole + cut})).next_offsets.tolist() == [1]
    assert scan.take() == 1


def test_offsets_without_records_are_counted() -> None:
    scan = Scan()
    scan.fetched(fetch_answer({0: batch(0, [value(0, 0)]) + batch(4, [value(0, 1)])}))
    assert scan.sum(kernels.OFFSET_GAPS) == 3


def test_records_of_other_runs_and_without_stamp_are_counted_and_ignored() -> None:
    scan = Scan()
    others = [value(0, 0, run="00000000"), b"no stamp", value(0, 1)[:61], b"LLT1:" + RUN.encode() + b"x" * 80]
    scan.fetched(fetch_answer({0: batch(0, [*others, value(0, 7)])}))
    assert scan.take() == 1
    assert (scan.sum(kernels.FOREIGN), scan.sum(kernels.UNSTAMPED)) == (1, 3)
    assert scan.ranges(0) == [(7, 8)]


def test_a_record_in_a_partition_that_its_stamp_does_not_name_is_not_received() -> None:
    scan = Scan()
    scan.fetched(fetch_answer({0: batch(0, [value(1, 0), value(0, 0)])}))
    assert scan.take() == 1
    assert scan.sum(kernels.MISPLACED) == 1
    assert (3, 0, 1) not in scan.ledger.received


def test_producers_that_share_a_batch_have_ranges_of_their_own() -> None:
    scan = Scan()
    mixed = [value(0, 0, producer=1), value(0, 0, producer=2), value(0, 1, producer=1), value(0, 1, producer=99_999)]
    scan.fetched(fetch_answer({0: batch(0, mixed)}))
    scan.take()
    assert [scan.ranges(0, producer) for producer in (1, 2, 99_999)] == [[(0, 2)], [(0, 1)], [(1, 2)]]


def test_every_record_of_a_json_answer_is_found() -> None:
    scan = Scan()
    scan.scanner.text(text_of([value(0, n) for n in range(50)]), 0, 0, 50)
    assert scan.take() == 50
    assert scan.ranges(0) == [(0, 50)]
    assert scan.sum(kernels.OFFSET_GAPS) == 0


def test_json_records_of_other_runs_are_no_gaps() -> None:
    scan = Scan()
    scan.scanner.text(text_of([value(0, 0), value(0, 1, run="00000000"), value(1, 5), value(0, 1)]), 0, 0, 6)
    assert scan.take() == 2
    assert (scan.sum(kernels.FOREIGN), scan.sum(kernels.MISPLACED), scan.sum(kernels.OFFSET_GAPS)) == (1, 1, 2)


def test_latency_is_the_time_since_a_record_was_due() -> None:
    scan = Scan()
    scan.fetched(fetch_answer({0: batch(0, [value(0, n) for n in range(4)])}))
    scan.take(DUE_US + 1_500)
    histogram = decode(scan.latencies.take())
    assert histogram.get_total_count() == 4
    assert histogram.get_max_value() == 1_500


def test_a_topic_that_was_not_asked_for_is_an_error() -> None:
    scan = Scan()
    with pytest.raises(FormatError, match="topic that was not asked for"):
        scan.scanner.fetched(fetch_answer({0: b""}), 0, scan.places, b"y" * 16)


def test_a_partition_of_another_client_is_passed_over() -> None:
    scan = Scan(partitions=1)
    assert scan.fetched(fetch_answer({5: b""})).rows.tolist() == []


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_damaged_answers_end_in_an_error_or_in_fewer_records(codec: Codec) -> None:
    """No position is read unchecked: whatever byte is damaged or missing, the process goes on."""
    sound = bytes(fetch_answer({0: batch(0, [value(0, n) for n in range(3)], codec), 1: batch(0, [value(1, 0)])}))
    random = np.random.default_rng(17)
    for _ in range(400):
        damaged = bytearray(sound[: random.integers(1, len(sound) + 1)])
        for at in random.integers(0, len(damaged), random.integers(1, 4)):
            damaged[at] = random.integers(0, 256)
        scan = Scan()
        try:
            scan.fetched(memoryview(damaged))
        except FormatError:
            pass
        assert scan.take() <= 4


def test_the_kernels_know_the_stamp_as_the_producers_write_it() -> None:
    assert kernels.STAMP_BYTES == stamp.STAMP_BYTES
    text = stamp.stamp(RUN, 12_345, 9_999, 999_999, 10**12 - 1, 10**16 - 1).ljust(VALUE_BYTES, b"x")
    scan = Scan()
    scan.scanner.text(text, 9_999, 999_999, 1)
    assert scan.take(10**16) == 1
    assert list(scan.ledger.received) == [(12_345, 9_999, 999_999)]
    assert scan.ledger.received[12_345, 9_999, 999_999].last_end == 10**12
