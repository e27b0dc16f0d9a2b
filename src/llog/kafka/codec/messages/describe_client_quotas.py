# Written by `make kafka-schemas` from messages.txt; do not edit.
"""DescribeClientQuotas, API key 48, versions 0-1, flexible from 1."""

from __future__ import annotations

from msgspec import Struct


class ComponentData(Struct, frozen=True, gc=False):
    entity_type: str = ""
    match_type: int = 0
    match: str | None = ""


class DescribeClientQuotasRequest(Struct, frozen=True, gc=False):
    components: list[ComponentData] = []
    strict: bool = False


class EntityData(Struct, frozen=True, gc=False):
    entity_type: str = ""
    entity_name: str | None = ""


class ValueData(Struct, frozen=True, gc=False):
    key: str = ""
    value: float = 0.0


class EntryData(Struct, frozen=True, gc=False):
    entity: list[EntityData] = []
    values: list[ValueData] = []


class DescribeClientQuotasResponse(Struct, frozen=True, gc=False):
    throttle_time_ms: int = 0
    error_code: int = 0
    error_message: str | None = ""
    entries: list[EntryData] | None = []
