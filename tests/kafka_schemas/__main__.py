"""`make kafka-schemas`: write the table of facts about Kafka's messages, and the classes that follow from it."""

from __future__ import annotations

import sys

from llog.kafka.codec import table
from tests.kafka_schemas import facts, jar, structs
from tests.kafka_schemas.jar import JarUnavailable

CODEC = jar.ROOT / "src/llog/kafka/codec"
PACKAGE_DOCSTRING = '"""The classes of Kafka\'s messages, one module per API. Written by `make kafka-schemas`."""\n'


def main() -> int:
    try:
        package = jar.fetch()
    except JarUnavailable as reason:
        print(f"kafka-clients {jar.KAFKA_CLIENTS_VERSION}: {reason}", file=sys.stderr)
        return 1
    text = facts.table_text(jar.definitions(package))
    (CODEC / "messages.txt").write_text(text, "ascii")
    sources = structs.modules(table.parse(text))
    for old in (CODEC / "messages").glob("*.py"):
        old.unlink()
    (CODEC / "messages/__init__.py").write_text(PACKAGE_DOCSTRING, "utf-8")
    for name, source in sources.items():
        (CODEC / f"messages/{name}.py").write_text(source, "utf-8")
    print(f"wrote {len(text)} bytes of facts and {len(sources)} modules from kafka-clients {jar.KAFKA_CLIENTS_VERSION}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
