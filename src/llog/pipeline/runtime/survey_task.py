"""The task of a survey: list one part of a store and tell of the objects that are old enough to matter.

A part is a range of names, so that parts tile a store whatever lies in it; an answer is bounded, and says where to go
on. What must stay true: names come in order, and what is not an object of ours is neither told nor counted as one.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from llog.limits import SURVEY_PAGE_OBJECTS_MAX
from llog.log.ids import created_at_ms_of
from llog.log.keys import Keys
from llog.pipeline.runtime.tasks import Task, TaskTools

ObjectKind = Literal["blob", "segment_object"]


class SurveyPart(msgspec.Struct, frozen=True, kw_only=True):
    """Names that begin with `prefix` and lie behind `after`, up to `last` (included; "": no end)."""

    store_url: str
    root: str
    prefix: str
    kind: ObjectKind
    before_ms: int
    """Only objects whose id and whose time in the store are both older."""
    after: str = ""
    last: str = ""
    objects_max: int = SURVEY_PAGE_OBJECTS_MAX


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """An object of the kind asked for."""

    name: str
    byte_length: int
    last_modified_ms: int


class SurveyPage(msgspec.Struct, frozen=True, kw_only=True):
    old: tuple[Seen, ...] = ()
    objects: int = 0
    """Of the kind, of any age, that were met."""
    byte_length: int = 0
    go_on_after: str = ""
    """The rest of the part begins behind this name; "": this was the end of it."""


LIST_OBJECTS: Final = Task("llog.pipeline.runtime.survey_task:list_objects", SurveyPart, SurveyPage)


async def list_objects(tools: TaskTools, part: SurveyPart) -> SurveyPage:
    keys, old = Keys(part.root), list[Seen]()
    objects = byte_length = 0
    # Found by a URI, not opened by its URL: whoever only looks needs no right to write.
    store, place = await tools.find_object(f"{part.store_url}/{part.prefix}")
    above = place.removesuffix(part.prefix)
    async for meta in store.list(place, start_after=above + part.after if part.after else ""):
        name = meta.name[len(above) :]
        if part.last and name > part.last:
            break
        parsed = keys.parse_object(name)
        if parsed is None or parsed.kind != part.kind:
            continue
        objects, byte_length = objects + 1, byte_length + meta.byte_length
        if created_at_ms_of(parsed.object_id) >= part.before_ms or meta.last_modified_ms >= part.before_ms:
            continue
        old.append(Seen(name, meta.byte_length, meta.last_modified_ms))
        if len(old) == part.objects_max:
            return SurveyPage(old=tuple(old), objects=objects, byte_length=byte_length, go_on_after=name)
    return SurveyPage(old=tuple(old), objects=objects, byte_length=byte_length)
