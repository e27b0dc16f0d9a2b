"""Where a listing of keys begins and ends, for a client that knows only whole path segments.

Why it exists: the port lists by any prefix of a name and after any name. obstore takes a prefix of whole segments and
an offset that must be a proper path, so both are rounded to something it takes that lies no later in byte order; the
adapter drops the few keys too many. Pure functions.
"""

from __future__ import annotations

from typing import Final

from llog.errors import InvalidArgument
from llog.stores.objects.port import check_name

__all__ = ["is_name", "is_possible_prefix", "list_offset", "list_prefix", "page_end"]

# Sorts after everything that follows a key's prefix: U+10FFFF is the last code point.
_LAST: Final = "\U0010ffff"


def is_name(key: str) -> bool:
    """Whether a key found in the bucket can be an object of ours: others may keep theirs beside it."""
    try:
        check_name(key)
    except InvalidArgument:
        return False
    return True


def is_possible_prefix(prefix: str) -> bool:
    """Whether any name at all can begin like this."""
    directory, slash, _ = prefix.rpartition("/")
    return prefix.isprintable() and (not slash or is_name(directory))


def list_prefix(key_prefix: str) -> str | None:
    """The whole segments of a prefix."""
    return _proper_path(key_prefix.rpartition("/")[0]) or None


def list_offset(key_prefix: str, start_after: str) -> str | None:
    """A key that sorts before every wanted one, and not much before."""
    return _proper_path(max(_just_before(key_prefix), start_after)) or None


def page_end(key_prefix: str) -> str:
    """No wanted key sorts after this one."""
    return key_prefix + _LAST


def _just_before(key_prefix: str) -> str:
    if not key_prefix or key_prefix.endswith("/"):
        return ""  # whole segments: the prefix itself does the work
    # The largest printable ASCII character takes the place of all that could follow.
    return key_prefix[:-1] + chr(ord(key_prefix[-1]) - 1) + "~"


def _proper_path(text: str) -> str:
    """The longest beginning of whole segments that is a path; a beginning never sorts after the whole."""
    kept: list[str] = []
    for segment in text.split("/"):
        if segment in ("", ".", "..") or not segment.isprintable():
            break
        kept.append(segment)
    return "/".join(kept)
