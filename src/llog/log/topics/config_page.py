"""`python -m llog.log.topics.config_page`: prints docs/reference/topic-configs.md from the table of configs."""

from __future__ import annotations

from collections.abc import Iterable

from llog.log.topics.config_table import CONFIGS, REFUSED, ConfigSpec

_HEAD = """\
# Topic configs

Written by `make docs` from the table in `llog/log/topics/config_table.py`.

Every topic config of Kafka 4.3, by name. Set configs when a topic is created (`llog topic create`, `POST /topics`) or
later (`llog topic alter`, `PATCH /topics/{topic}`). An unknown name, or a value that is not accepted, is refused. Other
processes may go by the old value for up to 5 seconds.

"""
_ENFORCED = "## Enforced\n\n"
_LIMITS = """
Limits of records (`max.message.bytes`, `message.timestamp.…`) hold for every writer: HTTP produce, the direct writer,
`llog produce`, the Spark sink and Kafka producers. A record without a timestamp gets the time of the write (a Kafka
producer always sends one). With `LogAppendTime` no window applies; a batch of the Spark sink goes by the type that the
topic had when the batch began. Recovery from a backup appends what was accepted before, whatever the limits are now.

"""
_WITHOUT = """\
## Accepted without effect

These are stored and shown, so that tools made for Kafka work. `llog topic create`, `alter` and `describe` say which
configs of a topic have no effect; answers of the HTTP API list them as `without_effect`.

"""
_REFUSED = "\n## Refused\n\n| config | why |\n|---|---|\n"


def markdown() -> str:
    return "".join(
        [
            _HEAD,
            _ENFORCED,
            _table("what it does", ((name, spec) for name, spec in CONFIGS.items() if spec.enforced)),
            _LIMITS,
            _WITHOUT,
            _table("why it has no effect", ((name, spec) for name, spec in CONFIGS.items() if not spec.enforced)),
            _REFUSED,
            *(f"| `{name}` | {why} |\n" for name, why in REFUSED.items()),
        ]
    )


def _table(last: str, rows: Iterable[tuple[str, ConfigSpec]]) -> str:
    head = f"| config | type | default | accepted | {last} |\n|---|---|---|---|---|\n"
    return head + "".join(
        f"| `{name}` | {spec.kind} | {f'`{spec.default}`' if spec.default else 'empty'} | {spec.accepted.described} | "
        f"{spec.meaning} |\n"
        for name, spec in rows
    )


if __name__ == "__main__":
    print(markdown(), end="")
