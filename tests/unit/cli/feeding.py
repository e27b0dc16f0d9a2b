"""A small cluster, and the command line on it with something on its standard input."""

from __future__ import annotations

import os
from typing import Any

from typer.testing import CliRunner

from llog.cli.app import app
from tests.unit.cli.cluster import Cluster


class FedCluster(Cluster):
    def run(self, *arguments: str, metadata: str | None = None, stdin: str | bytes = b"", **environ: str) -> Any:
        nothing: dict[str, str | None] = {name: None for name in os.environ if name.startswith(("LLOG_", "AWS_"))}
        ours = {
            "HOME": "/nonexistent",
            "XDG_DATA_HOME": None,
            "LLOG_METADATA_URL": metadata or self.settings.metadata_url,
            "LLOG_OBJECTS_URL": self.settings.objects_url,
        }
        return CliRunner().invoke(app, arguments, input=stdin, env={**nothing, **ours, **environ})
