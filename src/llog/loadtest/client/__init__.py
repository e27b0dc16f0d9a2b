"""The load generator: producer and consumer processes, and the driver that starts them and merges their results."""
