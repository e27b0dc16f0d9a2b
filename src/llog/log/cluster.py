"""The identity of a cluster, and the check that its stores belong together.

The metadata store holds the cluster's identity; each object store has a marker object with the same identity. With a
wrong, empty or unshared store every record would be missing, and vacuum would take every object for garbage (h25). A
marker is written once, only into a store that has none and never had ours. Opening stores that do not belong together
raises `ClusterMismatch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from llog.errors import ClusterMismatch, MetadataUncertain, ObjectAlreadyExists, ObjectNotFound, VersionConflict
from llog.formats.values import ClusterId, decode_value, encode_value
from llog.log.context import LogContext
from llog.stores.metadata.port import ABSENT, Record
from llog.stores.objects.port import ObjectStore

CLUSTER_ROUNDS_MAX: Final = 32


async def join_cluster(context: LogContext, stores: Sequence[ObjectStore] | None = None) -> ClusterId:
    """Check that these stores (default: those of the context) belong to this cluster; the first start creates it."""
    stores = context.stores() if stores is None else stores
    key = context.keys.cluster_id()
    for round_number in range(CLUSTER_ROUNDS_MAX):
        found, markers = await _read_identities(context, stores)
        try:
            if found is None:
                _refuse_markers_without_identity(markers)
                await context.metadata.put(key, encode_value(_new_cluster(context)), expected=ABSENT)
                continue
            cluster = decode_value(ClusterId, found.value, key.path)
            joining = plan_joining(cluster, markers)
            for store in stores:
                if store.url in joining and markers[store.url] is None:
                    await _put_marker(context, store, cluster)
            if not joining:
                return cluster
            joined = replace(cluster, stores=(*cluster.stores, *joining))
            await context.metadata.put(key, encode_value(joined, key.path), expected=found.version)
        except (VersionConflict, MetadataUncertain, ObjectAlreadyExists):
            await context.back_off(round_number)
    raise ClusterMismatch(stores[0].url if stores else "", "the cluster's identity kept changing; try again")


async def compare_cluster(context: LogContext, stores: Sequence[ObjectStore] | None = None) -> ClusterId | None:
    """As `join_cluster`, but nothing is written; None when there is no cluster yet."""
    found, markers = await _read_identities(context, context.stores() if stores is None else stores)
    if found is None:
        _refuse_markers_without_identity(markers)
        return None
    cluster = decode_value(ClusterId, found.value, found.key.path)
    plan_joining(cluster, markers)
    return cluster


async def _read_identities(
    context: LogContext, stores: Sequence[ObjectStore]
) -> tuple[Record | None, dict[str, ClusterId | None]]:
    """The identity, then the markers. A marker is put after the identity that it names, and before the identity names
    its store. A marker without an identity may mean that the cluster was created in between; a second read decides."""
    for _ in range(2):
        found = await context.metadata.get(context.keys.cluster_id(), strict=True)
        markers = {store.url: await read_marker(context, store) for store in stores}
        if found is not None or not any(markers.values()):
            break
    return found, markers


def plan_joining(cluster: ClusterId, markers: dict[str, ClusterId | None]) -> list[str]:
    """The stores that are new to the cluster; raises `ClusterMismatch` for a store that does not belong to it."""
    joining = []
    for url, marker in markers.items():
        if marker is not None and marker.cluster_id != cluster.cluster_id:
            reason = f"it belongs to cluster {marker.cluster_id}, the metadata store to cluster {cluster.cluster_id}"
            raise ClusterMismatch(url, reason, ours=cluster.cluster_id, theirs=marker.cluster_id)
        if url in cluster.stores:
            if marker is None:
                reason = (
                    f"it had the marker of cluster {cluster.cluster_id} and has none now: it was emptied, or"
                    " it is a directory of the same name on another machine"
                )
                raise ClusterMismatch(url, reason, ours=cluster.cluster_id)
        else:
            joining.append(url)
    return joining


async def read_marker(context: LogContext, store: ObjectStore) -> ClusterId | None:
    name = context.keys.cluster_marker_object()
    try:
        return decode_value(ClusterId, await store.get(name), store.uri(name))
    except ObjectNotFound:
        return None


def _refuse_markers_without_identity(markers: dict[str, ClusterId | None]) -> None:
    for url, marker in markers.items():
        if marker is not None:
            reason = (
                f"it belongs to cluster {marker.cluster_id}, and the metadata store holds no cluster: it is empty, or"
                " another one than before. `llog meta restore` restores a backup"
            )
            raise ClusterMismatch(url, reason, theirs=marker.cluster_id)


async def _put_marker(context: LogContext, store: ObjectStore, cluster: ClusterId) -> None:
    """Create-if-absent: of two clusters that find an empty store at the same time, one must lose."""
    data = encode_value(replace(cluster, stores=()))
    await store.put(context.keys.cluster_marker_object(), [data], if_absent=True)


def _new_cluster(context: LogContext) -> ClusterId:
    return ClusterId(cluster_id=f"{context.random_bits(128):032x}", created_at_ms=context.now_ms())
