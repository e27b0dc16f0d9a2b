"""What S3 servers and broken networks say, through the installed obstore, in our words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from llog.errors import (
    InvalidArgument,
    ObjectAlreadyExists,
    ObjectNotFound,
    ObjectRangeInvalid,
    ObjectStoreClockSkew,
    ObjectStoreDenied,
    ObjectStoreError,
    ObjectStoreFull,
    ObjectStoreMisconfigured,
    ObjectStoreThrottled,
    ObjectStoreTimeout,
    ObjectStoreUnavailable,
    ObjectStoreUncertain,
    UncertainOutcome,
)
from llog.stores.objects.s3 import S3ObjectStore
from llog.stores.objects.s3_errors import BY_CODE, BY_STATUS, BY_TRANSPORT, Outcome, translate
from tests.patience import PATIENCE_SECONDS

Errors = tuple[type[ObjectStoreError], type[ObjectStoreError]]


@dataclass
class Settings:
    s3_endpoint_url: str | None = "http://127.0.0.1:1"
    s3_region_name: str | None = None
    s3_access_key_id: str | None = "key"
    s3_secret_access_key: str | None = "secret"
    s3_session_token: str | None = None
    request_timeout_ms: int | None = int(PATIENCE_SECONDS * 1_000)


@asynccontextmanager
async def server_that_says(reply: bytes | None, *, drop: bool = False, **settings: Any) -> AsyncIterator[S3ObjectStore]:
    """A store whose server gives one canned answer: bytes, nothing (None), or a dropped connection."""
    finished = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if drop:
            writer.transport.abort()
            return
        if reply is None:
            await finished.wait()
        else:
            writer.write(reply)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with S3ObjectStore("s3://bucket", Settings(f"http://127.0.0.1:{port}", **settings)) as store:
            yield store
    finally:
        finished.set()
        server.close()
        await server.wait_closed()


def http(status: int, code: str | None) -> bytes:
    body = f"<Error><Code>{code}</Code><Message>said the server</Message></Error>" if code else ""
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"{head}\r\n\r\n{body}".encode()


async def names(store: S3ObjectStore) -> list[str]:
    return [meta.name async for meta in store.list("x")]


READS: list[Callable[[S3ObjectStore], Awaitable[object]]] = [
    lambda store: store.get("x"),
    lambda store: store.get_range("x", 0, 5),
    lambda store: store.get_tail("x", 5),
    names,
]
WRITES: list[Callable[[S3ObjectStore], Awaitable[object]]] = [
    lambda store: store.put("x", [b"1"]),
    lambda store: store.put("x", [b"1"], if_absent=True),
    lambda store: store.delete("x"),
]


async def check_all(store: S3ObjectStore, expected: Errors) -> None:
    for calls, error in zip((READS, WRITES), expected, strict=True):
        for call in calls:
            with pytest.raises(ObjectStoreError) as raised:
                await call(store)
            assert type(raised.value) is error, raised.value


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (503, "SlowDown", (ObjectStoreThrottled, ObjectStoreThrottled)),
        (503, None, (ObjectStoreThrottled, ObjectStoreUncertain)),
        (429, None, (ObjectStoreThrottled, ObjectStoreThrottled)),
        (500, "InternalError", (ObjectStoreUnavailable, ObjectStoreUncertain)),
        (502, None, (ObjectStoreUnavailable, ObjectStoreUncertain)),
        (504, None, (ObjectStoreTimeout, ObjectStoreUncertain)),
        (400, "RequestTimeout", (ObjectStoreTimeout, ObjectStoreUncertain)),
        (400, "ExpiredToken", (ObjectStoreDenied, ObjectStoreDenied)),
        (400, "AuthorizationHeaderMalformed", (ObjectStoreMisconfigured, ObjectStoreMisconfigured)),
        (403, "AccessDenied", (ObjectStoreDenied, ObjectStoreDenied)),
        (403, "RequestTimeTooSkewed", (ObjectStoreClockSkew, ObjectStoreClockSkew)),
        (403, "SomethingNew", (ObjectStoreDenied, ObjectStoreDenied)),
        (404, "NoSuchBucket", (ObjectStoreMisconfigured, ObjectStoreMisconfigured)),
        (404, "XAdminUserNotFound", (ObjectStoreDenied, ObjectStoreDenied)),
        (409, "ConditionalRequestConflict", (ObjectStoreUnavailable, ObjectStoreUnavailable)),
        (409, "ObjectParentIsFile", (ObjectStoreError, ObjectStoreError)),
        (412, "PreconditionFailed", (ObjectStoreError, ObjectAlreadyExists)),
        (507, "XMinioStorageFull", (ObjectStoreFull, ObjectStoreFull)),
    ],
)
async def test_the_code_of_a_refusal_decides_then_its_status(status: int, code: str | None, expected: Errors) -> None:
    async with server_that_says(http(status, code)) as store:
        await check_all(store, expected)


async def test_a_missing_object_is_distinguished_from_a_missing_bucket() -> None:
    async with server_that_says(http(404, "NoSuchKey")) as store:
        with pytest.raises(ObjectNotFound):
            await store.get("x")
    async with server_that_says(http(404, None)) as store:
        with pytest.raises(ObjectNotFound):
            await store.head("x")
        with pytest.raises(ObjectStoreMisconfigured):
            await store.put("x", [b"1"])


async def test_a_range_the_server_refuses_is_an_invalid_range() -> None:
    async with server_that_says(http(416, "InvalidRange")) as store:
        with pytest.raises(ObjectRangeInvalid):
            await store.get_range("x", 100, 5)


async def test_a_dropped_connection_leaves_a_write_uncertain() -> None:
    async with server_that_says(None, drop=True) as store:
        await check_all(store, (ObjectStoreUnavailable, ObjectStoreUncertain))


async def test_a_refused_connection_means_nothing_happened() -> None:
    async with S3ObjectStore("s3://bucket", Settings()) as store:
        await check_all(store, (ObjectStoreUnavailable, ObjectStoreUnavailable))


async def test_silence_ends_with_the_request_timeout_and_leaves_a_write_uncertain() -> None:
    async with server_that_says(None, request_timeout_ms=300) as store, asyncio.timeout(PATIENCE_SECONDS):
        await check_all(store, (ObjectStoreTimeout, ObjectStoreUncertain))


async def test_an_answer_cut_short_is_an_error_not_a_short_object() -> None:
    head = (
        b'HTTP/1.1 200 OK\r\nETag: "e"\r\nLast-Modified: Tue, 15 Nov 1994 12:45:26 GMT\r\nContent-Length: 100\r\n\r\n'
    )
    async with server_that_says(head + b"short") as store:
        with pytest.raises(ObjectStoreUnavailable):
            await store.get("x")


async def test_a_redirect_says_that_region_or_endpoint_are_wrong() -> None:
    async with server_that_says(http(301, "PermanentRedirect")) as store:
        with pytest.raises(ObjectStoreMisconfigured, match="check that the bucket exists, its region"):
            await store.check()


async def test_a_server_that_ignores_conditions_is_found_at_the_start() -> None:
    listing = b"<ListBucketResult><IsTruncated>false</IsTruncated><KeyCount>0</KeyCount></ListBucketResult>"
    head = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Type: application/xml\r\nConnection: close\r\nContent-Length: '
    async with server_that_says(head + b"%d\r\n\r\n" % len(listing) + listing) as store:
        with pytest.raises(ObjectStoreError) as raised:
            await store.check()
    # The canned answer also breaks the clean-up, which must not hide what was found.
    assert "conditional writes" in str(raised.value) or "conditional writes" in str(raised.value.__context__)


def test_a_write_is_called_undone_only_when_the_server_or_the_connection_said_so() -> None:
    undone = {ObjectStoreThrottled, ObjectStoreUnavailable}
    assert {c for c, o in BY_TRANSPORT.items() if o.writing in undone} == {"Connect"}
    assert {s for s, o in BY_STATUS.items() if o.writing in undone} == {429}


@pytest.mark.parametrize("table", [BY_CODE, BY_STATUS, BY_TRANSPORT], ids=["code", "status", "transport"])
def test_every_row_is_an_error_of_ours_and_uncertain_only_for_writes(table: dict[object, Outcome]) -> None:
    for row, outcome in table.items():
        assert issubclass(outcome.reading, ObjectStoreError), row
        assert issubclass(outcome.writing, ObjectStoreError), row
        assert not issubclass(outcome.reading, UncertainOutcome), row
        assert outcome.writing is not ObjectStoreTimeout, f"{row}: a write without an answer is uncertain"


def test_an_unknown_message_leaves_a_write_uncertain() -> None:
    assert type(translate(RuntimeError("new words"), "put", "x", writing=True)) is ObjectStoreUncertain
    assert type(translate(RuntimeError("new words"), "get", "x", writing=False)) is ObjectStoreError


@pytest.mark.parametrize("url", ["s3://", "s3:///key", "http://bucket", "s3:bucket", "s3://bucket/a//b"])
def test_a_url_without_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument):
        S3ObjectStore(url, Settings())


def test_half_a_credential_is_refused() -> None:
    with pytest.raises(ObjectStoreMisconfigured, match="give both or neither"):
        S3ObjectStore("s3://bucket", Settings(s3_secret_access_key=None))


@pytest.mark.parametrize("endpoint", ["no-url-at-all", "127.0.0.1:9000", "ftp://host", "http://", ""])
def test_an_endpoint_that_is_no_http_address_is_refused(endpoint: str) -> None:
    with pytest.raises(ObjectStoreMisconfigured, match="is not of the form http://host:port"):
        S3ObjectStore("s3://bucket", Settings(endpoint))


def test_a_trailing_slash_makes_no_other_store() -> None:
    assert S3ObjectStore("s3://bucket/", Settings()).url == "s3://bucket"
    assert S3ObjectStore("s3://bucket/a/b/", Settings()).uri("c") == "s3://bucket/a/b/c"
