"""`python -m tests.golden.write`: write golden files that are not there yet.

A golden file is what some release wrote. It is never written again: later releases must read it, so a change of
format adds a file (`v2/…`) beside the old one. This script only fills gaps.
"""

from __future__ import annotations

from pathlib import Path

from llog.formats.bytes_batch import encode_bytes_batch
from tests import samples

HERE = Path(__file__).parent / "v1"
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


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for name, data in current().items():
        if not (HERE / name).exists():
            (HERE / name).write_bytes(data)
            print(f"wrote {HERE / name}")
