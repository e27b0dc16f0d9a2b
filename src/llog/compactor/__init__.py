"""The compactor service: the long-running process that reorganises and cleans the log.

discovery   the logs of the cluster
backlog     the work that waits in each log
plan        decides without I/O what to do
worker      one visit to one log, under a claim
chores      work for the whole cluster: vacuum, backups, unfinished deletions, key compaction
jobs        the work itself; visits to many logs share a compaction job
backends    where tasks run: in this process or on Spark
service     all parts together: start, health, stop
pages       health and metrics over HTTP
"""
