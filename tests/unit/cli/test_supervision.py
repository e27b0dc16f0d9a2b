"""Words from a supervisor to its brokers: told line by line, until the pipe ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from llog.cli.services.supervision import STACK_WORDS_BYTES_MAX, read_words


async def test_every_line_is_told_however_it_is_cut_and_the_end_is_told_once() -> None:
    read_end, write_end = os.pipe()
    words: asyncio.Queue[Mapping[str, object]] = asyncio.Queue()
    ended = asyncio.Event()
    read_words(asyncio.get_running_loop(), words.put_nowait, on_end=ended.set, descriptor=read_end)
    os.write(write_end, b'{"spark": "starting"}\n{"spark": "re')
    assert await words.get() == {"spark": "starting"}
    os.write(write_end, b'ady"}\n')
    assert await words.get() == {"spark": "ready"}
    assert not ended.is_set()
    os.close(write_end)
    await ended.wait()
    os.close(read_end)


async def test_what_is_no_word_is_passed_over_and_not_held() -> None:
    read_end, write_end = os.pipe()
    words: asyncio.Queue[Mapping[str, object]] = asyncio.Queue()
    read_words(asyncio.get_running_loop(), words.put_nowait, on_end=lambda: None, descriptor=read_end)
    for _ in range(3):
        os.write(write_end, b"x" * (STACK_WORDS_BYTES_MAX - 1))
        await asyncio.sleep(0)
    os.write(write_end, b'\nhello\n[1]\n{"spark": "ready"}\n')
    assert await words.get() == {"spark": "ready"}
    assert words.empty()
    os.close(write_end)
    await asyncio.sleep(0.01)
    os.close(read_end)
