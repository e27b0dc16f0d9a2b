"""The compactor service: the long-running process that reorganises and cleans the log.

discovery   which logs there are
backlog     what waits in each of them
plan        what is to be done, decided without I/O
worker      one visit to one log, under a claim
chores      what is done once for the whole cluster: vacuum, backups, finishing deletions
runner      who does the work; in this process, or elsewhere behind the same interface
service     all of it together: start, health, stop
pages       health and metrics over HTTP
"""

from llog.compactor.metrics import CompactorMetrics
from llog.compactor.plan import Rules
from llog.compactor.process import run_compactor
from llog.compactor.runner import InProcessRunner, JobRunner
from llog.compactor.service import CompactorService, serve

__all__ = ["CompactorMetrics", "CompactorService", "InProcessRunner", "JobRunner", "Rules", "run_compactor", "serve"]
