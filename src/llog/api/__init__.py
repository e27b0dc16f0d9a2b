"""The public classes of the log: writer, reader and compactor, async and sync. Import them from `llog`."""
