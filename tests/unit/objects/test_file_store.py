"""The directory store's durability, shown by the order of its system calls, and its errors."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from llog.errors import (
    InvalidArgument,
    ObjectAlreadyExists,
    ObjectNotFound,
    ObjectStoreDenied,
    ObjectStoreError,
    ObjectStoreFull,
    ObjectStoreMisconfigured,
    ObjectStoreUncertain,
)
from llog.stores.objects import file
from llog.stores.objects.file import ERRORS, FileObjectStore, translate
from llog.stores.objects.file_tree import OBJECT_FILE_TEMPORARY_AGE_MS_MAX, TEMPORARY_DIRECTORY, write_vectors
from llog.stores.objects.port import checked


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FileObjectStore]:
    opened = await checked(await file.open_from_url(f"file://{tmp_path}/objects"))
    assert isinstance(opened, FileObjectStore)
    async with opened:
        yield opened


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str]]:
    """The calls that decide about durability, as they happen: what was done to which path."""
    seen: list[tuple[str, str]] = []
    objects = tmp_path / "objects"

    def relative(path: str) -> str:
        path = os.path.relpath(path, objects)
        return "temporary" if path.startswith(TEMPORARY_DIRECTORY + "/") else path

    def record(name: str, target: Callable[..., str]) -> None:
        real = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            seen.append((name, relative(target(*args))))
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    record("writev", lambda fd, views: os.readlink(f"/proc/self/fd/{fd}"))
    record("fsync", lambda fd: os.readlink(f"/proc/self/fd/{fd}"))
    record("rename", lambda source, target: target)
    record("link", lambda source, target: target)
    record("mkdir", lambda path, mode=0o777: path)
    record("unlink", lambda path: path)
    return seen


def fail(code: int) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise OSError(code, os.strerror(code), str(args[0]))

    return call


def files_below(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())


async def test_bytes_are_on_disk_before_the_name_and_the_name_before_the_answer(
    store: FileObjectStore, calls: list[tuple[str, str]]
) -> None:
    await store.put("a", [b"x"])
    order = [("writev", "temporary"), ("fsync", "temporary"), ("rename", "a"), ("fsync", ".")]
    assert [c for c in calls if c[0] != "unlink"] == order


async def test_a_conditional_put_links_between_the_two_syncs(
    store: FileObjectStore, calls: list[tuple[str, str]]
) -> None:
    await store.put("a", [b"x"], if_absent=True)
    order = [("writev", "temporary"), ("fsync", "temporary"), ("link", "a"), ("fsync", "."), ("unlink", "temporary")]
    assert calls == order


async def test_a_new_directory_is_on_disk_before_a_name_is_put_in_it(
    store: FileObjectStore, calls: list[tuple[str, str]]
) -> None:
    await store.put("d/e/a", [b"x"])
    made = [("mkdir", "d"), ("fsync", "."), ("mkdir", "d/e"), ("fsync", "d"), ("rename", "d/e/a"), ("fsync", "d/e")]
    assert [c for c in calls if c[0] != "unlink"][2:] == made
    calls.clear()
    await store.put("d/e/b", [b"x"])
    assert ("fsync", "d") not in calls, "known directories are not synced again"


async def test_a_directory_that_another_process_just_created_is_synced_too(
    store: FileObjectStore, calls: list[tuple[str, str]], tmp_path: Path
) -> None:
    (tmp_path / "objects" / "d").mkdir()
    calls.clear()
    await store.put("d/a", [b"x"])
    assert calls.index(("fsync", ".")) < calls.index(("rename", "d/a"))


async def test_the_root_and_what_is_above_it_are_made_durably(calls: list[tuple[str, str]], tmp_path: Path) -> None:
    async with await checked(await file.open_from_url(f"file://{tmp_path}/objects/very/deep")):
        made = [c for c in calls if c[0] in ("mkdir", "fsync")]
    assert made[:6] == [
        ("mkdir", "."),
        ("fsync", ".."),
        ("mkdir", "very"),
        ("fsync", "."),
        ("mkdir", "very/deep"),
        ("fsync", "very"),
    ]


async def test_a_directory_tidied_away_is_made_again(store: FileObjectStore, tmp_path: Path) -> None:
    await store.put("d/e/a", [b"x"])
    await store.delete("d/e/a")
    (tmp_path / "objects/d/e").rmdir()
    (tmp_path / "objects/d").rmdir()
    await store.put("d/e/a", [b"y"], if_absent=True)
    assert bytes(await store.get("d/e/a")) == b"y"


async def test_tidying_removes_what_is_empty_and_nothing_else(store: FileObjectStore, tmp_path: Path) -> None:
    root = tmp_path / "objects"
    for name in ("d/e/a", "d/f/a", "other/a"):
        await store.put(name, [b"x"])
    await store.delete("d/e/a")
    await store.delete("other/a")
    await store.tidy("d")
    assert [path for path in _below(root) if not path.startswith(TEMPORARY_DIRECTORY)] == ["d", "d/f", "d/f/a", "other"]
    await store.delete("d/f/a")
    await store.tidy("d")
    await store.tidy("d")
    assert "d" not in _below(root)
    with pytest.raises(InvalidArgument):
        await store.tidy("../d")


def _below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


async def test_puts_and_tidying_do_not_lose_each_others_files(store: FileObjectStore) -> None:
    names = [f"d/e{number % 3}/{number}" for number in range(150)]

    async def put(name: str) -> None:
        await store.put(name, [b"x"])
        await store.delete(name)
        await store.put(f"{name}-kept", [b"x"])

    async def tidy() -> None:
        for _ in range(100):
            await store.tidy("d")

    await asyncio.gather(tidy(), *map(put, names), tidy())
    assert [meta.name async for meta in store.list("d/")] == sorted(f"{name}-kept" for name in names)


def test_partial_writes_are_continued(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = os.writev

    def write_some(descriptor: int, views: list[memoryview]) -> int:
        assert len(views) <= 1_024
        # Three bytes at most, across the borders of views.
        some, room = [], 3
        for view in views:
            some.append(view[:room])
            room -= len(some[-1])
            if room == 0:
                break
        return real(descriptor, some)

    monkeypatch.setattr(os, "writev", write_some)
    parts = [bytes([65 + i % 26]) * (i % 5 + 1) for i in range(1_100)]
    descriptor = os.open(tmp_path / "x", os.O_WRONLY | os.O_CREAT)
    write_vectors(descriptor, [memoryview(p) for p in parts])
    os.close(descriptor)
    assert (tmp_path / "x").read_bytes() == b"".join(parts)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (errno.ENOSPC, ObjectStoreFull),
        (errno.EDQUOT, ObjectStoreFull),
        (errno.EACCES, ObjectStoreDenied),
        (errno.EROFS, ObjectStoreDenied),
        (errno.EIO, ObjectStoreError),
    ],
)
@pytest.mark.parametrize("call", ["writev", "fsync", "rename"])
async def test_a_put_that_fails_leaves_nothing_behind(
    store: FileObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    call: str,
    code: int,
    error: type[ObjectStoreError],
) -> None:
    monkeypatch.setattr(os, call, fail(code))
    with pytest.raises(error) as raised:
        await store.put("a", [b"x"])
    assert type(raised.value) is error
    assert files_below(tmp_path / "objects") == []


@pytest.mark.parametrize("if_absent", [False, True])
async def test_a_put_whose_directory_cannot_be_synced_is_uncertain(
    store: FileObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, if_absent: bool
) -> None:
    real, count = os.fsync, 0

    def second_fails(descriptor: int) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise OSError(errno.EIO, "I/O error")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", second_fails)
    with pytest.raises(ObjectStoreUncertain):
        await store.put("a", [b"x"], if_absent=if_absent)
    # A repeated conditional put must sync again, not find the first one in its way.
    await store.put("a", [b"x"], if_absent=if_absent)
    assert files_below(tmp_path / "objects") == ["a"]


async def test_temporary_files_are_no_objects_and_old_ones_are_swept_at_the_start(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/objects"
    async with await checked(await file.open_from_url(url)) as store:
        await store.put("a", [b"x"])
    temporary = tmp_path / "objects" / TEMPORARY_DIRECTORY
    old, young = temporary / "1-old-1", temporary / "2-young-1"
    old.write_bytes(b"half")
    young.write_bytes(b"half")
    long_ago = old.stat().st_mtime - OBJECT_FILE_TEMPORARY_AGE_MS_MAX / 1000 - 10
    os.utime(old, (long_ago, long_ago))
    async with await checked(await file.open_from_url(url)) as store:
        assert [m.name async for m in store.list()] == ["a"]
        assert [m.name async for m in store.list(".llog")] == []
        assert [m.name async for m in store.list(f"{TEMPORARY_DIRECTORY}/")] == []
        assert files_below(temporary) == ["2-young-1"]
        for refused in (store.get, store.delete, store.head):
            with pytest.raises(InvalidArgument, match="temporary"):
                await refused(f"{TEMPORARY_DIRECTORY}/2-young-1")


async def test_files_no_put_could_have_written_are_not_listed(store: FileObjectStore, tmp_path: Path) -> None:
    root = tmp_path / "objects"
    await store.put("a", [b"x"])
    (root / "line\nbreak").write_bytes(b"")
    (root / "link").symlink_to(root / "a")
    os.mkfifo(root / "pipe")
    (root / os.fsdecode(b"\xff\xfe")).write_bytes(b"")
    assert [m.name async for m in store.list()] == ["a"]


async def test_a_root_that_cannot_be_used_is_found_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_bytes(b"")
    for url in (f"file://{tmp_path}/taken", f"file://{tmp_path}/taken/below"):
        with pytest.raises(ObjectStoreMisconfigured, match="directory it may create"):
            await checked(await file.open_from_url(url))
    monkeypatch.setattr(os, "link", fail(errno.EPERM))
    with pytest.raises(ObjectStoreMisconfigured):
        await checked(await file.open_from_url(f"file://{tmp_path}/no-hard-links"))


@pytest.mark.parametrize("url", ["file://relative/dir", "file:relative", "file://", "s3://bucket", "/plain/path"])
def test_a_url_that_is_not_an_absolute_directory_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="file:///directory"):
        FileObjectStore(url)


def test_a_url_loses_its_trailing_slash_and_dots(tmp_path: Path) -> None:
    assert FileObjectStore(f"file://{tmp_path}/a/../b/").url == f"file://{tmp_path}/b"


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_every_mapped_errno_becomes_its_error_in_both_directions(code: int) -> None:
    for writing in (False, True):
        error = translate(OSError(code, os.strerror(code)), "put", "file:///x/a", writing=writing)
        assert type(error) is ERRORS[code][writing]
        assert errno.errorcode[code] in str(error)


def test_an_unmapped_errno_is_a_plain_store_error() -> None:
    error = translate(OSError(errno.EIO, "I/O error"), "get", "file:///x/a", writing=False)
    assert type(error) is ObjectStoreError
    assert not error.retriable
    assert ERRORS[errno.ENOENT][0] is ObjectNotFound
    assert ERRORS[errno.EEXIST][1] is ObjectAlreadyExists


async def test_a_readers_check_makes_nothing_and_needs_no_right_to_write(tmp_path: Path) -> None:
    missing = tmp_path / "objects"
    async with file.FileObjectStore(f"file://{missing}") as store:
        with pytest.raises(ObjectStoreMisconfigured, match="mounted"):
            await store.check(writing=False)
        assert not missing.exists()
        missing.mkdir()
        (missing / "a").write_bytes(b"x")
        await store.check(writing=False)
        assert sorted(entry.name for entry in missing.iterdir()) == ["a"]
        assert await store.get("a") == b"x"
