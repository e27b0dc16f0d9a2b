"""The public faces of the log: writer and reader, async and sync. Import them from `llog`."""
