"""A schema registry on loopback that answers as Confluent's does: its paths, its error codes, its kinds of login."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import unquote

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"


class FakeRegistry:
    """`login`: what the header Authorization must be, if any."""

    def __init__(self, login: str = "") -> None:
        self.login, self.requests = login, list[str]()
        self.ids: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.failures: list[tuple[int, dict[str, str], bytes]] = []
        """Answered first, one request each: status, headers, body."""
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                registry.requests.append(self.path)
                status, headers, body = registry.answer(self.path, dict(self.headers))
                self.send_response(status)
                for name, value in {"Content-Type": MEDIA_TYPE, **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                try:
                    self.wfile.write(body)
                except ConnectionError:
                    pass  # the client refused a body that is too long

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @staticmethod
    def basic(user: str, password: str) -> str:
        return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def add(
        self,
        schema_id: int,
        schema: Any,
        subject: str = "orders-value",
        *,
        kind: str = "AVRO",
        references: list[dict[str, Any]] | None = None,
    ) -> None:
        """The next version of a subject."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        # As the real one does, leave out the type of an Avro schema and an empty list.
        extra: dict[str, Any] = {} if kind == "AVRO" else {"schemaType": kind}
        self.ids[schema_id] = {"schema": text, **extra, **({"references": references} if references else {})}
        self.subjects.setdefault(subject, []).append(schema_id)

    def answer(self, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        if self.login and headers.get("Authorization") != self.login:
            return _problem(401, 401, "Unauthorized")
        if self.failures:
            return self.failures.pop(0)
        match path.strip("/").split("/"):
            case ["schemas", "ids", number] if number.isdigit() and int(number) < 2**31:
                if int(number) not in self.ids:
                    return _problem(404, 40403, f"Schema {number} not found")
                return _ok(self.ids[int(number)])
            case ["subjects", subject, "versions", version]:
                ids = self.subjects.get(unquote(subject))
                if ids is None:
                    return _problem(404, 40401, f"Subject '{unquote(subject)}' not found.")
                which = len(ids) if version == "latest" else int(version)
                if not 1 <= which <= len(ids):
                    return _problem(404, 40402, f"Version {version} not found.")
                chosen = ids[which - 1]
                return _ok({"subject": unquote(subject), "version": which, "id": chosen, **self.ids[chosen]})
        return _problem(404, 404, "HTTP 404 Not Found")

    def __enter__(self) -> FakeRegistry:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _ok(body: Any) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, json.dumps(body).encode()


def _problem(status: int, code: int, message: str) -> tuple[int, dict[str, str], bytes]:
    return status, {}, json.dumps({"error_code": code, "message": message}).encode()
