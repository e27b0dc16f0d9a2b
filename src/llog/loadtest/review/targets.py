"""The brokers and compactors of a run as targets of Prometheus: a `file_sd` file.

Prometheus reads the file when it changes, so it is replaced whole: half of a list would drop the other half.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from llog.loadtest.artifacts import StackRecord


class TargetGroup(msgspec.Struct, frozen=True):
    targets: tuple[str, ...]
    labels: dict[str, str]


def target_groups(stack: StackRecord) -> list[TargetGroup]:
    """One group per process, so that each has its name as a label."""
    brokers = [(broker.broker_id, "broker", broker.http_url) for broker in stack.brokers]
    compactors = [(f"compactor-{place.number}", "compactor", place.http_url) for place in stack.compactors]
    return [
        TargetGroup((urlsplit(url).netloc,), {"process": name, "kind": kind, "run_id": stack.run_id})
        for name, kind, url in (*brokers, *compactors)
    ]


def write_targets(path: Path, groups: list[TargetGroup]) -> None:
    """An empty list clears the targets."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(msgspec.json.encode(groups))
    scratch.replace(path)
