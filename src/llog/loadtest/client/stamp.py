"""The stamp at the start of every record value: which run, producer, partition and sequence, and when it was due.

62 ASCII bytes: `LLT1:` run (8 hex digits) `:` producer (5 digits) `:` topic (4) `:` partition (6) `:` sequence (12) `:`
due time (16, Unix microseconds) `;`. The rest of a value never holds a semicolon, so stamps are found by one search for
it. Stamps are written into prepared requests and found in raw answers with a few numpy operations for all records at
once: a Python loop over records would make the generator measure itself.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]

PREFIX: Final = b"LLT1:"
STAMP_BYTES: Final = 62
END: Final = ord(";")
DIGITS: Final = 12

_RUN, _PRODUCER, _TOPIC = slice(5, 13), slice(14, 19), slice(20, 24)
_PARTITION, _SEQUENCE, _DUE = slice(25, 31), slice(32, 44), slice(45, 61)
_OFFSETS: Final = np.arange(STAMP_BYTES, dtype=np.int64)
_LAST: Final = STAMP_BYTES - 1
_PREFIX: Final = np.frombuffer(PREFIX, np.uint8)
_FOUR_DIGITS: Final = np.frombuffer(b"".join(b"%04d" % number for number in range(10_000)), np.uint32)
"""ASCII of 0000 to 9999; one lookup writes four digits."""


class Stamps(NamedTuple):
    """Columns, in the order of the buffer."""

    producer: Longs
    topic: Longs
    partition: Longs
    sequence: Longs
    due_us: Longs
    position: Longs
    """Of the stamp's first byte in the buffer."""


def run_hash(run_id: str) -> str:
    """The 8 hex digits that stand for a run."""
    return blake2b(run_id.encode(), digest_size=4).hexdigest()


def stamp(run: str, producer: int, topic: int, partition: int, sequence: int, due_us: int) -> bytes:
    """One stamp; `run` is a `run_hash`."""
    return b"%b%b:%05d:%04d:%06d:%012d:%016d;" % (PREFIX, run.encode(), producer, topic, partition, sequence, due_us)


def stamp_places(value_positions: Longs) -> Longs:
    """Argument of `write_stamps`: for each record of a prepared request, the places of its stamp's bytes."""
    return value_positions[:, None] + _OFFSETS


def write_stamps(
    body: Octets,
    places: Longs,
    run: str,
    producer: int,
    topic: int,
    partitions: Longs,
    sequence: int,
    due_us: int,
) -> None:
    """Stamp the records of a prepared request, `body`, which is writable. Each partition has the same number of records
    one behind another, with sequences from `sequence` on."""
    groups, each = len(partitions), len(places) // len(partitions)
    stamps = np.empty((groups, each, STAMP_BYTES), np.uint8)
    stamps[:] = np.frombuffer(stamp(run, producer, topic, 0, 0, due_us), np.uint8)
    stamps[:, :, _PARTITION] = digits(partitions)[:, None, -6:]
    stamps[:, :, _SEQUENCE] = digits(np.arange(sequence, sequence + each, dtype=np.int64))
    body[places] = stamps.reshape(-1, STAMP_BYTES)


def parse_stamps(data: Any, run: str) -> Stamps:
    """All whole stamps of this run in a buffer, whatever is around them."""
    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets == END)
    positions = ends[ends >= _LAST] - _LAST
    positions = positions[(octets[positions[:, None] + _OFFSETS[: len(PREFIX)]] == _PREFIX).all(axis=1)]
    texts = octets[positions[:, None] + _OFFSETS]
    own = (texts[:, _RUN] == np.frombuffer(run.encode(), np.uint8)).all(axis=1)
    if not own.all():
        texts, positions = texts[own], positions[own]
    return Stamps(
        producer=_number(texts[:, _PRODUCER]),
        topic=_number(texts[:, _TOPIC]),
        partition=_number(texts[:, _PARTITION]),
        sequence=_number(texts[:, _SEQUENCE]),
        due_us=_number(texts[:, _DUE]),
        position=positions.astype(np.int64, copy=False),
    )


def digits(numbers: Longs) -> Octets:
    """DIGITS ASCII digits for each."""
    packed = np.empty((len(numbers), DIGITS // 4), np.uint32)
    packed[:, 0] = _FOUR_DIGITS[numbers // 100_000_000]
    packed[:, 1] = _FOUR_DIGITS[numbers // 10_000 % 10_000]
    packed[:, 2] = _FOUR_DIGITS[numbers % 10_000]
    return packed.view(np.uint8)


def _number(texts: Octets) -> Longs:
    """The numbers that rows of ASCII digits stand for."""
    number = np.zeros(len(texts), np.int64)
    for column in range(texts.shape[1]):
        number *= 10
        number += texts[:, column] - ord("0")
    return number
