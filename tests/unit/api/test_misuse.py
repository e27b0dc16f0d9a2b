"""What the faces refuse, by name, before anything is stored: one bad value in metadata would end its log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from llog import LeaderlessLogCompactor, LeaderlessLogReader, LeaderlessLogWriter, SharedAppendGroup, embedded
from llog.errors import InvalidArgument
from llog.settings import Settings


class Faces(NamedTuple):
    writer: LeaderlessLogWriter
    reader: LeaderlessLogReader
    compactor: LeaderlessLogCompactor


@pytest.fixture
def faces(tmp_path: Path) -> Iterator[Faces]:
    objects = f"memory://misuse-{time.time_ns()}"
    settings = Settings.from_env({}, metadata_url=f"lmdb://{tmp_path}/metadata", objects_url=objects)
    with (
        LeaderlessLogWriter(settings) as writer,
        LeaderlessLogReader(settings) as reader,
        LeaderlessLogCompactor(settings) as compactor,
    ):
        writer.append_shared([SharedAppendGroup("t", 0, [b"a", b"b"])])
        yield Faces(writer, reader, compactor)


def group(payloads: Any = (b"x",), **more: Any) -> SharedAppendGroup:
    return SharedAppendGroup("t", 0, payloads, **more)


MISUSES: list[tuple[str, Callable[[Faces], object]]] = [
    ("timestamps_ms", lambda f: f.writer.append_shared([group(timestamps_ms=[time.time() * 1_000])])),
    ("timestamps_ms", lambda f: f.writer.append_shared([group(timestamps_ms=["now"])])),
    ("payloads", lambda f: f.writer.append_shared([group("one text is not three records")])),
    ("payloads", lambda f: f.writer.append_shared([group(b"bytes")])),
    ("groups", lambda f: f.writer.append_shared([])),
    ("groups", lambda f: f.writer.append_shared(group())),  # type: ignore[arg-type]
    ("groups", lambda f: f.writer.append_shared([b"x"])),  # type: ignore[list-item]
    ("offset", lambda f: f.reader.read_offset("t", 0, 1.0)),  # type: ignore[arg-type]
    ("offset", lambda f: list(f.reader.iter_from("t", 0, None))),  # type: ignore[arg-type]
    ("end", lambda f: f.reader.read_range("t", 0, 1, "2")),  # type: ignore[arg-type]
    ("timestamp_ms", lambda f: f.reader.offset_for_timestamp("t", 0, 0.5)),  # type: ignore[arg-type]
    ("max_offsets", lambda f: f.compactor.compact_once("t", 0, max_offsets=0)),
    ("target_bytes", lambda f: f.compactor.compact_once("t", 0, target_bytes=-1)),
    ("min_age_ms", lambda f: f.compactor.compact_once("t", 0, min_age_ms=-1)),
    ("retention_ms", lambda f: f.compactor.retain("t", 0, retention_ms=-1)),
    ("retention_bytes", lambda f: f.compactor.retain("t", 0, retention_bytes=-1)),
    ("before_offset", lambda f: f.compactor.delete_records("t", 0, True)),
]


@pytest.mark.parametrize(("argument", "misuse"), MISUSES)
def test_a_misuse_is_refused_by_name_and_changes_nothing(
    faces: Faces, argument: str, misuse: Callable[[Faces], object]
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        misuse(faces)
    assert refused.value.argument == argument
    assert [record.payload for record in faces.reader.iter_from("t", 0, 1)] == [b"a", b"b"]
    assert faces.compactor.compact_once("t", 0) is not None


def test_integers_of_other_kinds_are_taken(faces: Faces) -> None:
    faces.writer.append_shared(one for one in [group(timestamps_ms=np.array([5]))])  # type: ignore[arg-type]
    assert faces.reader.read_offset("t", 0, np.int64(3)).timestamp_ms == 5  # type: ignore[arg-type]
    assert faces.reader.max_timestamp("t", 0) is not None


def test_an_embedded_broker_refuses_the_same() -> None:
    with embedded(memory=True) as broker:
        for payloads, times in (("text", None), ([b"x"], [0.5])):
            with pytest.raises(InvalidArgument):
                broker.produce("t", payloads, timestamps_ms=times)  # type: ignore[arg-type]
        assert broker.produce("t", [b"x"]).start_offset == 1
