"""Errors of the data source as one sentence.

Spark calls a data source in Python processes of its own and shows their errors with a traceback of that process, which
says nothing to the user of a wrong option or a missing topic. Such a process reports one error and ends, so it is told
by Spark's own variable to leave the traceback out. Unexpected errors keep theirs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from llog.errors import LlogError

HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""Read by Spark's Python processes when they report an error."""
_RUNTIME: Final = ("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
"""Set by Spark in the environment of those processes."""


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """Around what Spark calls, as a block or a decorator."""
    try:
        yield
    except LlogError:
        name, value = _RUNTIME
        if os.environ.get(name) == value:
            os.environ[HIDE_TRACEBACK] = "1"
        raise
