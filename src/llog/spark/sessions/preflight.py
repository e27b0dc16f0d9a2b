"""Checks before Spark starts: is the master valid and reachable, and which Python do workers of a cluster use?

Spark tries an address without a listener for minutes (ten on Connect), cannot be interrupted meanwhile, and does not
report the reason; a misspelt master ends in a stack trace. Spark starts the same Python, by name, on executors and on
the driver's machine; one that is missing or lacks llog would only show when the first job fails. By default Spark takes
`python3` of the PATH, which lacks llog when the program's environment is not activated.

A master or a named Python that Spark would accept is never refused, and every check is bounded in time. Addresses that
are not in the URL (yarn, k8s) are not checked.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from llog.errors import InvalidArgument, SparkSessionFailed

# How long one address of it is tried before Spark is let loose on it.
SPARK_MASTER_TIMEOUT_MS: Final = 10_000

CONNECT: Final = "sc://"
STANDALONE: Final = "spark://"
_CONNECT_PORT: Final = 15_002
_STANDALONE_PORT: Final = 7_077
_KNOWN: Final = re.compile(
    r"local(\[(\*|[1-9]\d*)(\s*,\s*[1-9]\d*)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|yarn|(spark|k8s|sc)://.+"
)


def check_form(master: str) -> None:
    """Raises `InvalidArgument` for an invalid master."""
    if _KNOWN.fullmatch(master) is None:
        known = "local[*], spark://host:7077, yarn, k8s://…, or sc://host:15002 for Spark Connect"
        raise InvalidArgument("Spark master", f"{master!r} must be one of {known}")


def check_master(master: str) -> None:
    """Raises `InvalidArgument` for an invalid master, `SparkSessionFailed` where nothing listens."""
    check_form(master)
    refused: list[str] = []
    for host, port in addresses_of(master):
        try:
            socket.create_connection((host, port), SPARK_MASTER_TIMEOUT_MS / 1_000).close()
            return
        except (OSError, UnicodeError) as error:  # a name that cannot be asked for is the latter
            refused.append(f"nothing answers at {host}:{port} ({getattr(error, 'strerror', None) or error})")
    if refused:
        raise SparkSessionFailed(master.partition(";")[0], "; ".join(refused))


def addresses_of(master: str) -> list[tuple[str, int]]:
    """Those that are in the URL; one that answers is enough."""
    if master.startswith(CONNECT):
        named, default = [master], _CONNECT_PORT
    elif master.startswith(STANDALONE):
        named = [f"{STANDALONE}{one}" for one in master.removeprefix(STANDALONE).split(",")]
        default = _STANDALONE_PORT
    else:
        return []
    found = []
    for url in named:
        try:
            parts = urlsplit(url)
            found.append((parts.hostname or "", parts.port or default))
        except ValueError:  # its message repeats what follows the port, such as a token
            address = url.partition(";")[0]
            raise InvalidArgument("Spark master", f"{address!r} must name a host, and a port up to 65535") from None
    return found


# -- interpreter -------------------------------------------------------------------------------------------------------

# How long the check may take; a slower interpreter is accepted unchecked.
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
    """The reason why the program cannot be used; empty if there is none, or the check took too long."""
    timeout_s = SPARK_PYTHON_TIMEOUT_MS / 1_000
    try:
        answer = subprocess.run([program, "-c", _LOOK], capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return ""
    except OSError as error:
        return f"cannot be started here ({error.strerror})"
    output = answer.stdout.decode(errors="replace").split()
    if answer.returncode != 0 or len(output) != 3:
        return f"cannot be used here (it ended with {answer.returncode})"
    version = sys.version_info[:2]
    if output[:2] != [str(part) for part in version]:
        return f"is Python {'.'.join(output[:2])}, and this is {'.'.join(map(str, version))}"
    return "" if output[2] == "True" else "has no llog here"
