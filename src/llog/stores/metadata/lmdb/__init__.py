"""The embedded metadata store `lmdb:///path/to/directory`, shared by processes of one machine.

ACID, one fsync per transaction, no server. Read `store` first, then `transaction` (semantics of a write), `writer`
(group commit), `environment` (opening, growing, forking), `layout` (the bytes), `feed` and `watch` (changes).
"""

from llog.stores.metadata.lmdb.store import LmdbStore, open_from_url

__all__ = ["LmdbStore", "open_from_url"]
