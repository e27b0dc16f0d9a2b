"""The parts of a broker that every front end shares: batching, tail cache, consume, consumer groups."""
