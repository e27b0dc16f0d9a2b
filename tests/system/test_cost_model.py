"""The cost model against a real broker: requests at a known rate, at random times, and what its metrics counted.

The tolerance is 30 %: a processor shared with other programs wakes the broker late, which makes fewer, larger blobs.
"""

from __future__ import annotations

import random
import threading
import time

import pytest

import llog
from llog.cost.activity import SECONDS_PER_DAY, activity_of
from llog.cost.inputs import inputs_of
from llog.cost.live import http_page, live_estimate, reading_of

TOLERANCE = 0.30
REQUESTS_PER_S = 300.0
RECORDS = 10
PARTITIONS = 24
WINDOW_S = 2.0
SENDERS = 40


def produce_at_random_times(broker: llog.EmbeddedBroker, seconds: float) -> int:
    """Each sender is one of many clients: together they send REQUESTS_PER_S, whatever an answer takes."""
    sent = []
    begin = time.monotonic() + 0.05

    def send(number: int) -> None:
        chance = random.Random(number)
        due = begin + chance.expovariate(REQUESTS_PER_S / SENDERS)
        while due < begin + seconds:
            time.sleep(max(0.0, due - time.monotonic()))
            broker.produce("load", [b"x" * 1_024] * RECORDS, partition=chance.randrange(PARTITIONS))
            sent.append(due)
            due += chance.expovariate(REQUESTS_PER_S / SENDERS)

    senders = [threading.Thread(target=send, args=(number,)) for number in range(SENDERS)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    return len(sent)


@pytest.mark.serial
def test_puts_and_index_keys_of_a_running_broker_are_as_predicted() -> None:
    # Senders wait for their answers, so the delay must stay far below the time between two requests of a sender.
    with llog.embedded(memory=True, batch_max_delay_ms=13) as broker:
        for partition in range(PARTITIONS):
            broker.produce("load", [b"first"], partition=partition)
        read = http_page(None)
        begin, began_s = reading_of(read(broker.url)), time.monotonic()
        sent = produce_at_random_times(broker, WINDOW_S)
        end, seconds = reading_of(read(broker.url)), time.monotonic() - began_s

    predicted = activity_of(
        inputs_of(
            {
                "records_per_s": sent * RECORDS / seconds,
                "record_bytes": 1_024.0,
                "records_per_group": float(RECORDS),
                "partitions": PARTITIONS,
                "delay_ms": 13.0,
                "store": "local",
                "upload_ms": 1.0,
                "metadata_store": "atomic",
                "compactors": 0,
            }
        )
    )
    measured = live_estimate([begin], [end], seconds)
    print(f"{sent} requests; blobs per s: predicted {predicted.blobs_per_day / SECONDS_PER_DAY:.1f}, measured"
          f" {measured.figure('objects before compaction') / SECONDS_PER_DAY:.1f}; keys per s: predicted"
          f" {predicted.keys_per_day / SECONDS_PER_DAY:.1f}, measured"
          f" {measured.figure('index keys before compaction') / SECONDS_PER_DAY:.1f}")  # fmt: skip
    assert measured.figure("PUT requests") == pytest.approx(predicted.puts_per_day, rel=TOLERANCE)
    assert measured.figure("objects before compaction") == pytest.approx(predicted.blobs_per_day, rel=TOLERANCE)
    assert measured.figure("index keys before compaction") == pytest.approx(predicted.keys_per_day, rel=TOLERANCE)
    assert measured.figure("produced") == pytest.approx(sent * RECORDS * 1_024 / seconds / 1e6, rel=0.01)
