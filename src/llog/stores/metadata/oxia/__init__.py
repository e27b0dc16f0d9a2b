"""Oxia as a metadata store: `store.py` adapts the client in `client/` to the port."""
