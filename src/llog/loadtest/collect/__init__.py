"""What a run's processes and brokers did, sampled beside the load, and what follows from it.

process.py    the collector process: a line of metrics-30s.jsonl every `collect.interval_s`
scrape.py     `GET /metrics` of brokers and compactors;  machine.py  processes and host
lives.py      counters added up over restarts
reconcile.py  client, brokers, stores and bill compared with each other;  coverage.py  what the collector missed
money.py      dollars per hour and per GB;  costs.py  processor time per process
summarise.py  summary.json
"""
