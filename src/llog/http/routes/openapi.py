"""How routes are described: OpenAPI for routes that decode their bodies themselves, path parameters, `OPTIONS`.

Litestar derives a description from a route's parameters; bodies and answers are added here, from the same structs that
decode and encode them, so the page cannot differ from the code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, get_args

import msgspec
from litestar import Response, route
from litestar.handlers import HTTPRouteHandler
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
from litestar.params import PathParameter
from litestar.types import ControllerRouterHandler

from llog.http.json.schemas import TOPIC_PATTERN
from llog.listener.http1 import JSON, ErrorAnswer
from llog.listener.tokens import Access
from llog.log.keys import PARTITION_MAX, TOPIC_NAME_LENGTH_MAX

# Described here, checked by `check_topic` and `check_partition`, which name what is wrong.
TopicInPath = Annotated[
    str, PathParameter(schema_extra={"pattern": TOPIC_PATTERN, "min_length": 1, "max_length": TOPIC_NAME_LENGTH_MAX})
]
PartitionInPath = Annotated[int, PathParameter(schema_extra={"minimum": 0, "maximum": PARTITION_MAX})]
QUERY: Final = "llog_query"
"""In a route's `opt`: the query parameters it knows. A route without it takes any."""
AUDIT: Final = "llog_audit"
"""In a route's `opt`: the action of its audit lines. A refused request to such a route gets a line too."""
_REF: Final = "#/components/schemas/{name}"
Described = tuple[Any, str]
"""A struct or a union of structs (None: the error body; below 400, anything), and what the answer means."""
_kinds: Final[dict[str, Any]] = {ErrorAnswer.__name__: ErrorAnswer}
_COMMON: Final[dict[int, str]] = {
    400: "The request is malformed; `field` names what is wrong.",
    401: "No token, or an unknown one.",
    403: "The token is for the other kind of access.",
    404: "No such path, topic or partition.",
    503: "The stores do not answer, or the broker's buffers are full; try again after `Retry-After`.",
}
_OF_A_BODY: Final[dict[int, str]] = {
    408: "The body did not arrive in time.",
    413: "The body is larger than its limit, which is named.",
}


def changing(action: str, *query: str) -> dict[str, object]:
    """The `opt` of a route that makes a change with audit lines of this action, and knows these query parameters."""
    return {Access.KEY: Access.WRITE, QUERY: frozenset(query), AUDIT: action}


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
    responses = {str(status): _response(ErrorAnswer, meaning, JSON) for status, meaning in common.items()}
    for status, (kind, meaning) in answers.items():
        answer = ErrorAnswer if kind is None and status >= 400 else kind
        responses[str(status)] = _response(answer, meaning, media_type if status < 400 else JSON)

    @dataclass
    class DescribedOperation(Operation):
        def __post_init__(self) -> None:
            """Litestar fills the fields in from signatures; ours replace them."""
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
        """Litestar keeps only the schemas it found in signatures; ours are added."""
        written = super().to_schema()
        return written | {"schemas": written.get("schemas", {}) | _schemas()}


@cache
def _schemas() -> dict[str, Any]:
    """Of every struct that a route named. Routes are described when their modules are imported."""
    _, schemas = msgspec.json.schema_components(list(_kinds.values()), ref_template=_REF)
    return schemas


def _response(kind: Any, meaning: str, media_type: str) -> OpenAPIResponse:
    if kind is None:
        return OpenAPIResponse(description=meaning, content={media_type: OpenAPIMediaType(schema=Schema())})
    kinds = get_args(kind) or (kind,)
    schemas = [_reference(one) for one in kinds]
    schema = schemas[0] if len(schemas) == 1 else Schema(one_of=schemas)
    return OpenAPIResponse(description=meaning, content={media_type: OpenAPIMediaType(schema=schema)})


def _reference(kind: type[msgspec.Struct]) -> Reference:
    _kinds[kind.__name__] = kind
    return Reference(ref=_REF.format(name=kind.__name__))


# -- OPTIONS -----------------------------------------------------------------------------------------------------------


def options_routes(routes: Sequence[ControllerRouterHandler]) -> list[ControllerRouterHandler]:
    """`OPTIONS` for every path; register them before the others.

    Litestar's own knows only the first method of a path that has several."""
    methods: dict[str, set[str]] = {}
    for handler in routes:
        if isinstance(handler, HTTPRouteHandler):
            for path in handler.paths:
                methods.setdefault(path, {"OPTIONS"}).update(handler.http_methods)
    return [_options_route(path, known) for path, known in methods.items()]


def _options_route(path: str, methods: Iterable[str]) -> ControllerRouterHandler:
    allowed = ", ".join(sorted(methods))

    @route(path, http_method="OPTIONS", status_code=204, include_in_schema=False, opt={Access.KEY: Access.OPEN})
    async def options() -> Response[None]:
        return Response(None, status_code=204, headers={"allow": allowed})

    return options
