"""The stores of the service with counters around them, for its metrics pages."""

from __future__ import annotations

from dataclasses import replace

from llog.broker.billing import BilledStore, Billing
from llog.broker.metrics import BrokerMetrics
from llog.log.context import LogContext
from llog.stores.metadata.metered import MeteredMetadataStore
from llog.stores.objects.metered import MeteredObjectStore
from llog.stores.objects.port import ObjectStore


def metered(context: LogContext, metrics: BrokerMetrics) -> tuple[LogContext, Billing]:
    """The same stores, counted and shown by `metrics`. Closing stays with whoever opened them.

    Objects in a store that is neither of the two (a bucket used before) are read uncounted.
    """
    metadata = MeteredMetadataStore(context.metadata)
    metrics.attach_metadata(metadata.url, metadata.stats)
    counted = {store.url: MeteredObjectStore(store) for store in context.stores()}
    wal = None if context.wal is None else counted[context.wal.url]
    segments = None if context.segments is None else counted[context.segments.url]
    billed = [] if segments is None else [BilledStore("objects", segments, segments.stats)]
    if wal is not None and wal is not segments:
        billed.append(BilledStore("wal", wal, wal.stats))

    async def find(uri: str) -> tuple[ObjectStore, str]:
        store, name = await context.find_object(uri)
        return counted.get(store.url, store), name

    billing = Billing(billed, root_prefix=context.keys.root, now_ms=context.now_ms)
    metrics.attach_objects(billing.stores)
    return replace(context, metadata=metadata, wal=wal, segments=segments, find_object=find), billing
