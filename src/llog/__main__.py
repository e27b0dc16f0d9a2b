"""`python -m llog` is `llog`."""

from __future__ import annotations

from llog.cli import main

main()
