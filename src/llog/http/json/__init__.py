"""JSON bodies of the HTTP API."""

from __future__ import annotations

__all__ = ["warm_up"]


def warm_up() -> None:
    """Load, or compile, every kernel of a broker: those of the formats and those of this package."""
    from llog.formats.warm_up import warm_up as warm_up_formats
    from llog.http.json import body_check, consume_answer, plain_scan

    warm_up_formats()
    body_check.warm_up()
    plain_scan.warm_up()
    consume_answer.warm_up()
