"""`python -m tests.golden.write`: write golden files that are not there yet.

A golden file is what some release wrote. It is never written again: later releases must read it, so a change of
format adds a file (`v2/…`) beside the old one. This script only fills gaps.
"""

from __future__ import annotations

from pathlib import Path

from llog.formats.records.bytes_batch import encode_bytes_batch
from tests import samples

HERE = Path(__file__).parent
FIRST = HERE / "v1"
LATER = HERE / "v2"
"""Files of formats that changed since: a blob's header got a checksum, a topic's record how the topic came to be, the
head of a producer snapshot whether producers were forgotten, a position the generation that committed it."""
BYTES_BATCH = [b"alpha", b"", b"\x00\x01", "späß".encode()]


def current() -> dict[str, bytes]:
    """Every golden file's name and what this release would write into it."""
    keys = [f"{key.path} {key.route}" for key in samples.metadata_keys()]
    files = {
        "shared_blob.bin": samples.blob_bytes(),
        "bytes_batch.bin": b"".join(bytes(b) for b in encode_bytes_batch(BYTES_BATCH)),
        "segment.bin": samples.segment_bytes(),
        "segment_plain.bin": samples.plain_segment_bytes(),
        "segment_empty.bin": samples.empty_segment_bytes(),
        "keys.txt": "".join(line + "\n" for line in [*keys, *samples.object_names()]).encode(),
    }
    for i, value in enumerate(samples.VALUE_SAMPLES):
        files[f"value_{i:02d}_{type(value).__name__}.json"] = samples.encoded(value)
    return files


def newest(name: str) -> Path:
    """The file that this release would write."""
    return LATER / name if (LATER / name).exists() else FIRST / name


if __name__ == "__main__":
    for name, data in current().items():
        if not newest(name).exists():
            newest(name).write_bytes(data)
            print(f"wrote {newest(name)}")
