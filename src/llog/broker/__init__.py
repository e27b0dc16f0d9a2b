"""What lives in a running broker, whatever it is spoken to with: batching, tail cache, consume, metrics."""
