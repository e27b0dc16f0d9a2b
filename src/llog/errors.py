"""Every error of llog, in one tree.

An error carries fields, says what is wrong and what the caller can do. "May have happened" is a type of its
own (`UncertainOutcome`): whoever catches it must find out before trying again, never assume failure.

    LlogError
    ├── SettingsError              a variable has a value we cannot use
    │   ├── SettingsErrors         several have; `errors` lists them
    │   └── ExposureRefused        other machines could reach an address that is not protected
    ├── InvalidArgument            a caller passed a key, name or value that can never be accepted
    │   ├── ValueTooLarge          … because of its size
    │   └── UnknownStoreScheme     no installed store answers to the scheme of this URL
    ├── StoreNotInstalled          a store is known, but the packages it needs are missing or broken
    ├── StoreSchemeConflict        two installed packages claim one scheme
    ├── FormatError                bytes are not what their object claims to be
    │   ├── TruncatedInput         they end too early
    │   ├── BadMagic               they do not begin (or end) as the format says
    │   ├── ChecksumMismatch       they were changed
    │   ├── InvalidField           a length, count or field contradicts the rest
    │   ├── UnsupportedFormat      a version, codec or encoding we do not read
    │   └── DecodedTooLarge        inflating them would pass a named limit
    ├── ClusterMismatch            an object store and the metadata store do not belong together
    ├── VacuumRefused              vacuum would not be safe now; nothing was deleted
    ├── IllegalSegmentState        a segment record was to move to a state that cannot follow its own
    ├── RestoreRefused             a restore would harm what is there, or cannot be made safe
    ├── ExportError                an export did not do what was asked
    │   ├── ExportNotInstalled         a package it needs is not installed
    │   ├── ExportRefused              topic, target and options do not belong together: nothing was written
    │   ├── ExportFailed               its tasks failed; what was committed before stays; see `retriable`
    │   └── ExportUncertain            the target's catalogue gave no answer to a commit (also UncertainOutcome)
    ├── RequestRefused             a front end turned a request away before any log was asked
    │   ├── RequestTooLarge            its body passes the limit
    │   ├── RequestTooSlow             it did not arrive in time
    │   ├── RequestUnauthenticated     it carries no token, or one that nobody gave out
    │   ├── RequestForbidden           its token is not for this
    │   └── RequestOverload            there is no room for it now; ask again later
    ├── UncertainOutcome           (mixin) the operation may have happened
    ├── SparkError                 Spark did not do what was asked
    │   ├── SparkNotInstalled          pyspark is not installed, or too old
    │   ├── JavaUnusable               no Java that Spark can run on; lists where it was looked for
    │   ├── SparkSessionFailed         no session could be had
    │   ├── SparkTaskFailed            each attempt at a task ended by an error nobody foresaw; carries that one
    │   └── SparkJobFailed             a job ended without all its outcomes for a reason outside its tasks
    ├── SinkError                  a batch of a Spark query could not be written into its logs
    │   ├── SinkBatchOver              the query has gone on to a later batch: nothing was written
    │   ├── SinkQueryTaken             another checkpoint, or topic, has this query id: nothing was written
    │   ├── SinkUploadLost             blobs were removed before a plan was recorded: nothing was written
    │   ├── SinkPlanLost               blobs of a recorded plan are gone: it can never be finished
    │   └── SinkBusy                   the query's records kept changing, or no answers came; ask again
    ├── SimulationError            a simulated run cannot go on (llog.testing.sim)
    │   ├── SimulationStuck        nobody can do anything; names the actors and what they wait for
    │   │   └── SimulationTooLong  it took more steps than it may
    │   ├── SimulationForbidden    simulated code asked for a thread, a socket or a signal
    │   ├── SimulationActorFailed  an actor ended with an error its scenario does not allow
    │   ├── SimulationNotRepeatable  one seed gave two different runs
    │   └── ReplayDiverged         recorded choices do not fit this run
    ├── LogError                   one log (topic and partition) did not do what was asked; `retriable` as below
    │   ├── PartitionNotInitialized    nobody has created this log
    │   ├── OffsetOutOfRange           below the log's start or beyond its end; carries both
    │   ├── RecordsLost                records a reader still wanted are gone: retention, or a new life of the topic
    │   ├── InconsistentReadState      metadata and objects contradict each other, after looking again
    │   ├── LogFenced                  closed to appends by an operator (or by us, with a reason)
    │   ├── LogDeleted                 its topic is deleted or being deleted
    │   ├── PartitionOutOfRange        the topic has, and may have, no such partition
    │   ├── SegmentNotFound            its catalogue has no segment of this id (any more)
    │   ├── OutOfOrderSequence         an idempotent producer skipped a sequence number
    │   ├── ProducerEpochFenced        a newer epoch of that producer is known
    │   ├── RecordTooLarge             a record passes its topic's max.message.bytes; carries both sizes
    │   ├── LogBusy                    its records kept changing under us; ask again
    │   ├── CompactionFailed           a task could not rewrite a run of it; carries the task's error
    │   ├── AppendNotCommitted         nothing was appended; append again
    │   ├── AppendUncertain            the append may have happened (also UncertainOutcome)
    │   └── BackPressureRejected       too much is buffered; nothing was accepted
    ├── TopicError                 one topic, as a whole, did not do what was asked; `retriable` as below
    │   ├── TopicNotFound              there is no such topic (any more)
    │   ├── TopicAlreadyExists         it is there already
    │   ├── TopicBeingDeleted          its deletion is not finished; ask again afterwards
    │   └── TopicBusy                  its record kept changing under us; ask again
    └── StoreError                 a store did not do what was asked; `retriable` says whether asking again may help
        ├── ObjectStoreError
        │   ├── ObjectNotFound
        │   ├── ObjectAlreadyExists
        │   ├── ObjectRangeInvalid     the range lies outside the object
        │   ├── ObjectStoreThrottled   slow down (503, 429): nothing happened
        │   ├── ObjectStoreTimeout     a read got no answer in time
        │   ├── ObjectStoreUnavailable no connection: nothing happened
        │   ├── ObjectStoreUncertain   a write got no answer (also UncertainOutcome)
        │   ├── ObjectStoreDenied      credentials or permissions
        │   ├── ObjectStoreMisconfigured  bucket or directory missing or unusable, found at start
        │   └── ObjectStoreFull        no space left
        ├── StoreClosed                used after close()
        └── MetadataStoreError
            ├── VersionConflict        the expected version (or absence) was not there: nothing happened
            ├── MetadataTimeout        a read got no answer in time
            ├── MetadataUnavailable    no leader, no connection: nothing happened
            ├── MetadataUncertain      a write got no answer (also UncertainOutcome)
            ├── MetadataDenied         credentials or permissions
            ├── MetadataMisconfigured  the store is there but cannot be used as set up
            ├── MetadataFull           no space left
            └── SessionLost            the session an ephemeral record was bound to is gone: nothing happened
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "AppendNotCommitted",
    "AppendUncertain",
    "BackPressureRejected",
    "BadMagic",
    "ChecksumMismatch",
    "ClusterMismatch",
    "CompactionFailed",
    "DecodedTooLarge",
    "ExportError",
    "ExportFailed",
    "ExportNotInstalled",
    "ExportRefused",
    "ExportUncertain",
    "ExposureRefused",
    "FormatError",
    "IllegalSegmentState",
    "InconsistentReadState",
    "InvalidArgument",
    "InvalidField",
    "JavaUnusable",
    "LlogError",
    "LogBusy",
    "LogDeleted",
    "LogError",
    "LogFenced",
    "MetadataDenied",
    "MetadataFull",
    "MetadataMisconfigured",
    "MetadataStoreError",
    "MetadataTimeout",
    "MetadataUnavailable",
    "MetadataUncertain",
    "ObjectAlreadyExists",
    "ObjectNotFound",
    "ObjectRangeInvalid",
    "ObjectStoreDenied",
    "ObjectStoreError",
    "ObjectStoreFull",
    "ObjectStoreMisconfigured",
    "ObjectStoreThrottled",
    "ObjectStoreTimeout",
    "ObjectStoreUnavailable",
    "ObjectStoreUncertain",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "PartitionNotInitialized",
    "PartitionOutOfRange",
    "ProducerEpochFenced",
    "RecordTooLarge",
    "RecordsLost",
    "ReplayDiverged",
    "RequestForbidden",
    "RequestOverload",
    "RequestRefused",
    "RequestTooLarge",
    "RequestTooSlow",
    "RequestUnauthenticated",
    "RestoreRefused",
    "SegmentNotFound",
    "SessionLost",
    "SettingsError",
    "SettingsErrors",
    "SimulationActorFailed",
    "SimulationError",
    "SimulationForbidden",
    "SimulationNotRepeatable",
    "SimulationStuck",
    "SimulationTooLong",
    "SinkBatchOver",
    "SinkBusy",
    "SinkError",
    "SinkPlanLost",
    "SinkQueryTaken",
    "SinkUploadLost",
    "SparkError",
    "SparkJobFailed",
    "SparkNotInstalled",
    "SparkSessionFailed",
    "SparkTaskFailed",
    "StoreClosed",
    "StoreError",
    "StoreNotInstalled",
    "StoreSchemeConflict",
    "TopicAlreadyExists",
    "TopicBeingDeleted",
    "TopicBusy",
    "TopicError",
    "TopicNotFound",
    "TruncatedInput",
    "UncertainOutcome",
    "UnknownStoreScheme",
    "UnsupportedFormat",
    "VacuumRefused",
    "ValueTooLarge",
    "VersionConflict",
]


class LlogError(Exception):
    """The root: catch this to catch everything llog raises on purpose."""


class SettingsError(LlogError):
    """A setting cannot be used; names the variable, the value and what is accepted."""

    def __init__(self, variable: str, value: str, accepted: str) -> None:
        self.variable, self.value, self.accepted = variable, value, accepted
        super().__init__(f"{variable}={value!r} is not usable: {accepted}")


class SettingsErrors(SettingsError):
    """Several settings cannot be used, all of them in `errors`; `variable` and the others describe the first."""

    def __init__(self, errors: Sequence[SettingsError]) -> None:
        self.errors = tuple(errors)
        first = self.errors[0]
        super().__init__(first.variable, first.value, first.accepted)
        self.args = ("\n".join([f"{len(self.errors)} settings are not usable:", *(f"  {e}" for e in self.errors)]),)


class ExposureRefused(SettingsError):
    """`missing` names the variables that would protect the address."""

    def __init__(self, variable: str, host: str, missing: Sequence[str]) -> None:
        self.missing = tuple(missing)
        wanted = " and ".join(self.missing)
        super().__init__(
            variable, host, f"other machines reach this address: set {wanted}, or LLOG_INSECURE=1 to go without"
        )


class InvalidArgument(LlogError, ValueError):
    """A caller's value can never be accepted; names the argument."""

    def __init__(self, argument: str, reason: str) -> None:
        self.argument, self.reason = argument, reason
        super().__init__(f"{argument}: {reason}")


class ValueTooLarge(InvalidArgument):
    def __init__(self, argument: str, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        super().__init__(argument, f"{size} bytes, more than the limit of {limit}")


class UnknownStoreScheme(InvalidArgument):
    """No installed store answers to this URL; `installed` lists the schemes that would do."""

    def __init__(self, url: str, kind: str, installed: Sequence[str], hint: str = "") -> None:
        self.url, self.installed = url, tuple(installed)
        super().__init__(f"{kind} URL {url!r}", f"no store for this scheme; installed: {', '.join(installed)}{hint}")


class StoreNotInstalled(LlogError):
    """The store is known here but cannot be loaded; `remedy` says what to do."""

    def __init__(self, url: str, reason: str, remedy: str) -> None:
        self.url, self.reason, self.remedy = url, reason, remedy
        super().__init__(f"the store of {url!r} cannot be loaded ({reason}): {remedy}")


class StoreSchemeConflict(LlogError):
    """Two packages claim one scheme; which one opens the store must not depend on chance."""

    def __init__(self, scheme: str, claims: Sequence[str]) -> None:
        self.scheme, self.claims = scheme, tuple(claims)
        super().__init__(f"the scheme {scheme!r} is claimed by {' and by '.join(claims)}: uninstall one of them")


class FormatError(LlogError):
    """Bytes are not what they claim to be. `source` names the object (a URI, a request, a file)."""

    def __init__(self, source: str, reason: str) -> None:
        self.source, self.reason = source, reason
        super().__init__(f"{source}: {reason}")


class TruncatedInput(FormatError):
    pass


class BadMagic(FormatError):
    pass


class ChecksumMismatch(FormatError):
    def __init__(self, source: str, what: str, stored: int, computed: int) -> None:
        self.stored, self.computed = stored, computed
        super().__init__(source, f"{what}: stored checksum {stored:#010x}, computed {computed:#010x}")


class InvalidField(FormatError):
    pass


class UnsupportedFormat(FormatError):
    pass


class DecodedTooLarge(FormatError):
    pass


class ClusterMismatch(LlogError):
    """`store` is the object store's URL; `theirs` the cluster its marker names (empty: it carries none)."""

    def __init__(self, store: str, reason: str, *, ours: str = "", theirs: str = "") -> None:
        self.store, self.reason, self.ours, self.theirs = store, reason, ours, theirs
        super().__init__(f"{store}: {reason}")


class VacuumRefused(LlogError):
    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"vacuum does not run: {reason}")


class IllegalSegmentState(LlogError):
    def __init__(self, segment_id: str, state: str, wanted: str) -> None:
        self.segment_id, self.state, self.wanted = segment_id, state, wanted
        super().__init__(f"segment {segment_id}: {wanted} cannot follow {state}")


class RestoreRefused(LlogError):
    """Nothing was changed by what was refused; the message says what to do."""


class RequestRefused(LlogError):
    """Nothing of the request was done; the message says why."""


class RequestTooLarge(RequestRefused):
    def __init__(self, limit_bytes: int, variable: str) -> None:
        self.limit_bytes = limit_bytes
        super().__init__(f"the body is larger than {limit_bytes} bytes ({variable}): send less at once")


class RequestTooSlow(RequestRefused):
    def __init__(self, waited_ms: int) -> None:
        self.waited_ms = waited_ms
        super().__init__(f"the body was not complete after {waited_ms} ms, and came too slowly to go on waiting")


class RequestUnauthenticated(RequestRefused):
    pass


class RequestForbidden(RequestRefused):
    pass


class RequestOverload(RequestRefused):
    pass


class UncertainOutcome(LlogError):
    """The operation may or may not have happened. Read before trying again (PROTOCOL R4)."""


class ExportError(LlogError):
    pass


class ExportNotInstalled(ExportError):
    def __init__(self, package: str, reason: str) -> None:
        self.package, self.reason = package, reason
        super().__init__(f'this export needs {package} ({reason}): pip install "leaderless-log[export]"')


class ExportRefused(ExportError):
    """`target` names where the export was to go."""

    def __init__(self, target: str, reason: str) -> None:
        self.target, self.reason = target, reason
        super().__init__(f"{target}: {reason}")


class ExportFailed(ExportError):
    def __init__(self, target: str, reason: str, *, retriable: bool = False) -> None:
        self.target, self.reason, self.retriable = target, reason, retriable
        super().__init__(f"{target}: {reason}")


class ExportUncertain(ExportError, UncertainOutcome):
    """The commit may have happened. Exporting again is safe: it begins with a look at what the target says."""

    def __init__(self, target: str, reason: str) -> None:
        self.target, self.reason = target, reason
        super().__init__(f"{target}: {reason}; export again, which adds nothing twice")


class LogError(LlogError):
    """One log did not do what was asked. `retriable`: asking again may help, without changing anything first."""

    retriable = False
    outcomes: list[object]
    """Raised by an append of several logs: what became of each."""

    def __init__(self, topic: str, partition: int, reason: str) -> None:
        self.topic, self.partition, self.reason = topic, partition, reason
        self.outcomes = []
        super().__init__(f"{topic}:{partition}: {reason}")


class PartitionNotInitialized(LogError):
    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(topic, partition, "not initialized: append to it, or create the topic, first")


class OffsetOutOfRange(LogError):
    """`log_start_offset` is the first readable offset, `next_offset` the one the next append gets."""

    def __init__(self, topic: str, partition: int, offset: int, log_start_offset: int, next_offset: int) -> None:
        self.offset, self.log_start_offset, self.next_offset = offset, log_start_offset, next_offset
        super().__init__(topic, partition, f"offset {offset} is outside {log_start_offset} … {next_offset - 1}")


class RecordsLost(LogError):
    """Retention, or whoever deleted the topic, was faster than a reader; `offset` is the first that it still wanted."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        self.offset = offset
        super().__init__(topic, partition, f"offset {offset} is lost: {reason}")


class InconsistentReadState(LogError):
    pass


class LogFenced(LogError):
    pass


class LogDeleted(LogError):
    pass


class PartitionOutOfRange(LogError):
    pass


class SegmentNotFound(LogError):
    def __init__(self, topic: str, partition: int, segment_id: str) -> None:
        self.segment_id = segment_id
        super().__init__(topic, partition, f"no segment {segment_id} in its catalogue")


class OutOfOrderSequence(LogError):
    pass


class ProducerEpochFenced(LogError):
    pass


class RecordTooLarge(LogError):
    def __init__(self, topic: str, partition: int, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        super().__init__(
            topic, partition, f"a record takes {size} bytes, more than the topic's max.message.bytes of {limit}"
        )


class LogBusy(LogError):
    retriable = True


class CompactionFailed(LogError):
    """`error_type` and `error` are the task's; nothing of the log was changed."""

    def __init__(self, topic: str, partition: int, error_type: str, error: str) -> None:
        self.error_type, self.error = error_type, error
        super().__init__(topic, partition, f"{error_type}: {error}")


class AppendNotCommitted(LogError):
    retriable = True


class AppendUncertain(LogError, UncertainOutcome):
    """Nobody can tell any more whether the append happened. Repeating it may store its records twice."""


class BackPressureRejected(LogError):
    retriable = True


class TopicError(LlogError):
    """One topic did not do what was asked. `retriable`: asking again may help, without changing anything first."""

    retriable = False

    def __init__(self, topic: str, reason: str) -> None:
        self.topic, self.reason = topic, reason
        super().__init__(f"{topic}: {reason}")


class TopicNotFound(TopicError):
    pass


class TopicAlreadyExists(TopicError):
    pass


class TopicBeingDeleted(TopicError):
    retriable = True


class TopicBusy(TopicError):
    retriable = True


class StoreError(LlogError):
    """A store did not do what was asked. `operation` and `subject` name the call, `retriable` whether to ask again."""

    retriable = False

    def __init__(self, operation: str, subject: str, reason: str = "") -> None:
        self.operation, self.subject, self.reason = operation, subject, reason
        super().__init__(f"{operation} {subject}: {reason or type(self).__name__}")


class ObjectStoreError(StoreError):
    pass


class ObjectNotFound(ObjectStoreError):
    pass


class ObjectAlreadyExists(ObjectStoreError):
    pass


class ObjectRangeInvalid(ObjectStoreError):
    pass


class ObjectStoreThrottled(ObjectStoreError):
    retriable = True


class ObjectStoreTimeout(ObjectStoreError):
    retriable = True


class ObjectStoreUnavailable(ObjectStoreError):
    retriable = True


class ObjectStoreUncertain(ObjectStoreError, UncertainOutcome):
    retriable = True


class ObjectStoreDenied(ObjectStoreError):
    pass


class ObjectStoreMisconfigured(ObjectStoreError):
    pass


class ObjectStoreFull(ObjectStoreError):
    pass


class MetadataStoreError(StoreError):
    pass


class VersionConflict(MetadataStoreError):
    """The record was not at the expected version (or not absent). Some stores do not say what they found."""

    def __init__(self, operation: str, subject: str, expected: int) -> None:
        self.expected = expected
        super().__init__(operation, subject, "exists already" if expected < 0 else f"not at version {expected}")


class MetadataTimeout(MetadataStoreError):
    retriable = True


class MetadataUnavailable(MetadataStoreError):
    retriable = True


class MetadataUncertain(MetadataStoreError, UncertainOutcome):
    retriable = True


class MetadataDenied(MetadataStoreError):
    pass


class MetadataMisconfigured(MetadataStoreError):
    pass


class MetadataFull(MetadataStoreError):
    pass


class SessionLost(MetadataStoreError):
    pass


class StoreClosed(StoreError):
    pass


class SinkError(LlogError):
    """`query` and `batch` name the batch. `retriable`: asking again may help; what is there is not written twice."""

    retriable = False

    def __init__(self, query: str, batch: int, reason: str) -> None:
        self.query, self.batch, self.reason = query, batch, reason
        super().__init__(f"query {query}, batch {batch}: {reason}")


class SinkBatchOver(SinkError):
    def __init__(self, query: str, batch: int, latest: int) -> None:
        self.latest = latest
        super().__init__(
            query,
            batch,
            f"the query has gone on to batch {latest}: nothing was written. A new query needs a queryId of its own",
        )


class SinkQueryTaken(SinkError):
    """`theirs` is what the query id belongs to: a checkpoint, by its id, or the writes to one topic, in words."""

    def __init__(self, query: str, batch: int, ours: str, theirs: str) -> None:
        self.ours, self.theirs = ours, theirs
        owner, other = (text if " " in text else f"checkpoint {text}" for text in (theirs, ours))
        super().__init__(
            query,
            batch,
            f"this query id belongs to {owner}, this is {other}: nothing was written. A new checkpoint counts its "
            "batches from 0, and a batch may go to several topics: each of them needs a queryId of its own",
        )


class SinkUploadLost(SinkError):
    pass


class SinkPlanLost(SinkError):
    pass


class SinkBusy(SinkError):
    retriable = True


class SimulationError(LlogError):
    """A simulated run cannot go on, or was asked for something it must not do."""


class SimulationStuck(SimulationError):
    """Nobody can do anything any more. `waits` says of each actor what it waits for."""

    def __init__(self, reason: str, waits: Sequence[str]) -> None:
        self.reason, self.waits = reason, tuple(waits)
        super().__init__("\n".join([reason, *(f"  {wait}" for wait in self.waits)]))


class SimulationTooLong(SimulationStuck):
    pass


class SimulationForbidden(SimulationError):
    def __init__(self, what: str, instead: str) -> None:
        self.what, self.instead = what, instead
        super().__init__(f"{what} is not possible in a simulation: {instead}")


class SimulationActorFailed(SimulationError):
    """Its cause is the error that ended the actor."""

    def __init__(self, actor: str, error: BaseException) -> None:
        self.actor, self.error = actor, error
        super().__init__(f"{actor} failed: {type(error).__name__}: {error}")


class SimulationNotRepeatable(SimulationError):
    """The code under simulation draws on something the seed does not decide: a clock, a set's order, an address."""

    def __init__(self, scenario: str, first: str, second: str) -> None:
        self.scenario, self.first, self.second = scenario, first, second
        super().__init__(f"{scenario}: one seed, two runs: first {first!r}, then {second!r}")


class ReplayDiverged(SimulationError):
    def __init__(self, position: int, choice: int, options: int) -> None:
        self.position, self.choice, self.options = position, choice, options
        super().__init__(f"choice {position} of the recording is {choice}, but this run offers {options} options there")


class SparkError(LlogError):
    """Spark, or what it needs, did not do what was asked."""


class SparkNotInstalled(SparkError):
    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f'Spark cannot be used ({reason}): pip install "leaderless-log[spark]"')


class JavaUnusable(SparkError):
    """`found` says, place by place, what was there; `advice` what to do. `named`: by JAVA_HOME, which counts alone."""

    def __init__(self, found: Sequence[str], wanted: int, *, named: bool = False) -> None:
        self.found, self.wanted, self.named = tuple(found), wanted, named
        self.advice = (
            "point JAVA_HOME at another, or unset it: then a Java on the PATH is used, or else the one that"
            ' pip install "leaderless-log[spark]" brings'
            if named
            else "set JAVA_HOME to one, or install one (Debian: apt install openjdk-17-jre-headless; anywhere:"
            ' pip install "leaderless-log[spark]" brings one)'
        )
        super().__init__(f"Spark needs Java {wanted} or newer ({'; '.join(self.found)}): {self.advice}")


class SparkSessionFailed(SparkError):
    def __init__(self, master: str, reason: str) -> None:
        self.master, self.reason = master, reason
        super().__init__(f"no Spark session on {master}: {reason}")


class SparkTaskFailed(SparkError):
    """`error_type` and `error` are the Python error's; `trace` is its traceback where it was raised."""

    def __init__(self, task: str, error_type: str, error: str, trace: str = "") -> None:
        self.task, self.error_type, self.error, self.trace = task, error_type, error, trace
        super().__init__(f"{task} failed: {error_type}: {error}")


class SparkJobFailed(SparkError):
    """Nothing is known of the items without an outcome: their tasks may have run, and count for nothing."""

    def __init__(self, task: str, reason: str) -> None:
        self.task, self.reason = task, reason
        super().__init__(f"the Spark job of {task} did not end well: {reason}")
