from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from llog import errors
from llog.kafka.error_codes import ErrorCode, Refusal, code_of

_FACTS: Final = [
    line.split() for line in (Path(__file__).parent / "kafka_errors.txt").read_text().splitlines() if line[0] != "#"
]
KAFKA: Final = {name: int(code) for code, name, _ in _FACTS}
RETRIABLE: Final = {name for _, name, kind in _FACTS if kind == "retriable"}

DECIDED: Final = {
    "CORRUPT_MESSAGE": """
        FormatError TruncatedInput BadMagic ChecksumMismatch InvalidField UnsupportedFormat DecodedTooLarge Malformed
    """,
    "INVALID_REQUEST": "InvalidArgument ScenarioInvalid ValueTooLarge RequestRefused",
    "KAFKA_STORAGE_ERROR": """
        LogFenced RecordsLost InconsistentReadState SegmentNotFound UnknownStoreScheme StoreNotInstalled
        StoreSchemeConflict ClusterMismatch MetadataFull MetadataDenied MetadataMisconfigured ObjectStoreFull
        ObjectStoreDenied ObjectStoreClockSkew ObjectStoreMisconfigured ObjectNotFound ObjectRangeInvalid
    """,
    "UNKNOWN_TOPIC_OR_PARTITION": """
        LogDeleted PartitionOutOfRange PartitionNotInitialized TopicNotFound TopicBeingDeleted
    """,
    "REQUEST_TIMED_OUT": """
        UncertainOutcome AppendUncertain ExportUncertain TopicBusy RequestOverload RequestTooSlow StoreError StoreClosed
        ObjectStoreError ObjectAlreadyExists ObjectStoreThrottled ObjectStoreTimeout ObjectStoreUnavailable
        ObjectStoreUncertain MetadataStoreError VersionConflict MetadataTimeout MetadataUnavailable MetadataUncertain
        SessionLost
    """,
    "NOT_ENOUGH_REPLICAS": "AppendNotCommitted BackPressureRejected LogBusy",
    "OUT_OF_ORDER_SEQUENCE_NUMBER": "OutOfOrderSequence",
    "DUPLICATE_SEQUENCE_NUMBER": "DuplicateSequence",
    "INVALID_PRODUCER_EPOCH": "ProducerEpochFenced",
    "UNKNOWN_PRODUCER_ID": "UnknownProducer",
    "MESSAGE_TOO_LARGE": "RecordTooLarge RequestTooLarge",
    "INVALID_TIMESTAMP": "TimestampOutOfWindow",
    "OFFSET_OUT_OF_RANGE": "OffsetOutOfRange",
    "TOPIC_ALREADY_EXISTS": "TopicAlreadyExists",
    "NETWORK_EXCEPTION": "ClientDisconnected",
    "SASL_AUTHENTICATION_FAILED": "RequestUnauthenticated",
    "CLUSTER_AUTHORIZATION_FAILED": "RequestForbidden",
    "NON_EMPTY_GROUP": "GroupHasMembers",
    # No request of a Kafka client raises these, or they are faults of ours.
    "UNKNOWN_SERVER_ERROR": """
        LlogError LogError TopicError NotEncodable CompactionFailed VacuumRefused IllegalSegmentState RestoreRefused
        SettingsError SettingsErrors ExposureRefused ExportError ExportNotInstalled ExportRefused ExportFailed
        SinkError SinkBatchOver SinkQueryTaken SinkUploadLost SinkPlanLost SinkBusy
        SimulationError SimulationStuck SimulationTooLong SimulationForbidden SimulationActorFailed
        SimulationNotRepeatable ReplayDiverged
        LoadTestError RunNotFound RunStateWrong StackFailed LoadTestNotInstalled
        SparkError SparkNotInstalled JavaUnusable SparkSessionFailed SparkTaskFailed SparkJobFailed
    """,
}
CODES: Final = {name: ErrorCode[code] for code, names in DECIDED.items() for name in names.split()}

CLASSES: Final = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.LlogError)
}
# What requests of Kafka clients meet, and what says whether trying again helps.
BORDER: Final = (errors.LogError, errors.TopicError, errors.StoreError)


def test_every_code_of_kafka_has_its_number() -> None:
    assert {code.name: code.value for code in ErrorCode} == KAFKA


def test_a_code_is_decided_for_every_error_class() -> None:
    assert CODES.keys() == CLASSES.keys()


@pytest.mark.parametrize("name", CLASSES)
def test_an_error_is_answered_with_the_code_decided_for_its_class(name: str) -> None:
    kind = CLASSES[name]
    assert code_of(kind.__new__(kind)) is CODES[name]


@pytest.mark.parametrize("name", [n for n, kind in CLASSES.items() if issubclass(kind, BORDER) and kind.retriable])
def test_clients_try_again_after_an_error_that_may_pass(name: str) -> None:
    assert CODES[name].name in RETRIABLE


@pytest.mark.parametrize("name", [name for name, kind in CLASSES.items() if issubclass(kind, errors.UncertainOutcome)])
def test_clients_try_again_after_an_outcome_that_is_not_known(name: str) -> None:
    assert CODES[name] is ErrorCode.REQUEST_TIMED_OUT


def test_a_refusal_is_answered_with_its_own_code() -> None:
    assert code_of(Refusal(ErrorCode.POLICY_VIOLATION, "no")) is ErrorCode.POLICY_VIOLATION
