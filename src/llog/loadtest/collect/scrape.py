"""`GET /metrics` of brokers and compactors, all at once and bounded in time and bytes.

Its own few lines of HTTP, because the package has no HTTP client among its dependencies and a scrape must end at a
deadline: a paused broker accepts connections and never answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import httptools
import msgspec

from llog.limits import MIB
from llog.loadtest.artifacts import PageSample

SCRAPE_S_MAX: Final = 5.0
PAGE_BYTES_MAX: Final = 32 * MIB
_CHUNK_BYTES: Final = 256 * 1024
_DECODER: Final = msgspec.json.Decoder(dict[str, Any])


async def scrape_all(urls: Mapping[str, str]) -> tuple[PageSample, ...]:
    """The pages of processes by name, in order."""
    return tuple(await asyncio.gather(*(scrape(name, url) for name, url in urls.items())))


async def scrape(name: str, url: str, timeout_s: float = SCRAPE_S_MAX) -> PageSample:
    """A page that cannot be had is a sample with the reason."""
    try:
        async with asyncio.timeout(timeout_s):
            return PageSample(name, True, "", _DECODER.decode(await _get(url, "/metrics")))
    except TimeoutError:
        return PageSample(name, False, f"no answer within {timeout_s:g} s")
    except (OSError, ValueError, httptools.HttpParserError, msgspec.DecodeError) as error:
        return PageSample(name, False, f"{type(error).__name__}: {error}")


async def _get(url: str, path: str) -> bytes:
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port or 80)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n\r\n".encode())
        answer = _Answer()
        while not answer.complete and (chunk := await reader.read(_CHUNK_BYTES)):
            answer.feed(chunk)
    finally:
        writer.close()
    if not answer.complete:
        raise ValueError("the answer broke off")
    if answer.status != 200:
        raise ValueError(f"status {answer.status}")
    return bytes(answer.body)


class _Answer:
    """Callbacks of httptools."""

    def __init__(self) -> None:
        self.body, self.complete = bytearray(), False
        self._parser = httptools.HttpResponseParser(self)

    @property
    def status(self) -> int:
        return int(self._parser.get_status_code())

    def feed(self, chunk: bytes) -> None:
        self._parser.feed_data(chunk)
        if len(self.body) > PAGE_BYTES_MAX:
            raise ValueError(f"the page exceeds {PAGE_BYTES_MAX} bytes")

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True
