"""What a text of Spark's says: one line of it, not the stack of the JVM."""

from __future__ import annotations

import re
from typing import Final

_JVM_STACK: Final = "\nJVM stacktrace:"
_PYTHON_STACK: Final = "Traceback (most recent call last):"
_ERROR: Final = re.compile(r"[\w.]*(Error|Exception|Exit|Interrupt|NotFound)\b(:|$)")
_NOISE: Final = ("at ", "An error occurred while calling", "...", "org.apache.spark.SparkException: Job aborted")


def reason_in(text: str) -> str:
    """The end of a Python traceback where there is one, else the first line that is no frame of the JVM's stack."""
    # Between the call that failed and the error of the JVM, py4j puts a colon.
    lines = [line.strip().removeprefix(": ") for line in text.partition(_JVM_STACK)[0].splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line) and not line.startswith(("org.", "java.", "py4j."))]
    if _PYTHON_STACK in text and errors:
        return errors[-1]
    telling = [line for line in lines if not line.startswith(_NOISE)]
    return next(iter(telling or lines), "")
