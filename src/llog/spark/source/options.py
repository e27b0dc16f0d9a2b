"""The options of the data source, and what options of source and sink have in common.

Names, forms and defaults are those of Spark's Kafka source, if it has them; `splitBytes`, `maxBytesPerTrigger`
and `llog.…` are ours. An option `llog.metadata.url` is the setting LLOG_METADATA_URL, and so on for every
setting of the stores; the environment supplies the rest. An unknown or invalid option is an error that names it, before
anything is read. No secret is accepted as an option, because Spark shows options in its plans.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final, Literal, cast

import msgspec

from llog.errors import InvalidArgument
from llog.limits import SPLIT_BYTES_DEFAULT, SPLITS_MAX
from llog.log.keys import Keys, Log, check_topic
from llog.pipeline.scan.plan import ScanRequest
from llog.pipeline.scan.subscription import EARLIEST, LATEST, ReadBound, Subscription
from llog.settings import Settings, settings_table
from llog.settings.units import parse_bytes
from llog.settings.urls import mask_url

Kind = Literal["batch", "stream"]
_READING: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "minPartitions",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "failOnDataLoss",
    "groupId",
    "includeHeaders",
    "splitBytes",
)
OPTIONS: Final = {name.lower(): name for name in _READING}
_ENDING: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_NAMED: Final = {"earliest": EARLIEST, "latest": LATEST}
_COUNT_MAX: Final = 2**63 - 1
SETTINGS_PREFIX: Final = "llog."
HOW_TO_WRITE: Final = 'write by df.write.format("llog").option("topic", …).mode("append").save()'
NO_TABLE: Final = (
    "a topic cannot be a table of Spark's catalogue, and nothing was written;"
    f" {HOW_TO_WRITE}, and read by the views of llog.spark.views(spark)"
)
WRITING: Final = {name.lower(): name for name in ("topic", "queryId", "batchId", "compression", "blobBytes")}


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a read or a stream. Spark's plans contain them, so they hold no secret."""

    request: ScanRequest
    offsets_per_trigger: int | None = None
    bytes_per_trigger: int | None = None
    group: str | None = None
    settings: dict[str, str] = {}
    """Settings of the stores given as options."""

    def settings_in_force(self) -> Settings:
        return Settings.from_env(None, **self.settings)


def parse_options(given: Mapping[str, str], kind: Kind) -> SourceOptions:
    """`given` has names in any case, as Spark passes them. Raises `InvalidArgument` naming the option."""
    options = _Given(given)
    if kind == "stream":
        for name in _ENDING:
            if options.has(name):
                raise InvalidArgument(name, "a stream has no end; use it in batch reads")
    request = ScanRequest(
        subscription=_subscription(options),
        starting=_starting(options, kind),
        ending=_ending(options),
        split_bytes=options.size("splitBytes", SPLIT_BYTES_DEFAULT),
        splits_min=options.number("minPartitions", 1, most=SPLITS_MAX) or 1,
        fail_on_data_loss=options.boolean("failOnDataLoss", True),
    )
    group = options.text("groupId")
    return SourceOptions(
        request=request,
        offsets_per_trigger=options.number("maxOffsetsPerTrigger", 1),
        bytes_per_trigger=options.size("maxBytesPerTrigger", 0) or None,
        group=None if group is None else external_name("groupId", group),
        settings=options.settings,
    )


def wants_headers(given: Mapping[str, str]) -> bool:
    return _Given(given, checked=False).boolean("includeHeaders", True)


class _Given:
    """The given options by their documented names."""

    def __init__(self, given: Mapping[str, str], *, checked: bool = True) -> None:
        lowered = {name.lower(): value for name, value in given.items()}
        self.none = not lowered
        self._texts = {OPTIONS[name]: value for name, value in lowered.items() if name in OPTIONS}
        settings = {name: value for name, value in lowered.items() if name.startswith(SETTINGS_PREFIX)}
        if checked:
            for name in lowered.keys() - OPTIONS.keys() - settings.keys():
                raise InvalidArgument(name, _unknown(name))
            self.settings = dict(setting_of(name, value) for name, value in settings.items())

    def has(self, name: str) -> bool:
        return name in self._texts

    def text(self, name: str) -> str | None:
        value = self._texts.get(name)
        return None if value is None else stripped(name, value)

    def number(self, name: str, least: int, most: int = _COUNT_MAX) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            raise InvalidArgument(name, f"{text!r} must be a number") from None
        if not least <= value <= most:
            raise InvalidArgument(name, f"{value} must be from {least} to {most}")
        return value

    def size(self, name: str, default: int) -> int:
        text = self.text(name)
        return default if text is None else size_of(name, text)

    def boolean(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise InvalidArgument(name, f"{text!r} must be true or false")
        return text.lower() == "true"

    def by_topic(self, name: str) -> dict[str, Any] | None:
        """JSON of the form `{"topic": …}`."""
        text = self.text(name)
        if text is None:
            return None
        try:
            value = json.loads(text)
        except ValueError as error:
            raise InvalidArgument(name, f"{text!r:.200} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise InvalidArgument(name, f'{text!r:.200} is not of the form {{"topic": …}}')
        for topic in value:
            try:
                check_topic(topic)
            except InvalidArgument as error:
                raise InvalidArgument(name, str(error)) from None
        return value

    def by_log(self, name: str) -> dict[Log, int] | None:
        """JSON of the form `{"topic": {"0": 23, "1": -1}}`."""
        by_topic = self.by_topic(name)
        if by_topic is None:
            return None
        by_log: dict[Log, int] = {}
        for topic, partitions in by_topic.items():
            if not isinstance(partitions, dict):
                raise InvalidArgument(name, f'{topic}: must be of the form {{"0": 23, "1": -1}}')
            for partition, value in partitions.items():
                if not partition.isdecimal() or isinstance(value, bool) or not isinstance(value, int):
                    raise InvalidArgument(name, f"{topic}: {partition!r}: {value!r} must be a partition and an integer")
                by_log[Log(topic, int(partition))] = value
        return by_log


def _unknown(name: str) -> str:
    if name.startswith("kafka."):
        return "is for Kafka brokers; llog reads the object store: name the cluster by llog.metadata.url"
    if name == "path":
        return "load() takes no path; name topics by the option subscribe"
    if name == "pushfilters":
        return (
            "was removed: Spark reuses the plan of one query for others with other filters, which then lack rows;"
            " narrow a read by assign, startingOffsets, endingOffsets, startingTimestamp or endingTimestamp"
        )
    if name in WRITING:
        return "is an option of writes; name the topics to read by subscribe"
    return f"is not an option of the source llog{close_to(name, OPTIONS)}"


def _subscription(options: _Given) -> Subscription:
    named = [name for name in ("subscribe", "subscribePattern", "assign") if options.has(name)]
    if len(named) != 1:
        given = "none is given" if not named else f"{' and '.join(named)} are given"
        # Spark passes no options of a catalogue table (`CREATE TABLE … (…) USING llog OPTIONS (…)`).
        hint = "; Spark passes no options of a catalogue table: use llog.spark.views(spark)" if options.none else ""
        raise InvalidArgument("subscribe, subscribePattern, assign", f"{given}; give exactly one{hint}")
    [name] = named
    try:
        if name == "subscribe":
            topics = tuple(part.strip() for part in (options.text(name) or "").split(",") if part.strip())
            if not topics:
                raise InvalidArgument(name, "names no topic")
            return Subscription(topics)
        if name == "subscribePattern":
            return Subscription(pattern=options.text(name))
        return Subscription(assigned=_assigned(options))
    except InvalidArgument as error:
        same_option = error.argument in ("subscription", name)
        raise InvalidArgument(name, error.reason if same_option else str(error)) from None


def _assigned(options: _Given) -> tuple[Log, ...]:
    logs: list[Log] = []
    for topic, partitions in (options.by_topic("assign") or {}).items():
        if not isinstance(partitions, list) or not all(type(number) is int for number in partitions):
            raise InvalidArgument("subscription", f'{topic}: must be of the form {{"{topic}": [0, 1]}}')
        logs += [Log(topic, number) for number in partitions]
    if not logs:
        raise InvalidArgument("subscription", "names no partition")
    return tuple(logs)


def _starting(options: _Given, kind: Kind) -> ReadBound:
    default = EARLIEST if kind == "batch" else LATEST
    at = _bound(options, "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets", default)
    named = (at.all_logs,) if at.by_log is None else at.by_log.values()
    if kind == "batch" and at.option == "startingOffsets" and LATEST in named:
        raise InvalidArgument("startingOffsets", "latest (-1) is the end of a batch read, so it would read nothing")
    return at


def _ending(options: _Given) -> ReadBound:
    at = _bound(options, "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets", LATEST)
    if at.option == "endingOffsets" and EARLIEST in ((at.all_logs,) if at.by_log is None else at.by_log.values()):
        raise InvalidArgument("endingOffsets", "earliest (-2) is the start of a batch read, so it would read nothing")
    # If no record is as new as an ending timestamp, all records are before it.
    return at if at.option == "endingOffsets" else msgspec.structs.replace(at, newer_than_all="latest")


def _bound(options: _Given, timestamp: str, by_timestamp: str, offsets: str, default: int) -> ReadBound:
    strategy = (options.text("startingOffsetsByTimestampStrategy") or "error").lower()
    if strategy not in ("error", "latest"):
        raise InvalidArgument("startingOffsetsByTimestampStrategy", f"{strategy!r} must be error or latest")
    newer_than_all = cast(Literal["error", "latest"], strategy)
    if options.has(timestamp):
        return ReadBound(timestamp, timestamp_ms=options.number(timestamp, 0), newer_than_all=newer_than_all)
    if options.has(by_timestamp):
        by_log = options.by_log(by_timestamp)
        return ReadBound(by_timestamp, timestamps_by_log=by_log, newer_than_all=newer_than_all)
    text = options.text(offsets)
    if text is None or text.lower() in _NAMED:
        return ReadBound(offsets, all_logs=default if text is None else _NAMED[text.lower()])
    return ReadBound(offsets, by_log=options.by_log(offsets))


# -- shared with the sink ----------------------------------------------------------------------------------------------


def setting_of(name: str, value: str) -> tuple[str, str]:
    attribute = name.removeprefix(SETTINGS_PREFIX).replace(".", "_")
    row = next((row for row in settings_table() if row.name == attribute), None)
    if row is None:
        raise InvalidArgument(name, f"there is no setting LLOG_{attribute.upper()}")
    if row.secret or mask_url(value) != value:
        raise InvalidArgument(
            name, f"Spark's plans show options, so set a secret in the environment, as {row.variable}"
        )
    return attribute, value


def stripped(name: str, text: str) -> str:
    if not text.strip():
        raise InvalidArgument(name, "is empty")
    return text.strip()


def external_name(option: str, name: str) -> str:
    """Check the name of a consumer group or query, which becomes part of a key."""
    try:
        Keys().group(name)
    except InvalidArgument as error:
        raise InvalidArgument(option, error.reason) from None
    return name


def size_of(name: str, text: str) -> int:
    """Bytes from text such as `1048576` or `1MiB`."""
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise InvalidArgument(name, str(error)) from None
    if size <= 0:
        raise InvalidArgument(name, f"{text!r} must be more than 0 bytes")
    return size


def close_to(name: str, options: Mapping[str, str]) -> str:
    """`; did you mean …?` if a similar option exists. `options` are keyed by lower-case name."""
    close = get_close_matches(name, [*options, "llog.metadata.url", "llog.objects.url"], 1)
    return f"; did you mean {options.get(close[0], close[0])}?" if close else ""
