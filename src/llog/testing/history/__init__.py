"""Histories of what clients asked and heard, and a checker that judges a log by them.

events, operations     requests and answers
workload, operators    clients that record them, in a simulation or as processes that get killed
recovery               steps after a crash
checker                histories and stores in, violations of I1 to I13 out; it uses formats, not the log's code
"""

from __future__ import annotations

from llog.testing.history.checker import Checker
from llog.testing.history.events import Noted, decode_lines, encode_line
from llog.testing.history.image import Dump, DumpedObject, dump_stores
from llog.testing.history.operations import operations_of
from llog.testing.history.verdict import Broken, Phase, Violation
from llog.testing.history.workload import Client

__all__ = [
    "Broken",
    "Checker",
    "Client",
    "Dump",
    "DumpedObject",
    "Noted",
    "Phase",
    "Violation",
    "decode_lines",
    "dump_stores",
    "encode_line",
    "operations_of",
]
