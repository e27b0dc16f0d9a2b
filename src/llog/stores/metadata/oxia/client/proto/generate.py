"""Make `llog_oxia_pb2.py` and its `.pyi` from `llog_oxia.proto`.

    python -m llog.stores.metadata.oxia.client.proto.generate

The generator stamps a check into its output that refuses every protobuf runtime older than itself. The code it makes
for this file uses nothing that protobuf 6.30, our lower bound, lacks (a test imports it there when it can), so the
check is cut out; otherwise the newest grpcio-tools at hand would silently raise what users must install.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PROTO = "llog_oxia.proto"
OUTPUTS = ("llog_oxia_pb2.py", "llog_oxia_pb2.pyi")

_RUNTIME_CHECK = re.compile(
    r"from google\.protobuf import runtime_version as _runtime_version\n"
    r"|_runtime_version\.ValidateProtobufRuntimeVersion\([^)]*\)\n"
    r"|# Protobuf Python Version: .*\n"
)


def generate() -> dict[str, str]:
    """The text of each generated file. Needs grpcio-tools."""
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as out:
        status = protoc.main(["protoc", f"-I{HERE}", f"--python_out={out}", f"--pyi_out={out}", str(HERE / PROTO)])
        if status != 0:
            raise RuntimeError(f"protoc ended with status {status}")
        return {name: _RUNTIME_CHECK.sub("", (Path(out) / name).read_text()) for name in OUTPUTS}


if __name__ == "__main__":
    for name, text in generate().items():
        (HERE / name).write_text(text)
        sys.stdout.write(f"wrote {HERE / name}\n")
