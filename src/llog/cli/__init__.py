"""The command line, `llog`, for people at a terminal and for scripts.

It starts quickly: heavy modules are imported by the commands that need them, and `llog --version` does not even import
the command line library. Results go to stdout, everything else to stderr. Exit codes are those of `llog.cli.exits`.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys

from llog.process_memory import collect_less_often

__all__ = ["main"]


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        from llog import __version__

        print(f"llog {__version__}")
        return
    collect_less_often()
    code = _ExitCode()
    atexit.register(code.end_process)  # the first one registered is the last one called
    try:
        from llog.cli.app import app

        app(prog_name="llog")
    except KeyboardInterrupt:  # before a command began
        code.value = 130
        sys.exit(code.value)
    except SystemExit as exit:
        code.value = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        raise
    except BaseException:
        code.value = 1
        raise


class _ExitCode:
    """Ends the process without the interpreter's finalization, after everything else has run at exit.

    Threads of the object store's native runtime may still hand over the answer of a request. One that asks for the
    interpreter during finalization is unwound by CPython through native frames, which aborts the process: a command
    that had printed its whole result then ended with SIGABRT."""

    def __init__(self) -> None:
        self.value = 0

    def end_process(self) -> None:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            if stream is None or stream.closed:
                continue
            try:
                stream.flush()
            except OSError:  # a full disk, a closed pipe: the reader lacks the end of the result
                self.value = self.value or 1
        os._exit(self.value)
