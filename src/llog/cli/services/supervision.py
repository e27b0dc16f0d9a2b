"""What a supervisor says to the brokers it started, through the pipe that is their standard input: JSON, line by line.

Why it exists: a broker of `llog up --brokers N` shows on its health page how the stack's Spark is, and only the
supervisor knows. The pipe is there anyway: its end is how a broker learns that its supervisor is gone.

What must stay true: words are news, never needed; a line that is none is passed over; no line is held without bound.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from llog.limits import KIB

# One line from `llog up --brokers` to its brokers.
STACK_WORDS_BYTES_MAX: Final = 16 * KIB


OnWords = Callable[[Mapping[str, object]], None]


def say_to(children: Sequence[Process], words: Mapping[str, object]) -> None:
    line = msgspec.json.encode(words) + b"\n"
    if len(line) > STACK_WORDS_BYTES_MAX:
        return
    for child in children:
        pipe = child.stdin
        if child.returncode is None and pipe is not None and not pipe.is_closing():
            pipe.write(line)  # a few hundred bytes a minute at most: the pipe holds them without waiting


def read_words(
    loop: asyncio.AbstractEventLoop,
    on_words: OnWords,
    *,
    on_end: Callable[[], None],
    descriptor: int | None = None,
) -> None:
    """Tell of every line from standard input, and of its end: the supervisor's, however that came."""
    source = sys.stdin.fileno() if descriptor is None else descriptor
    held = bytearray()

    def readable() -> None:
        data = os.read(source, STACK_WORDS_BYTES_MAX)
        if not data:
            loop.remove_reader(source)
            on_end()
            return
        held.extend(data)
        *lines, rest = bytes(held).split(b"\n")
        held[:] = rest if len(rest) <= STACK_WORDS_BYTES_MAX else b""
        for line in lines:
            words = _words(line)
            if words is not None:
                on_words(words)

    loop.add_reader(source, readable)


def _words(line: bytes) -> Mapping[str, object] | None:
    try:
        return msgspec.json.decode(line, type=dict[str, object])
    except msgspec.DecodeError:
        return None
