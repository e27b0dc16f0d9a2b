"""Kafka's error codes, and the code that each of our error classes is answered with.

`code_of` is the one place where an `LlogError` becomes a code; a test walks every class. Whether a client retries, and
whether it treats an answer as fatal, depends on the code alone, so a wrong row loses or doubles records.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from llog import errors


class ErrorCode(IntEnum):
    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    INVALID_RECORD = 87
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115


# The first matching class decides.
_TABLE: Final[tuple[tuple[type[errors.LlogError], ErrorCode], ...]] = (
    (errors.OutOfOrderSequence, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (errors.DuplicateSequence, ErrorCode.DUPLICATE_SEQUENCE_NUMBER),  # clients take it for success
    (errors.ProducerEpochFenced, ErrorCode.INVALID_PRODUCER_EPOCH),
    (errors.UnknownProducer, ErrorCode.UNKNOWN_PRODUCER_ID),
    (errors.RecordTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (errors.TimestampOutOfWindow, ErrorCode.INVALID_TIMESTAMP),
    (errors.OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (errors.LogFenced, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.RecordsLost, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.InconsistentReadState, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.LogDeleted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.PartitionOutOfRange, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.PartitionNotInitialized, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.AppendUncertain, ErrorCode.REQUEST_TIMED_OUT),
    (errors.AppendNotCommitted, ErrorCode.NOT_ENOUGH_REPLICAS),
    (errors.BackPressureRejected, ErrorCode.NOT_ENOUGH_REPLICAS),
    (errors.LogBusy, ErrorCode.NOT_ENOUGH_REPLICAS),
    (errors.TopicNotFound, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.TopicAlreadyExists, ErrorCode.TOPIC_ALREADY_EXISTS),
    (errors.TopicBeingDeleted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (errors.TopicBusy, ErrorCode.REQUEST_TIMED_OUT),
    (errors.RequestTooLarge, ErrorCode.MESSAGE_TOO_LARGE),
    (errors.InvalidArgument, ErrorCode.INVALID_REQUEST),
    (errors.FormatError, ErrorCode.CORRUPT_MESSAGE),
    (errors.UncertainOutcome, ErrorCode.REQUEST_TIMED_OUT),
    (errors.MetadataFull, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.ObjectStoreFull, ErrorCode.KAFKA_STORAGE_ERROR),
    (errors.StoreError, ErrorCode.REQUEST_TIMED_OUT),
)


class Refusal(errors.LlogError):
    """A Kafka client asked for something that is refused with this code."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        self.code, self.reason = code, reason
        super().__init__(reason)


def code_of(error: errors.LlogError) -> ErrorCode:
    if isinstance(error, Refusal):
        return error.code
    for kind, code in _TABLE:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR
