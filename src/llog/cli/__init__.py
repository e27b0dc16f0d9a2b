"""The command line, `llog`, for people at a terminal and for scripts.

It starts quickly: heavy modules are imported by the commands that need them, and `llog --version` does not even import
the command line library. Results go to stdout, everything else to stderr. Exit codes are those of `llog.cli.exits`.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        from llog import __version__

        print(f"llog {__version__}")
        return
    try:
        from llog.cli.app import app

        app(prog_name="llog")
    except KeyboardInterrupt:  # before a command began
        sys.exit(130)
