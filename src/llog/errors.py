"""Every error of llog, in one tree.

An error carries fields and says what is wrong and what the caller can do. An operation that may have happened raises
an `UncertainOutcome`: the caller must read before it tries again, and must not assume failure.

    LlogError
    ├── SettingsError              a setting has an invalid value
    │   ├── SettingsErrors         several settings have; `errors` lists them
    │   └── ExposureRefused        other machines could reach an unprotected address
    ├── InvalidArgument            an argument can never be accepted
    │   ├── ValueTooLarge          it exceeds a size limit
    │   ├── NotEncodable           a Kafka message has a value that its version cannot carry; names the field
    │   └── UnknownStoreScheme     no installed store has the scheme of this URL
    ├── StoreNotInstalled          the packages of a known store are missing or broken
    ├── StoreSchemeConflict        two installed packages claim the same scheme
    ├── FormatError                bytes are not in the format of their object
    │   ├── TruncatedInput         they end too early
    │   ├── BadMagic               they begin or end with the wrong magic
    │   ├── ChecksumMismatch       their checksum is wrong
    │   ├── InvalidField           a length, count or field contradicts the rest
    │   ├── UnsupportedFormat      an unknown version, codec or encoding
    │   ├── DecodedTooLarge        they would decompress to more than a limit
    │   └── Malformed              a Kafka message is not as its version prescribes; names field and position
    ├── ClusterMismatch            an object store and the metadata store do not belong together
    ├── VacuumRefused              vacuum is not safe now; nothing was deleted
    ├── IllegalSegmentState        a segment record cannot move to that state
    ├── GroupHasMembers            only the members of a consumer group may commit its positions now
    ├── RestoreRefused             a restore would damage existing data, or is not safe
    ├── ExportError                an export failed
    │   ├── ExportNotInstalled         a package that it needs is not installed
    │   ├── ExportRefused              topic, target and options do not fit: nothing was written
    │   ├── ExportFailed               its tasks failed; earlier commits stay; see `retriable`
    │   └── ExportUncertain            the target's catalogue did not answer a commit (also UncertainOutcome)
    ├── RequestRefused             a front end refused a request before it reached a log
    │   ├── RequestTooLarge            its body exceeds the limit
    │   ├── RequestTooSlow             it did not arrive in time
    │   ├── RequestUnauthenticated     it has no token, or an unknown one
    │   ├── RequestForbidden           its token does not allow this
    │   └── RequestOverload            the server is full; try again later
    ├── UncertainOutcome           (mixin) the operation may have happened
    ├── LoadTestError              a load test cannot begin or go on
    │   ├── ScenarioInvalid            a scenario has an invalid field; names it
    │   ├── RunNotFound                there is no such run, or its files are damaged
    │   ├── RunStateWrong              the run is in a state in which this cannot be done
    │   ├── StackFailed                a process of a run could not be started, or ended early
    │   └── LoadTestNotInstalled       the packages of the extra `loadtest` are missing
    ├── SparkError                 a Spark operation failed
    │   ├── SparkNotInstalled          pyspark is not installed, or too old
    │   ├── JavaUnusable               no usable Java was found; lists the places searched
    │   ├── SparkSessionFailed         no session could be started
    │   ├── SparkTaskFailed            every attempt of a task failed with an unexpected error, which it carries
    │   └── SparkJobFailed             a job ended early for a reason outside its tasks
    ├── SinkError                  a batch of a Spark query could not be written
    │   ├── SinkBatchOver              the query is at a later batch: nothing was written
    │   ├── SinkQueryTaken             another checkpoint or topic owns this query id: nothing was written
    │   ├── SinkUploadLost             blobs were removed before their plan was recorded: nothing was written
    │   ├── SinkPlanLost               blobs of a recorded plan are missing: it can never be finished
    │   └── SinkBusy                   the query's records kept changing, or the store did not answer; try again
    ├── SimulationError            a simulated run cannot continue (llog.testing.sim)
    │   ├── SimulationStuck        no actor can run; lists what each waits for
    │   │   └── SimulationTooLong  it exceeded its number of steps
    │   ├── SimulationForbidden    simulated code used a thread, a socket or a signal
    │   ├── SimulationActorFailed  an actor failed with an error that its scenario does not allow
    │   ├── SimulationNotRepeatable  one seed gave two different runs
    │   └── ReplayDiverged         recorded choices do not fit this run
    ├── LogError                   an operation on one log (topic and partition) failed; `retriable` as below
    │   ├── PartitionNotInitialized    the log does not exist yet
    │   ├── OffsetOutOfRange           before the start or after the end of the log; carries both
    │   ├── RecordsLost                records were removed before a reader got them: retention, or a new incarnation
    │   ├── InconsistentReadState      metadata and objects still contradict each other after a strict read
    │   ├── LogFenced                  closed to appends by an operator, or by llog with a reason
    │   ├── LogDeleted                 its topic is deleted or being deleted
    │   ├── PartitionOutOfRange        the topic has no such partition, and this call does not add it
    │   ├── SegmentNotFound            the catalogue has no segment with this id
    │   ├── OutOfOrderSequence         an idempotent producer skipped a sequence number
    │   ├── DuplicateSequence          the batch is in the log, too long ago to know its offsets: nothing was appended
    │   ├── ProducerEpochFenced        a newer epoch of the producer exists
    │   ├── UnknownProducer            the log may have forgotten the producer: it goes on with a new epoch
    │   ├── RecordTooLarge             a record exceeds its topic's max.message.bytes; carries both sizes
    │   ├── TimestampOutOfWindow       a record is older or newer than its topic allows; carries the window
    │   ├── LogBusy                    its records kept changing; try again
    │   ├── CompactionFailed           a task could not rewrite a run; carries the task's error
    │   ├── AppendNotCommitted         nothing was appended; try again
    │   ├── AppendUncertain            the append may have happened (also UncertainOutcome)
    │   └── BackPressureRejected       the buffer is full; nothing was accepted
    ├── TopicError                 an operation on a whole topic failed; `retriable` as below
    │   ├── TopicNotFound              the topic does not exist
    │   ├── TopicAlreadyExists         the topic exists already
    │   ├── TopicBeingDeleted          its deletion is not finished; try again later
    │   └── TopicBusy                  its record kept changing; try again
    └── StoreError                 a store operation failed; `retriable` says whether trying again may help
        ├── ObjectStoreError
        │   ├── ObjectNotFound
        │   ├── ObjectAlreadyExists
        │   ├── ObjectRangeInvalid     the range lies outside the object
        │   ├── ObjectStoreThrottled   the store asks for fewer requests (503, 429): nothing happened
        │   ├── ObjectStoreTimeout     a read got no answer in time
        │   ├── ObjectStoreUnavailable no connection: nothing happened
        │   ├── ObjectStoreUncertain   a write got no answer (also UncertainOutcome)
        │   ├── ObjectStoreDenied      credentials or permissions
        │   │   └── ObjectStoreClockSkew   the clocks of this machine and of the store differ too much
        │   ├── ObjectStoreMisconfigured  bucket or directory missing or unusable
        │   └── ObjectStoreFull        no space left
        ├── StoreClosed                used after close()
        └── MetadataStoreError
            ├── VersionConflict        the record is not at the expected version: nothing happened
            ├── MetadataTimeout        a read got no answer in time
            ├── MetadataUnavailable    no leader, no connection: nothing happened
            ├── MetadataUncertain      a write got no answer (also UncertainOutcome)
            ├── MetadataDenied         credentials or permissions
            ├── MetadataMisconfigured  the store cannot be used as configured
            ├── MetadataFull           no space left
            └── SessionLost            the session of an ephemeral record has ended: nothing happened
"""

from __future__ import annotations

from collections.abc import Sequence


class LlogError(Exception):
    """The root of every error that llog raises on purpose."""


class SettingsError(LlogError):
    """A setting has an invalid value; names the variable, the value and the accepted values."""

    def __init__(self, variable: str, value: str, accepted: str) -> None:
        self.variable, self.value, self.accepted = variable, value, accepted
        super().__init__(f"{variable}={value!r} is not usable: {accepted}")


class SettingsErrors(SettingsError):
    """Several settings have invalid values, listed in `errors`; the other fields describe the first."""

    def __init__(self, errors: Sequence[SettingsError]) -> None:
        self.errors = tuple(errors)
        first = self.errors[0]
        super().__init__(first.variable, first.value, first.accepted)
        self.args = ("\n".join([f"{len(self.errors)} settings are not usable:", *(f"  {e}" for e in self.errors)]),)


class ExposureRefused(SettingsError):
    """`missing` names the variables that would protect the address."""

    def __init__(self, variable: str, host: str, missing: Sequence[str]) -> None:
        self.missing = tuple(missing)
        wanted = f"set {' and '.join(self.missing)}, or LLOG_INSECURE=1 to go without"
        super().__init__(variable, host, f"other machines reach this address: {wanted}")


class InvalidArgument(LlogError, ValueError):
    """An argument can never be accepted; names it."""

    def __init__(self, argument: str, reason: str) -> None:
        self.argument, self.reason = argument, reason
        super().__init__(f"{argument}: {reason}")


class ValueTooLarge(InvalidArgument):
    def __init__(self, argument: str, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        super().__init__(argument, f"{size} bytes, more than the limit of {limit}")


class UnknownStoreScheme(InvalidArgument):
    """No installed store has the scheme of this URL; `installed` lists the known schemes."""

    def __init__(self, url: str, kind: str, installed: Sequence[str], hint: str = "") -> None:
        self.url, self.installed = url, tuple(installed)
        super().__init__(f"{kind} URL {url!r}", f"no store for this scheme; installed: {', '.join(installed)}{hint}")


class NotEncodable(InvalidArgument):
    """`field` is the path of a field of a Kafka message, or of several that are written at once."""

    def __init__(self, message: str, version: int, field: str, reason: str) -> None:
        self.message, self.version, self.field = message, version, field
        super().__init__(f"{message} v{version}, {field}", reason)


class StoreNotInstalled(LlogError):
    """A known store cannot be loaded; `remedy` says what to do."""

    def __init__(self, url: str, reason: str, remedy: str) -> None:
        self.url, self.reason, self.remedy = url, reason, remedy
        super().__init__(f"the store of {url!r} cannot be loaded ({reason}): {remedy}")


class StoreSchemeConflict(LlogError):
    """Two packages claim the same scheme, and nothing says which one opens the store."""

    def __init__(self, scheme: str, claims: Sequence[str]) -> None:
        self.scheme, self.claims = scheme, tuple(claims)
        super().__init__(f"the scheme {scheme!r} is claimed by {' and by '.join(claims)}: uninstall one of them")


class FormatError(LlogError):
    """Bytes are not in the expected format. `source` names the object (a URI, a request, a file)."""

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


class Malformed(FormatError):
    """`field` is a path such as `topics[2].partitions[0].records`, `position` a byte of the frame."""

    def __init__(self, message: str, version: int, field: str, position: int, reason: str) -> None:
        self.message, self.version, self.field, self.position = message, version, field, position
        super().__init__(f"{message} v{version}", f"{field} at byte {position}: {reason}")


class ClusterMismatch(LlogError):
    """`store` is the URL of the object store, `theirs` the cluster that its marker names (empty: it has none)."""

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


class GroupHasMembers(LlogError):
    """Positions of a group with members change by commits of its members only: stop them first."""

    def __init__(self, group: str, members: int) -> None:
        self.group, self.members = group, members
        super().__init__(
            f"group {group} has {members} members, and only they may commit: stop its consumers first, or wait until "
            "their sessions end"
        )


class RestoreRefused(LlogError):
    """Nothing was changed; the message says what to do."""


class RequestRefused(LlogError):
    """Nothing was done; the message says why."""


class ClientDisconnected(RequestRefused):
    """The client closed its connection, so nobody reads the answer."""


class RequestTooLarge(RequestRefused):
    def __init__(self, limit_bytes: int, variable: str) -> None:
        self.limit_bytes = limit_bytes
        super().__init__(f"the body is larger than {limit_bytes} bytes ({variable}): send smaller requests")


class RequestTooSlow(RequestRefused):
    def __init__(self, waited_ms: int) -> None:
        self.waited_ms = waited_ms
        super().__init__(f"the body was not complete after {waited_ms} ms and arrived too slowly")


class RequestUnauthenticated(RequestRefused):
    pass


class RequestForbidden(RequestRefused):
    pass


class RequestOverload(RequestRefused):
    pass


class UncertainOutcome(LlogError):
    """The operation may or may not have happened. Read before trying again (R4)."""


class ExportError(LlogError):
    pass


class ExportNotInstalled(ExportError):
    def __init__(self, package: str, reason: str) -> None:
        self.package, self.reason = package, reason
        super().__init__(f'this export needs {package} ({reason}): pip install "leaderless-log[export]"')


class ExportRefused(ExportError):
    """`target` names the destination of the export."""

    def __init__(self, target: str, reason: str) -> None:
        self.target, self.reason = target, reason
        super().__init__(f"{target}: {reason}")


class ExportFailed(ExportError):
    def __init__(self, target: str, reason: str, *, retriable: bool = False) -> None:
        self.target, self.reason, self.retriable = target, reason, retriable
        super().__init__(f"{target}: {reason}")


class ExportUncertain(ExportError, UncertainOutcome):
    """The commit may have happened. Exporting again is safe, because it first reads the state of the target."""

    def __init__(self, target: str, reason: str) -> None:
        self.target, self.reason = target, reason
        super().__init__(f"{target}: {reason}; export again, which adds no record twice")


class LogError(LlogError):
    """An operation on one log failed. `retriable`: the same call may succeed later."""

    retriable = False
    outcomes: list[object]
    """Set by an append to several logs: the outcome of each."""

    def __init__(self, topic: str, partition: int, reason: str) -> None:
        self.topic, self.partition, self.reason = topic, partition, reason
        self.outcomes = []
        super().__init__(f"{topic}:{partition}: {reason}")


class PartitionNotInitialized(LogError):
    def __init__(self, topic: str, partition: int) -> None:
        super().__init__(topic, partition, "not initialized: create the topic, or append to it, first")


class OffsetOutOfRange(LogError):
    """`log_start_offset` is the first readable offset, `next_offset` the offset of the next append."""

    def __init__(self, topic: str, partition: int, offset: int, log_start_offset: int, next_offset: int) -> None:
        self.offset, self.log_start_offset, self.next_offset = offset, log_start_offset, next_offset
        super().__init__(topic, partition, f"offset {offset} is outside {log_start_offset} … {next_offset - 1}")


class RecordsLost(LogError):
    """Retention or a deletion was faster than a reader; `offset` is the first offset it did not get."""

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
        super().__init__(topic, partition, f"the catalogue has no segment {segment_id}")


class OutOfOrderSequence(LogError):
    pass


class DuplicateSequence(LogError):
    """The records are stored. A client that waits for the answer may take it for success, without offsets."""


class ProducerEpochFenced(LogError):
    pass


class UnknownProducer(LogError):
    """Unlike `OutOfOrderSequence`, no earlier batch can change this: the producer begins again at sequence 0, with a
    new epoch or id."""


class RecordTooLarge(LogError):
    def __init__(self, topic: str, partition: int, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        super().__init__(
            topic, partition, f"a record takes {size} bytes, more than the topic's max.message.bytes of {limit}"
        )


class TimestampOutOfWindow(LogError):
    """`before_max_ms` and `after_max_ms` are the topic's window around `now_ms`, the time of the write."""

    def __init__(
        self, topic: str, partition: int, timestamp_ms: int, now_ms: int, before_max_ms: int, after_max_ms: int
    ) -> None:
        self.timestamp_ms, self.now_ms = timestamp_ms, now_ms
        self.before_max_ms, self.after_max_ms = before_max_ms, after_max_ms
        distance_ms = timestamp_ms - now_ms
        side = f"{distance_ms} ms after" if distance_ms > 0 else f"{-distance_ms} ms before"
        super().__init__(
            topic,
            partition,
            f"a record has the timestamp {timestamp_ms}, {side} the time of the write, outside the topic's window "
            f"(message.timestamp.before.max.ms={before_max_ms}, message.timestamp.after.max.ms={after_max_ms})",
        )


class LogBusy(LogError):
    retriable = True


class CompactionFailed(LogError):
    """`error_type` and `error` are those of the task; the log was not changed."""

    def __init__(self, topic: str, partition: int, error_type: str, error: str) -> None:
        self.error_type, self.error = error_type, error
        super().__init__(topic, partition, f"{error_type}: {error}")


class AppendNotCommitted(LogError):
    retriable = True


class AppendUncertain(LogError, UncertainOutcome):
    """It is no longer possible to find out whether the append happened. Repeating it may store records twice."""


class BackPressureRejected(LogError):
    retriable = True


class TopicError(LlogError):
    """An operation on a topic failed. `retriable`: the same call may succeed later."""

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
    """A store operation, `operation` on `subject`, failed. `retriable`: the same call may succeed later."""

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


class ObjectStoreClockSkew(ObjectStoreDenied):
    pass


class ObjectStoreMisconfigured(ObjectStoreError):
    pass


class ObjectStoreFull(ObjectStoreError):
    pass


class MetadataStoreError(StoreError):
    pass


class VersionConflict(MetadataStoreError):
    """The record is not at the expected version, or exists although it was expected to be absent."""

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
    """`query` and `batch` name the batch. `retriable`: the same call may succeed later; no record is written twice."""

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
            f"the query is already at batch {latest}: nothing was written. A new query needs its own queryId",
        )


class SinkQueryTaken(SinkError):
    """`theirs` is the owner of the query id: the id of a checkpoint, or text that names the writes to one topic."""

    def __init__(self, query: str, batch: int, ours: str, theirs: str) -> None:
        self.ours, self.theirs = ours, theirs
        owner, other = (text if " " in text else f"checkpoint {text}" for text in (theirs, ours))
        super().__init__(
            query,
            batch,
            f"this query id belongs to {owner}, but this is {other}: nothing was written. Give each checkpoint and "
            "each topic its own queryId",
        )


class SinkUploadLost(SinkError):
    pass


class SinkPlanLost(SinkError):
    pass


class SinkBusy(SinkError):
    retriable = True


class SimulationError(LlogError):
    """A simulated run cannot continue, or did something that it must not do."""


class SimulationStuck(SimulationError):
    """No actor can run. `waits` says what each of them waits for."""

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
    """The cause is the error of the actor."""

    def __init__(self, actor: str, error: BaseException) -> None:
        self.actor, self.error = actor, error
        super().__init__(f"{actor} failed: {type(error).__name__}: {error}")


class SimulationNotRepeatable(SimulationError):
    """Simulated code depends on something that the seed does not determine: a clock, the order of a set, an address."""

    def __init__(self, scenario: str, first: str, second: str) -> None:
        self.scenario, self.first, self.second = scenario, first, second
        super().__init__(f"{scenario}: one seed, two runs: first {first!r}, then {second!r}")


class ReplayDiverged(SimulationError):
    def __init__(self, position: int, choice: int, options: int) -> None:
        self.position, self.choice, self.options = position, choice, options
        super().__init__(f"choice {position} of the recording is {choice}, but this run offers {options} options there")


class LoadTestError(LlogError):
    """A load test cannot begin or go on."""


class ScenarioInvalid(LoadTestError, InvalidArgument):
    """A scenario has an invalid field, or a file is none."""

    def __init__(self, source: str, field: str, reason: str) -> None:
        super().__init__(f"{source}: {field}" if field else source, reason)
        self.source, self.field = source, field


class RunNotFound(LoadTestError):
    """There is no such run of a load test, or its files are damaged."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.place, self.reason = place, reason


class RunStateWrong(LoadTestError):
    """A run of a load test is in a state in which this cannot be done; the reason says what to do."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(f"{run_id}: {reason}")
        self.run_id, self.reason = run_id, reason


class StackFailed(LoadTestError):
    """A process of a load test's stack could not be started, or ended early."""

    def __init__(self, process: str, reason: str) -> None:
        super().__init__(f"{process}: {reason}")
        self.process, self.reason = process, reason


class LoadTestNotInstalled(LoadTestError):
    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f'load tests cannot run ({reason}): pip install "leaderless-log[loadtest]"')


class SparkError(LlogError):
    """Spark, or something that it needs, failed."""


class SparkNotInstalled(SparkError):
    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f'Spark cannot be used ({reason}): pip install "leaderless-log[spark]"')


class JavaUnusable(SparkError):
    """`found` lists each place and what was found there, `advice` what to do. `named`: JAVA_HOME named the place."""

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
    """`error_type`, `error` and `trace` are those of the Python error in the task."""

    def __init__(self, task: str, error_type: str, error: str, trace: str = "") -> None:
        self.task, self.error_type, self.error, self.trace = task, error_type, error, trace
        super().__init__(f"{task} failed: {error_type}: {error}")


class SparkJobFailed(SparkError):
    """Items without an outcome may have run; their results are lost."""

    def __init__(self, task: str, reason: str) -> None:
        self.task, self.reason = task, reason
        super().__init__(f"the Spark job of {task} failed: {reason}")


__all__ = sorted(name for name, value in globals().items() if isinstance(value, type) and issubclass(value, Exception))
