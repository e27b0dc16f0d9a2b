"""A survey of the object stores: tasks list ranges of names in parallel.

Blobs are divided by time, with which their names begin; segments are divided between logs. The ranges leave no gap, so
a survey meets every object. Pages arrive as they are ready, not in order.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from llog.errors import ObjectStoreUnavailable
from llog.limits import OBJECT_LIST_PAGE_MAX, SURVEY_PAGE_OBJECTS_MAX
from llog.log.context import LogContext
from llog.log.ids import created_at_ms_of
from llog.log.keys import Keys, Log
from llog.pipeline.runtime.tasks import Task, TaskFailed, TaskRunner, TaskTools
from llog.stores.objects.port import ObjectStore

ObjectKind = Literal["blob", "segment_object"]


class SurveyPart(msgspec.Struct, frozen=True, kw_only=True):
    """Names that begin with `prefix` and lie behind `after`, up to `last` (included; "": no end)."""

    store_url: str
    root: str
    prefix: str
    kind: ObjectKind
    before_ms: int
    """Only objects with an id and a store time that are both older."""
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


LIST_OBJECTS: Final = Task("llog.pipeline.runtime.survey:list_objects", SurveyPart, SurveyPage)


async def list_objects(tools: TaskTools, part: SurveyPart) -> SurveyPage:
    keys, old = Keys(part.root), list[Seen]()
    objects = byte_length = 0
    # Found by a URI, not opened by its URL: a survey needs no right to write.
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


# -- survey ------------------------------------------------------------------------------------------------------------

# Parts that a listing of one store is cut into, and names that one task's answer carries; it goes on in another task.
SURVEY_SHARDS_MAX: Final = 64

_TIME_DIGITS: Final = 12
"""Hex digits of milliseconds at the beginning of an object's id."""


class SurveyedPage(NamedTuple):
    part: SurveyPart
    page: SurveyPage


# -- parts: values in, values out --------------------------------------------------------------------------------------


def plan_blob_parts(whole: SurveyPart, first_ms: int, count: int) -> list[SurveyPart]:
    """`count` parts of one length of time each, from the oldest blob on."""
    span_ms = max(0, whole.before_ms - first_ms)
    count = max(1, min(count, span_ms))
    cuts = [whole.prefix + f"{first_ms + span_ms * i // count:0{_TIME_DIGITS}x}" for i in range(1, count)]
    return _between(whole, cuts)


def plan_blob_count(sample: Sequence[int], before_ms: int) -> int:
    """About a page of blobs in each part, if those that follow come as fast as the oldest ones did (`sample`)."""
    if len(sample) < OBJECT_LIST_PAGE_MAX:
        return 1
    expected = len(sample) * (before_ms - sample[0]) / max(1, sample[-1] - sample[0])
    return int(min(SURVEY_SHARDS_MAX, 1 + expected // SURVEY_PAGE_OBJECTS_MAX))


def plan_segment_parts(whole: SurveyPart, weights: Mapping[str, int], count: int) -> list[SurveyPart]:
    """Cut in front of some of the places in `weights` (prefixes of logs), so that each part weighs about the same."""
    target = sum(weights.values()) / max(1, count)
    cuts, weight = list[str](), 0
    for place in sorted(weights):
        if weight >= target > 0 and len(cuts) < count - 1:
            cuts.append(place)
            weight = 0
        weight += weights[place]
    return _between(whole, cuts)


def _between(whole: SurveyPart, cuts: Sequence[str]) -> list[SurveyPart]:
    return [replace(whole, after=after, last=last) for after, last in pairwise([whole.after, *cuts, whole.last])]


# -- the driver ------------------------------------------------------------------------------------------------------


async def survey_blobs(
    context: LogContext, runner: TaskRunner, store: ObjectStore, *, before_ms: int, parts: int | None = None
) -> AsyncIterator[SurveyedPage]:
    blobs = context.keys.blobs()
    # Ids begin with their instant, and names come in order: younger ones need not be listed.
    whole = replace(_whole(context, store, blobs, "blob", before_ms), last=f"{blobs}{before_ms:0{_TIME_DIGITS}x}")
    sample = await _first_blobs_ms(context, store)
    if not sample or sample[0] >= before_ms:
        return
    count = plan_blob_count(sample, before_ms) if parts is None else parts
    async for page in _pages(runner, plan_blob_parts(whole, sample[0], count)):
        yield page


async def has_younger_blob(context: LogContext, store: ObjectStore, before_ms: int) -> bool:
    """Whether there is a blob that `survey_blobs` does not list, because it was created at `before_ms` or later."""
    blobs = context.keys.blobs()
    async for _ in store.list(blobs, start_after=f"{blobs}{before_ms:0{_TIME_DIGITS}x}"):
        return True
    return False


async def survey_segments(
    context: LogContext,
    runner: TaskRunner,
    store: ObjectStore,
    *,
    before_ms: int,
    weights: Mapping[Log, int],
    parts: int | None = None,
) -> AsyncIterator[SurveyedPage]:
    """`weights`: about how many segments the logs have that are known."""
    if parts is None:
        parts = min(SURVEY_SHARDS_MAX, 2 + sum(weights.values()) // SURVEY_PAGE_OBJECTS_MAX)
    whole = _whole(context, store, f"{context.keys.root}/", "segment_object", before_ms)
    by_place = {context.keys.segment_objects(log): weight for log, weight in weights.items()}
    blobs = context.keys.blobs()
    # Blobs may lie in the same store, between the topics: skip those names. ("~" sorts after every digit.)
    below, above = replace(whole, last=blobs), replace(whole, after=blobs + "~")
    planned = [
        *plan_segment_parts(below, {place: w for place, w in by_place.items() if place < blobs}, max(1, parts // 2)),
        *plan_segment_parts(above, {place: w for place, w in by_place.items() if place > blobs}, max(1, parts // 2)),
    ]
    async for page in _pages(runner, planned):
        yield page


def _whole(context: LogContext, store: ObjectStore, prefix: str, kind: ObjectKind, before_ms: int) -> SurveyPart:
    root = context.keys.root
    return SurveyPart(store_url=store.url, root=root, prefix=prefix, kind=kind, before_ms=before_ms)


async def _first_blobs_ms(context: LogContext, store: ObjectStore) -> list[int]:
    """Creation times of the oldest blobs, from one request."""
    found: list[int] = []
    async for meta in store.list(context.keys.blobs()):
        parsed = context.keys.parse_object(meta.name)
        if parsed is not None and parsed.kind == "blob":
            found.append(created_at_ms_of(parsed.object_id))
        if len(found) == OBJECT_LIST_PAGE_MAX:
            break
    return found


async def _pages(runner: TaskRunner, parts: Sequence[SurveyPart]) -> AsyncIterator[SurveyedPage]:
    """Every page of every part; those that are not at their end are asked again, all together."""
    left = list(parts)
    while left:
        answers = await runner.run(LIST_OBJECTS, left)
        following = []
        for part, answer in zip(left, answers, strict=True):
            if isinstance(answer, TaskFailed):
                # A listing with a gap would only spare objects, but the gap would go unnoticed.
                raise ObjectStoreUnavailable("list", part.store_url, answer.error)
            if answer.go_on_after:
                following.append(replace(part, after=answer.go_on_after))
            yield SurveyedPage(part, answer)
        left = following
