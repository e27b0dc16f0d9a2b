"""The OpenAPI description of routes that decode their bodies themselves.

Litestar derives a description from a route's parameters; bodies and answers are added here, from the same structs that
decode and encode them, so the page cannot say anything else than the code does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, get_args

import msgspec
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import (
    Components,
    OpenAPIMediaType,
    OpenAPIResponse,
    Operation,
    Reference,
    RequestBody,
    Schema,
    SecurityScheme,
)

from llog.http.json.replies import JSON
from llog.http.json.schemas import ErrorAnswer

_REF: Final = "#/components/schemas/{name}"
Described = tuple[Any, str]
"""A struct, or one of several (None: the common error; below 400, anything), and what it means."""
_kinds: Final[dict[str, Any]] = {ErrorAnswer.__name__: ErrorAnswer}
_COMMON: Final[dict[int, str]] = {
    400: "The request is malformed; `field` names what is wrong.",
    401: "No token, or an unknown one.",
    403: "The token is for the other kind of access.",
    404: "No such path, topic or partition.",
    503: "The stores cannot answer now, or there is no room; try again after `Retry-After`.",
}
_OF_A_BODY: Final[dict[int, str]] = {
    408: "The body did not arrive in time.",
    413: "The body is larger than its limit, which is named.",
}


def operation(
    body: type[msgspec.Struct] | None,
    answers: Mapping[int, Described],
    *,
    body_required: bool = True,
    media_type: str = JSON,
) -> type[Operation]:
    """What a route reads and answers."""
    request_body = None
    if body is not None:
        content = {JSON: OpenAPIMediaType(schema=_reference(body))}
        request_body = RequestBody(content=content, required=body_required)
    common = dict(_COMMON) if body is None else _COMMON | _OF_A_BODY
    responses = {str(status): _response(ErrorAnswer, words, JSON) for status, words in common.items()}
    for status, (kind, words) in answers.items():
        told = ErrorAnswer if kind is None and status >= 400 else kind
        responses[str(status)] = _response(told, words, media_type if status < 400 else JSON)

    @dataclass
    class DescribedOperation(Operation):
        def __post_init__(self) -> None:
            self.request_body = request_body
            self.responses = dict(sorted(responses.items()))

    return DescribedOperation


def openapi_config(title: str, version: str) -> OpenAPIConfig:
    return OpenAPIConfig(
        title=title,
        version=version,
        path="/schema",
        use_handler_docstrings=True,
        components=_OurComponents(
            security_schemes={"bearer": SecurityScheme(type="http", scheme="bearer")},
        ),
        security=[{}, {"bearer": []}],
    )


class _OurComponents(Components):
    def to_schema(self) -> dict[str, Any]:
        """Litestar fills in what it found in signatures, and forgets all else; ours come behind that."""
        written = super().to_schema()
        return written | {"schemas": written.get("schemas", {}) | _schemas()}


@cache
def _schemas() -> dict[str, Any]:
    """Of every struct that a route named; routes are described when their modules are imported."""
    _, schemas = msgspec.json.schema_components(list(_kinds.values()), ref_template=_REF)
    return schemas


def _response(kind: Any, words: str, media_type: str) -> OpenAPIResponse:
    if kind is None:
        return OpenAPIResponse(description=words, content={media_type: OpenAPIMediaType(schema=Schema())})
    kinds = get_args(kind) or (kind,)
    schemas = [_reference(one) for one in kinds]
    schema = schemas[0] if len(schemas) == 1 else Schema(one_of=schemas)
    return OpenAPIResponse(description=words, content={media_type: OpenAPIMediaType(schema=schema)})


def _reference(kind: type[msgspec.Struct]) -> Reference:
    _kinds[kind.__name__] = kind
    return Reference(ref=_REF.format(name=kind.__name__))
