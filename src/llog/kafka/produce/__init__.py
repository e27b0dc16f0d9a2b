"""Produce below its handler: the batches of a request judged, and its place among the requests of its connection."""
