"""The compactor service: the long-running process that reorganises and cleans the log.

discovery   which logs there are
backlog     what waits in each of them
plan        what is to be done, decided without I/O
worker      one visit to one log, under a claim
chores      what is done once for the whole cluster: vacuum, backups, finishing deletions
key_chore   … and key compaction, of the topics that ask for it
jobs        the work itself; compaction as jobs over many logs (`shared_jobs`)
backends    where tasks run: in this process or on Spark
service     all of it together: start, health, stop
pages       health and metrics over HTTP
"""

from llog.compactor.backends import Backend, Backends
from llog.compactor.jobs import CompactorJobs
from llog.compactor.metrics import CompactorMetrics
from llog.compactor.plan import Rules
from llog.compactor.process import run_compactor
from llog.compactor.service import CompactorService, serve

__all__ = [
    "Backend",
    "Backends",
    "CompactorJobs",
    "CompactorMetrics",
    "CompactorService",
    "Rules",
    "run_compactor",
    "serve",
]
