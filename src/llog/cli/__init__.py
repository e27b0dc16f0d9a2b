"""The command line, `llog`: for people at a terminal and for scripts.

What must stay true: starting is quick, so nothing heavy is imported before a command needs it (`llog --version` not
even the command line library); results go to stdout, everything else to stderr; exit codes mean what
`llog.cli.exits` says.
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
