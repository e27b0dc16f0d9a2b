"""Which Python a session on a cluster uses, for its tasks and, on this machine, for planning them.

Why it exists: Spark starts the Python that the driver names, by the same name everywhere: on executors for tasks, and
on the driver's machine for processes that plan. One that is not there, or has no llog, is noticed when the first job
fails, by a line that names neither the Python nor the machine. Where nobody named one, Spark takes the `python3` of the
PATH, which of a program in an environment that is not activated is one without llog.

What must stay true: a Python that somebody named is used or refused, never passed over; a slow machine is no reason to
refuse one; what executors have is theirs to say.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from llog.errors import InvalidArgument

# How long the look at it may take; one that is slower is taken as it is.
SPARK_PYTHON_TIMEOUT_MS: Final = 30_000


VARIABLE: Final = "PYSPARK_PYTHON"
SPARKS_OWN: Final = "python3"
_LOOK: Final = "import sys, importlib.util as u; print(*sys.version_info[:2], u.find_spec('llog') is not None)"
_HERE: Final = "jobs are planned on this machine, with the same Python as their tasks"


def cluster_python(environ: Mapping[str, str]) -> str:
    """What `PYSPARK_PYTHON` must be. Raises `InvalidArgument` for one that cannot work here."""
    named = environ.get(VARIABLE)
    if named:
        wrong = _wrong_with(named)
        if wrong:
            raise InvalidArgument(VARIABLE, f"{named} {wrong}; {_HERE}")
        return named
    return sys.executable if _wrong_with(SPARKS_OWN) else SPARKS_OWN


def _wrong_with(program: str) -> str:
    """Empty: nothing, or nobody knows."""
    timeout_s = SPARK_PYTHON_TIMEOUT_MS / 1_000
    try:
        answer = subprocess.run([program, "-c", _LOOK], capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return ""
    except OSError as error:
        return f"cannot be started here ({error.strerror})"
    told = answer.stdout.decode(errors="replace").split()
    if answer.returncode != 0 or len(told) != 3:
        return f"cannot be used here (it ended with {answer.returncode})"
    here = sys.version_info[:2]
    if told[:2] != [str(part) for part in here]:
        return f"is Python {'.'.join(told[:2])}, and this is {'.'.join(map(str, here))}"
    return "" if told[2] == "True" else "has no llog here"
