"""The compactor service: the long-running process that reorganises and cleans the log.

discovery   which logs there are
backlog     what waits in each of them
plan        what is to be done, decided without I/O
worker      one visit to one log, under a claim
chores      what is done once for the whole cluster: vacuum, backups, finishing deletions
key_chore   … and key compaction, of the topics that ask for it
runner      who does the work; in this process, or elsewhere behind the same interface
pipeline_runner, gathering, tasks   compaction as jobs over many logs, in this process or on Spark
service     all of it together: start, health, stop
pages       health and metrics over HTTP
"""

from llog.compactor.metrics import CompactorMetrics
from llog.compactor.pipeline_runner import PipelineRunner
from llog.compactor.plan import Rules
from llog.compactor.process import run_compactor
from llog.compactor.runner import InProcessRunner, JobRunner
from llog.compactor.service import CompactorService, serve
from llog.compactor.tasks import TaskRunner, TaskRunners

__all__ = [
    "CompactorMetrics",
    "CompactorService",
    "InProcessRunner",
    "JobRunner",
    "PipelineRunner",
    "Rules",
    "TaskRunner",
    "TaskRunners",
    "run_compactor",
    "serve",
]
