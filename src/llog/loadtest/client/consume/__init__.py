"""Consumers of the load generator: they read every partition, measure end-to-end latency and verify what arrives.

    python -m llog.loadtest.client.consume.process RUN_DIR NAME

places.py     the partitions of a client: where it stands in each, and what to ask for next
reading.py    one client: a request at a time to each broker, failover, draining
kafka_raw.py, http_raw.py, librdkafka.py   engines;  connection.py  one answer at a time, into memory that is reused
scan.py       the stamps in answers (scan_kernels.py), handed to the ledger and the histograms
process.py    orders, samples, result files
"""
