"""The one module that builds and parses keys and object names (protocol section 2).

All later releases read the keys of this one. `parse(build(x)) == x` for every kind (a property test). Cluster keys and
topics never collide: `@` cannot occur in a topic name, and `wal-shared` is refused as one. All keys of one log share
the routing key `{topic}:{partition}`, so that one shard orders them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from llog.errors import InvalidArgument
from llog.limits import GROUP_SLOTS, NODE_ID_MAX
from llog.log.ids import is_object_id
from llog.stores.metadata.port import Key, check_key

# Logs with a cached key prefix, over all stores of a process.
KEYS_LOGS_MAX: Final = 65_536
TOPIC_NAME_LENGTH_MAX: Final = 249
PARTITION_MAX: Final = 2**31 - 1
OFFSET_MAX: Final = 2**63 - 1
# Together with the longest topic name these keep every key below METADATA_KEY_BYTES_MAX.
ROOT_BYTES_MAX: Final = 100
_EXTERNAL_NAME_BYTES_MAX: Final = 160
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]+")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_ACL_ID: Final = re.compile("[0-9a-f]{32}")
_OFFSET_DIGITS: Final = 20
WAL_PREFIX: Final = "wal-shared"
TOPICS_ROUTE: Final = "@topics"
CLUSTER_ROUTE: Final = "@cluster"
BACKUP_PREFIX: Final = "@backup"
SCRATCH_PREFIX: Final = "@scratch"


class Log(NamedTuple):
    """A topic-partition: the unit of order."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


def check_topic(topic: str) -> str:
    """The topic, if it follows Kafka's rules for names and is not the prefix of shared blobs."""
    if not isinstance(topic, str) or not 1 <= len(topic) <= TOPIC_NAME_LENGTH_MAX:
        raise InvalidArgument("topic", f"{topic!r:.100} must have 1 to {TOPIC_NAME_LENGTH_MAX} characters")
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        reason = "may only hold letters, digits, '.', '_' and '-', and not be '.' or '..'"
        raise InvalidArgument("topic", f"{topic!r} {reason}")
    if topic == WAL_PREFIX:
        raise InvalidArgument("topic", f"{WAL_PREFIX!r} is reserved for shared blobs; choose another name")
    return topic


def check_partition(partition: int) -> int:
    if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition <= PARTITION_MAX:
        raise InvalidArgument("partition", f"{partition!r} must be an integer from 0 to {PARTITION_MAX}")
    return partition


def offset_name(offset: int) -> str:
    """An offset as the last segment of a key: zero-padded, so that byte order is numeric order."""
    if not 0 <= offset <= OFFSET_MAX:
        raise InvalidArgument("offset", f"{offset} must be from 0 to {OFFSET_MAX}")
    return f"{offset:0{_OFFSET_DIGITS}d}"


def offset_of(name: str) -> int:
    if len(name) != _OFFSET_DIGITS or not (name.isascii() and name.isdigit()) or int(name) > OFFSET_MAX:
        raise InvalidArgument("key", f"{name!r} is not an offset of {_OFFSET_DIGITS} digits")
    return int(name)


def _external(kind: str, name: str) -> str:
    """A name chosen by users (consumer group, query) as one key segment, percent-encoded where necessary."""
    try:
        segment = quote(name, safe="@:,=+ ")
    except UnicodeEncodeError:
        raise InvalidArgument(kind, f"{name!r:.100} cannot be encoded as UTF-8") from None
    if not name or len(segment) > _EXTERNAL_NAME_BYTES_MAX:
        raise InvalidArgument(kind, f"{name!r:.100} must not be empty or longer than {_EXTERNAL_NAME_BYTES_MAX} bytes")
    return segment


def last_segment_id(uri: str) -> str:
    """The object id at the end of the URI of a blob or segment."""
    return _check_id(uri.rpartition("/")[2])


@lru_cache(maxsize=KEYS_LOGS_MAX)
def _log_prefix(log: Log) -> tuple[str, str]:
    """The common prefix of a log's keys, and their route. Cached, because a flush builds three keys per log."""
    check_topic(log.topic)
    check_partition(log.partition)
    return f"{log.topic}/partitions/{log.partition}", str(log)


class Keys:
    """Builds and parses all keys and object names below one root (`LLOG_ROOT_PREFIX`)."""

    def __init__(self, root: str = "llog") -> None:
        check_key(Key(root))
        if "@" in root or len(root.encode()) > ROOT_BYTES_MAX:
            raise InvalidArgument("root prefix", f"{root!r} must not hold '@' or be longer than {ROOT_BYTES_MAX} bytes")
        self.root = root

    # -- topics and logs ------------------------------------------------------------------------------------------
    def topics(self) -> Key:
        """The parent of all topic records."""
        return Key(f"{self.root}/@topics", TOPICS_ROUTE)

    def topic(self, topic: str) -> Key:
        return Key(f"{self.root}/@topics/{check_topic(topic)}", TOPICS_ROUTE)

    def _in_log(self, log: Log, rest: str) -> Key:
        prefix, route = _log_prefix(log)
        return Key(f"{self.root}/{prefix}/{rest}", route)

    def control(self, log: Log) -> Key:
        return self._in_log(log, "meta/control")

    def compaction(self, log: Log) -> Key:
        """The compaction record."""
        return self._in_log(log, "meta/compaction-cursor")

    def claim(self, log: Log) -> Key:
        return self._in_log(log, "meta/compactor-claim")

    def partition_delete(self, log: Log) -> Key:
        return self._in_log(log, "meta/partition-delete")

    def producers(self, log: Log) -> Key:
        return self._in_log(log, "meta/producers")

    def producer_pages(self, log: Log, as_of: int) -> Key:
        return self._in_log(log, f"meta/producers/{offset_name(as_of)}")

    def producer_page(self, log: Log, as_of: int, page: int) -> Key:
        return self._in_log(log, f"meta/producers/{offset_name(as_of)}/{offset_name(page)}")

    def index(self, log: Log) -> Key:
        """The parent of the log's index entries."""
        return self._in_log(log, "index")

    def index_entry(self, log: Log, end_offset: int) -> Key:
        return self._in_log(log, f"index/{offset_name(end_offset)}")

    def segments(self, log: Log) -> Key:
        return self._in_log(log, "segments")

    def segment(self, log: Log, segment_id: str) -> Key:
        return self._in_log(log, f"segments/{_check_id(segment_id)}")

    # -- the cluster ----------------------------------------------------------------------------------------------
    def cluster_id(self) -> Key:
        return Key(f"{self.root}/@cluster/id", CLUSTER_ROUTE)

    def brokers(self) -> Key:
        return Key(f"{self.root}/@cluster/brokers", CLUSTER_ROUTE)

    def broker(self, broker_id: str) -> Key:
        return Key(f"{self.root}/@cluster/brokers/{_external('broker id', broker_id)}", CLUSTER_ROUTE)

    def nodes(self) -> Key:
        return Key(f"{self.root}/@cluster/nodes", CLUSTER_ROUTE)

    def node(self, node_id: int) -> Key:
        """Ephemeral: held by the broker that has this node id."""
        if not 0 <= node_id <= NODE_ID_MAX:
            raise InvalidArgument("node id", f"{node_id} must be from 0 to {NODE_ID_MAX}")
        return Key(f"{self.root}/@cluster/nodes/{node_id}", CLUSTER_ROUTE)

    def coordinators(self) -> Key:
        """The parent of the claims of group coordinators."""
        return Key(f"{self.root}/@cluster/coordinators", CLUSTER_ROUTE)

    def coordinator(self, slot: int) -> Key:
        """Ephemeral: held by the node that coordinates the groups of this slot."""
        if not 0 <= slot < GROUP_SLOTS:
            raise InvalidArgument("slot", f"{slot} must be from 0 to {GROUP_SLOTS - 1}")
        return Key(f"{self.root}/@cluster/coordinators/{slot}", CLUSTER_ROUTE)

    def producer_ids(self) -> Key:
        return Key(f"{self.root}/@cluster/producer-ids", CLUSTER_ROUTE)

    def users(self) -> Key:
        """The parent of all users."""
        return Key(f"{self.root}/@cluster/users", CLUSTER_ROUTE)

    def user(self, name: str) -> Key:
        return Key(f"{self.root}/@cluster/users/{_external('user', name)}", CLUSTER_ROUTE)

    def acls(self) -> Key:
        """The parent of all access control entries."""
        return Key(f"{self.root}/@cluster/acls", CLUSTER_ROUTE)

    def acl(self, acl_id: str) -> Key:
        if not _ACL_ID.fullmatch(acl_id):
            raise InvalidArgument("acl id", f"{acl_id!r:.100} must be 32 digits in hex")
        return Key(f"{self.root}/@cluster/acls/{acl_id}", CLUSTER_ROUTE)

    def security_state(self) -> Key:
        """Changes whenever a user or an access control entry does."""
        return Key(f"{self.root}/@cluster/security", CLUSTER_ROUTE)

    def vacuum_hold(self) -> Key:
        """While this key exists, vacuum deletes nothing; an operator removes it after a restore."""
        return Key(f"{self.root}/@cluster/vacuum-hold", CLUSTER_ROUTE)

    def chore_claim(self, chore: str) -> Key:
        """Ephemeral, like a log's claim: held by the process that does a chore of the cluster, such as vacuum."""
        return Key(f"{self.root}/@cluster/chores/{_external('chore', chore)}", CLUSTER_ROUTE)

    def group(self, group: str) -> Key:
        """The head of a consumer group, and the parent of its pages and positions."""
        segment = _external("group", group)
        return Key(f"{self.root}/@cluster/groups/{segment}", f"@groups:{segment}")

    def groups(self) -> Key:
        """The parent of all heads. Each group has a route of its own, so a scan asks every shard."""
        return Key(f"{self.root}/@cluster/groups")

    def group_item(self, group: str, item: str) -> Key:
        """A position, or a page of a head (`llog.groups.records`)."""
        parent = self.group(group)
        return Key(f"{parent.path}/{_external('group item', item)}", parent.route)

    def sinks(self, query: str) -> Key:
        segment = _external("query", query)
        return Key(f"{self.root}/@cluster/sinks/{segment}", f"@sinks:{segment}")

    def sink(self, query: str, batch: int) -> Key:
        parent = self.sinks(query)
        return Key(f"{parent.path}/{offset_name(batch)}", parent.route)

    # -- objects ----------------------------------------------------------------------------------------------------
    def blobs(self) -> str:
        """The prefix of all shared blobs, for listings."""
        return f"{self.root}/{WAL_PREFIX}/"

    def blob_object(self, blob_id: str) -> str:
        return f"{self.root}/{WAL_PREFIX}/{_check_id(blob_id)}"

    def segment_objects(self, log: Log) -> str:
        return self._in_log(log, "data/compacted/").path

    def segment_object(self, log: Log, segment_id: str) -> str:
        return self._in_log(log, f"data/compacted/{_check_id(segment_id)}").path

    def cluster_marker_object(self) -> str:
        return f"{self.root}/@cluster/id"

    def clock_object(self, object_id: str) -> str:
        """Put by vacuum to read the store's clock, and deleted again."""
        return f"{self.root}/@cluster/clock/{_check_id(object_id)}"

    def backups(self) -> str:
        """The prefix of all backups of the metadata, for listings."""
        return f"{self.root}/{BACKUP_PREFIX}/"

    def backup_part_object(self, backup_id: str, part: int) -> str:
        return f"{self.root}/{BACKUP_PREFIX}/{_check_id(backup_id)}/{offset_name(part)}"

    def backup_manifest_object(self, backup_id: str) -> str:
        return f"{self.root}/{BACKUP_PREFIX}/{_check_id(backup_id)}/manifest"

    def backup_schedule_object(self, backup_id: str) -> str:
        """Marks a backup that the schedule made and may remove; a manual backup has none."""
        return f"{self.root}/{BACKUP_PREFIX}/{_check_id(backup_id)}/schedule"

    # -- parsing --------------------------------------------------------------------------------------------------
    def parse(self, path: str) -> ParsedKey | None:
        """The meaning of a metadata key; None for a key of another root or another product."""
        parts = self._below_root(path)
        if parts is None:
            return None
        if parts[0] == "@topics" and len(parts) == 2:
            return _topic_key("topic", parts[1])
        if parts[0] == "@cluster":
            return _parse_cluster(parts[1:])
        log = _parse_log(parts)
        return _parse_in_log(log, parts[3:]) if log is not None else None

    def key_of(self, path: str) -> Key:
        """The key of a path, with the route that its shape implies: for records that were listed without a route, also
        of kinds that this release does not know."""
        parts = self._below_root(path) or [""]
        log = _parse_log(parts)
        if log is not None:
            return Key(path, str(log))
        match parts:
            case ["@topics", _]:
                return Key(path, TOPICS_ROUTE)
            case ["@cluster", "groups", segment, *_]:
                return Key(path, f"@groups:{segment}")
            case ["@cluster", "sinks", segment, _, *_]:
                return Key(path, f"@sinks:{segment}")
            case ["@cluster", _, *_]:
                return Key(path, CLUSTER_ROUTE)
        return Key(path)

    def parse_object(self, name: str) -> ParsedKey | None:
        """The meaning of an object's name. Kinds: `blob`, `segment_object`, `legacy_wal`, `cluster_marker`, `clock`,
        `backup_part`, `backup_manifest`, `backup_schedule`, `scratch`, `probe`."""
        parts = self._below_root(name)
        if parts is None:
            return None
        if parts == ["@cluster", "id"]:
            return ParsedKey("cluster_marker")
        if parts[:2] == ["@cluster", "clock"] and len(parts) == 3 and is_object_id(parts[2]):
            return ParsedKey("clock", object_id=parts[2])
        if parts[0] == WAL_PREFIX and len(parts) == 2 and is_object_id(parts[1]):
            return ParsedKey("blob", object_id=parts[1])
        if parts[0] == BACKUP_PREFIX:
            return _parse_backup(parts[1:])
        if parts[0] == SCRATCH_PREFIX:
            return _parse_scratch(parts[1:])
        if parts[:2] == ["@cluster", "probes"] and len(parts) == 3:
            return ParsedKey("probe", name=parts[2])
        log = _parse_log(parts)
        if log is None or len(parts) != 6 or parts[3] != "data":
            return None
        if parts[4] == "compacted" and is_object_id(parts[5]):
            return ParsedKey("segment_object", log=log, object_id=parts[5])
        return ParsedKey("legacy_wal", log=log, object_id=parts[5]) if parts[4] == "wal" else None

    def _below_root(self, path: str) -> list[str] | None:
        prefix = self.root + "/"
        return path[len(prefix) :].split("/") if path.startswith(prefix) else None


class ParsedKey(NamedTuple):
    """`kind` is the name of the `Keys` method that builds the key; the other fields are that method's arguments. Other
    packages build some kinds: `group_page` (consumer groups), `sink_query`, `sink_head` and `sink_page` (the sink),
    `scratch` (key compaction), `probe` (`llog doctor`)."""

    kind: str
    log: Log | None = None
    topic: str = ""
    name: str = ""
    item: str = ""
    offset: int = -1
    page: int = -1
    object_id: str = ""
    node_id: int = -1
    slot: int = -1


_LOG_KINDS: Final = {
    ("meta", "control"): "control",
    ("meta", "compaction-cursor"): "compaction",
    ("meta", "compactor-claim"): "claim",
    ("meta", "partition-delete"): "partition_delete",
    ("meta", "producers"): "producers",
}


def _check_id(object_id: str) -> str:
    if not is_object_id(object_id):
        raise InvalidArgument("object id", f"{object_id!r} is not a UUIDv7 in hex")
    return object_id


def _topic_key(kind: str, topic: str) -> ParsedKey | None:
    try:
        return ParsedKey(kind, topic=check_topic(topic))
    except InvalidArgument:
        return None


def _parse_log(parts: list[str]) -> Log | None:
    if len(parts) < 4 or parts[1] != "partitions" or not _NUMBER.fullmatch(parts[2]) or int(parts[2]) > PARTITION_MAX:
        return None
    return Log(parts[0], int(parts[2])) if _topic_key("topic", parts[0]) else None


def _parse_in_log(log: Log, rest: list[str]) -> ParsedKey | None:
    kind = _LOG_KINDS.get((rest[0], rest[1])) if len(rest) == 2 else None
    if kind is not None:
        return ParsedKey(kind, log=log)
    try:
        if len(rest) == 2 and rest[0] == "index":
            return ParsedKey("index_entry", log=log, offset=offset_of(rest[1]))
        if len(rest) == 2 and rest[0] == "segments":
            return ParsedKey("segment", log=log, object_id=_check_id(rest[1]))
        if len(rest) == 4 and rest[:2] == ["meta", "producers"]:
            return ParsedKey("producer_page", log=log, offset=offset_of(rest[2]), page=offset_of(rest[3]))
    except InvalidArgument:
        return None
    return None


def _parse_backup(rest: list[str]) -> ParsedKey | None:
    if len(rest) != 2 or not is_object_id(rest[0]):
        return None
    if rest[1] == "manifest":
        return ParsedKey("backup_manifest", object_id=rest[0])
    if rest[1] == "schedule":
        return ParsedKey("backup_schedule", object_id=rest[0])
    try:
        return ParsedKey("backup_part", object_id=rest[0], page=offset_of(rest[1]))
    except InvalidArgument:
        return None


def _parse_scratch(rest: list[str]) -> ParsedKey | None:
    """An object that one pass of a job leaves for the next: job, pass, object."""
    if len(rest) != 3 or not rest[0] or not all(map(is_object_id, rest[1:])):
        return None
    return ParsedKey("scratch", name=rest[0], item=rest[1], object_id=rest[2])


def _parse_cluster(rest: list[str]) -> ParsedKey | None:
    match rest:
        case ["id"]:
            return ParsedKey("cluster_id")
        case ["producer-ids"]:
            return ParsedKey("producer_ids")
        case ["security"]:
            return ParsedKey("security_state")
        case ["users", user] if user:
            return ParsedKey("user", name=unquote(user))
        case ["acls", acl_id] if _ACL_ID.fullmatch(acl_id):
            return ParsedKey("acl", name=acl_id)
        case ["vacuum-hold"]:
            return ParsedKey("vacuum_hold")
        case ["chores", chore]:
            return ParsedKey("chore_claim", name=unquote(chore))
        case ["brokers", broker]:
            return ParsedKey("broker", name=unquote(broker))
        case ["nodes", node_id] if _NUMBER.fullmatch(node_id) and int(node_id) <= NODE_ID_MAX:
            return ParsedKey("node", node_id=int(node_id))
        case ["coordinators", slot] if _NUMBER.fullmatch(slot) and int(slot) < GROUP_SLOTS:
            return ParsedKey("coordinator", slot=int(slot))
        case ["groups", group]:
            return ParsedKey("group", name=unquote(group))
        case ["groups", group, item] if item.startswith("page:"):
            return ParsedKey("group_page", name=unquote(group), item=unquote(item))
        case ["groups", group, item]:
            return ParsedKey("group_item", name=unquote(group), item=unquote(item))
        case ["probes", probe]:
            return ParsedKey("probe", name=probe)
        case ["sinks", query, *below]:
            return _parse_sink(unquote(query), below)
    return None


def _parse_sink(query: str, rest: list[str]) -> ParsedKey | None:
    try:
        match rest:
            case []:
                return ParsedKey("sink_query", name=query)
            case ["head"]:
                return ParsedKey("sink_head", name=query)
            case [batch]:
                return ParsedKey("sink", name=query, offset=offset_of(batch))
            case [batch, plan, page] if plan:
                return ParsedKey("sink_page", name=query, item=plan, offset=offset_of(batch), page=offset_of(page))
    except InvalidArgument:
        pass
    return None
