"""Sizes and durations convert exactly or are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llog.settings.units import format_bytes, format_ms, parse_bytes, parse_ms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8388608", 8_388_608),
        ("8_388_608", 8_388_608),
        ("8MiB", 8_388_608),
        ("8 MiB", 8_388_608),
        ("8mib", 8_388_608),
        ("8 MB", 8_000_000),
        ("64k", 65_536),
        ("64kB", 64_000),
        ("1g", 2**30),
        ("2TiB", 2**41),
        ("1.5KiB", 1_536),
        ("0", 0),
        ("7b", 7),
        ("-1", -1),
    ],
)
def test_sizes_mean_what_the_units_say(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500", 500), ("500ms", 500), ("60s", 60_000), ("5m", 300_000), ("5 min", 300_000), ("1h", 3_600_000),
     ("2d", 172_800_000), ("0.5s", 500), ("0", 0)],
)  # fmt: skip
def test_durations_mean_what_the_units_say(text: str, expected: int) -> None:
    assert parse_ms(text) == expected


@pytest.mark.parametrize(
    "text", ["", "MiB", "8 apples", "1e6", "0x10", "٨", "8MiBs", "1.2.3", "9" * 40, "inf", "8,000"]
)
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a number|unknown unit"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["0.3", "1.0001k", "0.5b"])
def test_a_fraction_of_a_byte_is_refused_not_rounded(text: str) -> None:
    with pytest.raises(ValueError, match="not a whole number of bytes"):
        parse_bytes(text)


def test_a_size_is_not_a_duration_and_the_reverse() -> None:
    with pytest.raises(ValueError, match="unknown unit 'mib'"):
        parse_ms("8MiB")
    with pytest.raises(ValueError, match="unknown unit 's'"):
        parse_bytes("8s")


@given(st.integers(0, 2**60))
def test_what_is_written_is_read_back(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == count
    assert parse_ms(format_ms(count)) == count
