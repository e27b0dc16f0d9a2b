from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from llog.formats.records.encode import encode_columns, largest_record_bytes
from llog.formats.records.record_columns import Header, columns_from_rows

some_bytes = (
    st.none() | st.binary(max_size=300) | st.sampled_from([63, 64, 8_191, 8_192, 1_048_575, 1_048_576]).map(bytes)
)
some_headers = st.lists(st.tuples(st.text(max_size=70), st.none() | st.binary(max_size=70)), max_size=70)


@settings(deadline=None)  # the encoder is loaded when it is first used
@given(key=some_bytes, value=some_bytes, headers=some_headers)
def test_the_size_is_what_the_encoder_writes_for_that_record_alone(
    key: bytes | None, value: bytes | None, headers: list[Header]
) -> None:
    columns = columns_from_rows([value], keys=[key], headers=[headers], timestamps_ms=5)
    assert largest_record_bytes([value], [key], [headers]) == len(encode_columns(columns))


@settings(deadline=None)
@given(values=st.lists(some_bytes, min_size=1, max_size=5))
def test_without_keys_and_headers_the_longest_value_counts(values: list[bytes | None]) -> None:
    alone = [len(encode_columns(columns_from_rows([value], timestamps_ms=5))) for value in values]
    assert largest_record_bytes(values) == max(alone)
    assert largest_record_bytes(values, [None] * len(values), [[]] * len(values)) == max(alone)
