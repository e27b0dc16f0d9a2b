"""A client of a schema registry with Confluent's interface: schemas by id, and the newest of a subject.

    GET /schemas/ids/7                          the schema with that id
    GET /subjects/orders-value/versions/latest  the newest schema of a subject
    GET /subjects/place/versions/1              a schema that another one refers to

The standard library's client suffices: a job asks once per schema. Redirects are not followed, because it would repeat
the credentials to any host. Certificates are checked against those of the system.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import random
import time
import urllib.error
import urllib.request
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import msgspec

from llog.concurrency import Backoff, Rounds
from llog.errors import ExportFailed
from llog.limits import EXPORT_SCHEMA_BYTES_MAX, MIB
from llog.settings import Settings
from llog.settings.urls import mask_url

# A schema is a JSON text within JSON, where every character may be escaped.
REGISTRY_RESPONSE_BYTES_MAX: Final = 4 * MIB
REGISTRY_TRIES_MAX: Final = 4
REGISTRY_BACKOFF: Final = Backoff(first_ms=200, max_ms=2_000)
# Schemas that one schema refers to, directly or not.
REGISTRY_REFERENCES_MAX: Final = 100

_ID_MAX: Final = 2**31 - 1
_SCHEMA_NOT_FOUND: Final = 40403
_SUBJECT_NOT_FOUND: Final = (40401, 40402)
_READ_BYTES: Final = 64 * 1_024
_ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"
_CREDENTIALS: Final = (
    "set LLOG_SCHEMA_REGISTRY_USER and LLOG_SCHEMA_REGISTRY_PASSWORD, or LLOG_SCHEMA_REGISTRY_TOKEN, to credentials"
    " that may read schemas"
)


class UnknownSchema(Exception):
    """There is no Avro schema with this id; the message is the reason, for the values that name it."""


class _Reference(msgspec.Struct, frozen=True):
    name: str
    subject: str
    version: int


class _Answer(msgspec.Struct, frozen=True):
    schema: str
    id: int | None = None
    schemaType: str | None = None
    references: tuple[_Reference, ...] | None = None


class _Problem(msgspec.Struct, frozen=True):
    error_code: int
    message: str = ""


class _NotFound(Exception):
    """Answered by the registry itself."""

    def __init__(self, problem: _Problem) -> None:
        self.problem = problem
        super().__init__(problem.message)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class SchemaRegistry:
    """For one task at a time or several; has no state but its settings."""

    def __init__(self, settings: Settings, *, subject: str = "") -> None:
        assert settings.schema_registry_url is not None
        parts = urlsplit(settings.schema_registry_url)
        host = parts.netloc.rpartition("@")[2]
        self._url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._subject, self._timeout_s = subject, settings.request_timeout_ms / 1_000
        self._headers = {"Accept": _ACCEPT, "User-Agent": "llog"} | _authorization(settings)
        self._opener = urllib.request.build_opener(_NoRedirects)
        self.title = f"schema registry {mask_url(self._url)}"

    async def fetch(self, schema_id: int) -> tuple[str, ...]:
        if schema_id > _ID_MAX:  # the registry would not even recognise the path
            raise UnknownSchema(f"is beyond {_ID_MAX}, where ids end")
        try:
            answer = await self._get(f"/schemas/ids/{schema_id}")
        except _NotFound as error:
            if error.problem.error_code != _SCHEMA_NOT_FOUND:
                raise self._odd(error.problem) from None
            raise UnknownSchema("is not in the schema registry") from None
        return await self._texts(answer)

    async def newest(self, topic: str) -> tuple[int | None, tuple[str, ...]]:
        subject = self._subject or f"{topic}-value"
        try:
            answer = await self._get(f"/subjects/{quote(subject, safe='')}/versions/latest")
            return answer.id, await self._texts(answer)
        except _NotFound as error:
            if error.problem.error_code not in _SUBJECT_NOT_FOUND:
                raise self._odd(error.problem) from None
            reason = f"has no subject {subject}; name another with --subject, or the columns' schema with --schema"
            raise ExportFailed(self.title, reason) from None
        except UnknownSchema as error:
            raise ExportFailed(self.title, f"the newest schema of subject {subject} {error}") from None

    async def _texts(self, answer: _Answer) -> tuple[str, ...]:
        """The texts that the schema needs, in the order of their use, and its own."""
        if answer.schemaType not in (None, "", "AVRO"):
            raise UnknownSchema(f"is a {answer.schemaType} schema, not an Avro one")
        texts: dict[tuple[str, int], str] = {}
        await self._refer(answer, texts, frozenset())
        for text in (*texts.values(), answer.schema):
            if len(text) > EXPORT_SCHEMA_BYTES_MAX:
                raise UnknownSchema(f"has {len(text):,} bytes, more than {EXPORT_SCHEMA_BYTES_MAX:,}")
        return (*texts.values(), answer.schema)

    async def _refer(
        self, answer: _Answer, texts: dict[tuple[str, int], str], within: frozenset[tuple[str, int]]
    ) -> None:
        for one in answer.references or ():
            key = (one.subject, one.version)
            if key in texts:
                continue
            if key in within or len(within) + len(texts) >= REGISTRY_REFERENCES_MAX:
                raise UnknownSchema(f"refers to itself, or to more than {REGISTRY_REFERENCES_MAX} schemas")
            try:
                referred = await self._get(f"/subjects/{quote(one.subject, safe='')}/versions/{one.version}")
            except _NotFound as error:
                if error.problem.error_code not in _SUBJECT_NOT_FOUND:
                    raise self._odd(error.problem) from None
                reason = f"refers to version {one.version} of subject {one.subject}, which the registry does not have"
                raise UnknownSchema(reason) from None
            await self._refer(referred, texts, within | {key})
            texts[key] = referred.schema

    # -- requests -----------------------------------------------------------------------------------------------------
    async def _get(self, path: str) -> _Answer:
        """Tries again while the registry is away or overloaded. Raises `_NotFound`, `ExportFailed`."""
        failed: ExportFailed | None = None

        async def pause(round_number: int) -> None:
            await asyncio.sleep(REGISTRY_BACKOFF.seconds(round_number, random.getrandbits))

        async for _ in Rounds(REGISTRY_TRIES_MAX, pause):
            try:
                return await asyncio.to_thread(self._get_once, path)
            except ExportFailed as error:
                if not error.retriable:
                    raise
                failed = error
        assert failed is not None
        raise failed

    def _get_once(self, path: str) -> _Answer:
        request = urllib.request.Request(self._url + path, headers=self._headers)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                body = self._body(response, path)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error, path) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            text = (
                f"does not answer ({reason or type(error).__name__}); check LLOG_SCHEMA_REGISTRY_URL and the registry"
            )
            raise ExportFailed(self.title, text, retriable=True) from None
        try:
            return msgspec.json.decode(body, type=_Answer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            reason = f"its answer to GET {path} is not a schema ({error}); check LLOG_SCHEMA_REGISTRY_URL"
            raise ExportFailed(self.title, reason) from None

    def _body(self, response: Any, path: str) -> bytes:
        deadline, body = time.monotonic() + self._timeout_s, bytearray()
        while chunk := response.read1(_READ_BYTES):
            body += chunk
            if len(body) > REGISTRY_RESPONSE_BYTES_MAX:
                reason = f"its answer to GET {path} has more than {REGISTRY_RESPONSE_BYTES_MAX:,} bytes"
                raise ExportFailed(self.title, reason)
            if time.monotonic() > deadline:
                raise TimeoutError("timed out")
        return bytes(body)

    def _refusal(self, error: urllib.error.HTTPError, path: str) -> Exception:
        status, request = error.code, f"GET {path}"
        if status in (401, 403):
            return ExportFailed(self.title, f"refuses {request} with status {status}; {_CREDENTIALS}")
        if status == 429 or status >= 500:
            reason = f"answers {request} with status {status}; check the registry, then export again"
            return ExportFailed(self.title, reason, retriable=True)
        if 300 <= status < 400:
            where = mask_url(error.headers.get("Location") or "nowhere")
            return ExportFailed(self.title, f"redirects to {where}; set LLOG_SCHEMA_REGISTRY_URL to that server")
        if status == 404:
            try:
                return _NotFound(msgspec.json.decode(self._body(error, path), type=_Problem))
            except (msgspec.DecodeError, UnicodeDecodeError, OSError):
                pass
        return ExportFailed(
            self.title,
            f"answers {request} with status {status}, unlike a schema registry; check LLOG_SCHEMA_REGISTRY_URL",
        )

    def _odd(self, problem: _Problem) -> ExportFailed:
        reason = f"answers with error {problem.error_code} ({problem.message[:200]}); check LLOG_SCHEMA_REGISTRY_URL"
        return ExportFailed(self.title, reason)


def _authorization(settings: Settings) -> dict[str, str]:
    """A token, else user and password, else those in the URL."""
    if settings.schema_registry_token is not None:
        return {"Authorization": f"Bearer {settings.schema_registry_token}"}
    user, password = settings.schema_registry_user, settings.schema_registry_password
    if user is None:
        given = urlsplit(settings.schema_registry_url or "").netloc.rpartition("@")[0]
        if not given:
            return {}
        user, _, password = (unquote(part) for part in given.partition(":"))
    pair = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
    return {"Authorization": f"Basic {pair}"}
