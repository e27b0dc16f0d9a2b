"""The embedded metadata store: LMDB, one directory, any number of processes of one machine.

`lmdb:///path/to/directory`. ACID, one fsync per flush, no server. Read `store` first, then `transaction` (what a
write means), `writer` (group commit), `environment` (opening, growing, forking) and `layout` (the bytes).
"""

from llog.stores.metadata.lmdb.store import LmdbStore, open_from_url

__all__ = ["LmdbStore", "open_from_url"]
