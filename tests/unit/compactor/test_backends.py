"""Which rounds a service with Spark still rewrites itself."""

from __future__ import annotations

import pytest

from llog.compactor.backends import is_small
from llog.pipeline.compact.plan import SourceObject, Window


def window(*lengths: int | None) -> Window:
    objects = [SourceObject(f"file:///{number}", 0, length) for number, length in enumerate(lengths)]
    return Window(store_url="file:///", objects=tuple(objects), runs=())


@pytest.mark.parametrize(
    ("windows", "small"),
    [
        ([window(40, 60)], True),
        ([window(40, 61)], False),
        ([window(40), window(60)], True),
        ([window(60), window(60)], False),
        ([window(10, None)], False),
        ([], True),
    ],
    ids=["just", "too much", "two windows", "too much in two", "unknown length", "nothing"],
)
def test_a_round_is_small_by_all_it_reads(windows: list[Window], small: bool) -> None:
    assert is_small(windows, 100) is small
