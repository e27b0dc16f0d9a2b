"""Actors that do one thing and say what they were told."""

from __future__ import annotations

from llog.errors import MetadataTimeout, MetadataUnavailable, MetadataUncertain, VersionConflict
from llog.stores.metadata.port import ABSENT, Key
from llog.testing.sim import ActorContext

K = Key("k")


async def put_once(ctx: ActorContext) -> str:
    try:
        await ctx.metadata.put(K, ctx.name.encode(), expected=ABSENT)
    except (MetadataUncertain, MetadataUnavailable, VersionConflict) as error:
        return type(error).__name__
    return "done"


async def get_once(ctx: ActorContext) -> bytes | str | None:
    try:
        found = await ctx.metadata.get(K)
    except (MetadataTimeout, MetadataUnavailable) as error:
        return type(error).__name__
    return None if found is None else found.value
