"""Walk a directory tree in the byte order of full names, a directory at a time. Blocking: callers bring a thread.

Why it exists: object listings are ordered by the whole name, which is not the order of a naive walk: `a-b` comes
before `a/b`, because `-` sorts below `/`. Taking a directory for its name followed by a slash restores the order, and
subtrees that cannot hold a wanted name are not read. Only the names of the directories on the current path are held.

What must stay true: a file or directory that vanishes during the walk is skipped, not an error; files that no put
could have written (unprintable names, links, temporary files) are not objects.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from llog.errors import InvalidArgument
from llog.stores.objects.file_tree import TEMPORARY_DIRECTORY
from llog.stores.objects.port import ObjectMeta, check_name

__all__ = ["walk"]


def walk(root: str, prefix: str, start_after: str) -> Iterator[ObjectMeta]:
    """Files below `root` whose name begins with `prefix` and sorts after `start_after`, in order."""
    directory, slash, _ = prefix.rpartition("/")
    if slash and not _is_name(directory):
        return
    yield from _walk(root, directory + slash, prefix, start_after)


def _walk(root: str, directory: str, prefix: str, start_after: str) -> Iterator[ObjectMeta]:
    for name in _sorted_names(root, directory, prefix, start_after):
        if name.endswith("/"):
            yield from _walk(root, name, prefix, start_after)
            continue
        try:
            status = os.stat(os.path.join(root, name), follow_symlinks=False)
        except FileNotFoundError:
            continue
        yield ObjectMeta(name, status.st_size, status.st_mtime_ns // 1_000_000)


def _sorted_names(root: str, directory: str, prefix: str, start_after: str) -> list[str]:
    """Full names in one directory that may hold or be a wanted object; a directory's name ends with a slash."""
    names = []
    try:
        with os.scandir(os.path.join(root, directory)) as entries:
            for entry in entries:
                name = directory + entry.name
                if entry.is_dir(follow_symlinks=False):
                    below = name + "/"
                    wanted = below.startswith(prefix) or prefix.startswith(below)
                    if wanted and (below > start_after or start_after.startswith(below)) and _is_name(name):
                        names.append(below)
                    continue
                wanted = name.startswith(prefix) and name > start_after
                if wanted and entry.is_file(follow_symlinks=False) and _is_name(name):
                    names.append(name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    # Code point order is the byte order of UTF-8.
    names.sort()
    return names


def _is_name(name: str) -> bool:
    try:
        check_name(name)
    except InvalidArgument:
        return False
    return name.partition("/")[0] != TEMPORARY_DIRECTORY
