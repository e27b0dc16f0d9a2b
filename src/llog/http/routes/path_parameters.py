"""Names and numbers that stand in paths, with what the description says of them.

Only told here: `check_topic` and `check_partition` check them, and say in words what is wrong.
"""

from __future__ import annotations

from typing import Annotated

from litestar.params import PathParameter

from llog.http.json.schemas import TOPIC_PATTERN
from llog.log.keys import PARTITION_MAX, TOPIC_NAME_LENGTH_MAX

TopicInPath = Annotated[
    str, PathParameter(schema_extra={"pattern": TOPIC_PATTERN, "min_length": 1, "max_length": TOPIC_NAME_LENGTH_MAX})
]
PartitionInPath = Annotated[int, PathParameter(schema_extra={"minimum": 0, "maximum": PARTITION_MAX})]
