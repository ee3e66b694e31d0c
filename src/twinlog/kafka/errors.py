"""What can go wrong, by what happens next.

A mirror has few answers to trouble, so there are few classes. Whoever catches one knows what to do
without knowing which of Kafka's 135 codes was behind it:

    class             what happens next
    ----------------  ------------------------------------------------------------------------
    UserError         stop; the user changes a configuration, an argument or a grant
      Unsupported-    the same: what is stored is newer than this twinlog
      Version
    Retriable         the same step again, bounded, with a pause
      Disconnected    the same, but the outcome of what was sent is unknown: read it back first
    Fenced            stop: another owner has it
    PartitionFailed   this partition is FAILED and waits for a person; the others go on
    ProtocolError     the peer sent nonsense: drop the connection
      CorruptBatch    the nonsense is a record batch

Kafka's codes are mapped by one table, `CODES`, to a `Reaction`, which is finer: it says *what* has
to be asked for again before the step is tried again.

    Reaction      before the next try                                   becomes
    ------------  ----------------------------------------------------  ---------------
    OK            (no error)
    RETRY         wait                                                  Retriable
    METADATA      ask for the topic's metadata: the leader has moved    Retriable
    COORDINATOR   find the coordinator: it has moved                    Retriable
    REREAD        what we remember is wrong (a position, a fetch        Retriable
                  session, a membership): drop it and ask the cluster
    FENCED        nothing: another owner has it                         Fenced
    USER          nothing: the user has to act                          UserError
    PARTITION     nothing: a person has to look at the partition        PartitionFailed
    PEER          open a new connection                                 ProtocolError

A reaction is what suits *most* requests. Where a step knows better (TOPIC_ALREADY_EXISTS is fine
for whoever wanted the topic to exist) it looks at the code first. A code that this table does not
know comes from a newer broker; as nobody can say whether the step took effect, it is REREAD.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, NamedTuple, NoReturn, assert_never

MAX_MESSAGE: Final = 10_000
"""Characters of an error's message: it is logged, and stored for each partition that it is about,
and what it repeats of a peer's answer may have megabytes."""
MAX_SAID: Final = 1000
"""Characters of a broker's own words that are repeated."""


def shortened(text: str, most: int) -> str:
    """The text, or its beginning, marked as such."""
    return text if len(text) <= most else f"{text[:most]}..."


class TwinlogError(Exception):
    """The base of all that twinlog raises on purpose. Fields say where, `hint` what to do.

    `code` is Kafka's error code where one was behind it. Whatever is not known is None.
    Picklable, so that it crosses from a Spark task to its driver.
    """

    exit_status: ClassVar[int] = 1

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        cluster: str | None = None,
        node: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        code: int | None = None,
    ) -> None:
        message = shortened(message, MAX_MESSAGE)
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.cluster = cluster
        self.node = node
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.code = code
        self.principal: str | None = None
        """Who lacks a right, where one is missing and it is known."""

    def __str__(self) -> str:
        """One line: where, what, and what to do."""
        place = self.topic if self.partition is None else f"{self.topic}-{self.partition}"
        labels = {
            "cluster ": self.cluster,
            "node ": self.node,
            "principal ": self.principal,
            "": place,
        }
        where = "".join(f"{label}{value}: " for label, value in labels.items() if value is not None)
        at = "" if self.offset is None else f" (offset {self.offset})"
        return f"{where}{self.message}{at}{'; ' if self.hint else ''}{self.hint}"


class UserError(TwinlogError):
    """A configuration, an argument or a grant is wrong: only the user can change it."""

    exit_status = 2


class UnsupportedVersion(UserError):
    """What is stored has a format that this version of twinlog does not know."""


class ControlTopicLost(UserError):
    """`__mirror_config` or `__mirror_state` was deleted, recreated or cut: nothing may go on."""


class Retriable(TwinlogError):
    """The step had no effect and may be tried again, a bounded number of times."""


class Disconnected(Retriable):
    """The connection was lost or timed out: whether the step took effect is unknown."""


class Fenced(TwinlogError):
    """Another owner has taken over: stop, and touch nothing."""


class PartitionFailed(TwinlogError):
    """The partition cannot go on without a person; the others can."""


class ProtocolError(TwinlogError):
    """The peer sent what no Kafka broker sends: the connection is of no more use."""


class CorruptBatch(ProtocolError):
    """A record batch is not what its header says."""


class Reaction(Enum):
    """What a Kafka error code asks of us (the table in the module's docstring)."""

    OK = "ok"
    RETRY = "retry"
    METADATA = "metadata"
    COORDINATOR = "coordinator"
    REREAD = "reread"
    FENCED = "fenced"
    USER = "user"
    PARTITION = "partition"
    PEER = "peer"

    @property
    def retriable(self) -> bool:
        """Whether the same step may be tried again."""
        return self in _RETRIABLE


_RETRIABLE: Final = frozenset(
    {Reaction.RETRY, Reaction.METADATA, Reaction.COORDINATOR, Reaction.REREAD}
)


class Code(NamedTuple):
    """One of Kafka's error codes: its name in Kafka's own `Errors`, and our reaction."""

    name: str
    reaction: Reaction


def _codes() -> dict[int, Code]:
    """Kafka 4.3's error codes, in their order; see `kafka.common.protocol.Errors`."""
    ok, retry, metadata = Reaction.OK, Reaction.RETRY, Reaction.METADATA
    coordinator, reread, fenced = Reaction.COORDINATOR, Reaction.REREAD, Reaction.FENCED
    user, partition, peer = Reaction.USER, Reaction.PARTITION, Reaction.PEER
    return {
        -1: Code("UNKNOWN_SERVER_ERROR", reread),
        0: Code("NONE", ok),
        1: Code("OFFSET_OUT_OF_RANGE", reread),
        2: Code("CORRUPT_MESSAGE", retry),
        3: Code("UNKNOWN_TOPIC_OR_PARTITION", metadata),
        4: Code("INVALID_FETCH_SIZE", user),
        5: Code("LEADER_NOT_AVAILABLE", metadata),
        6: Code("NOT_LEADER_OR_FOLLOWER", metadata),
        7: Code("REQUEST_TIMED_OUT", reread),
        8: Code("BROKER_NOT_AVAILABLE", metadata),
        9: Code("REPLICA_NOT_AVAILABLE", metadata),
        10: Code("MESSAGE_TOO_LARGE", partition),
        11: Code("STALE_CONTROLLER_EPOCH", metadata),
        12: Code("OFFSET_METADATA_TOO_LARGE", user),
        13: Code("NETWORK_EXCEPTION", reread),
        14: Code("COORDINATOR_LOAD_IN_PROGRESS", retry),
        15: Code("COORDINATOR_NOT_AVAILABLE", coordinator),
        16: Code("NOT_COORDINATOR", coordinator),
        17: Code("INVALID_TOPIC_EXCEPTION", user),
        18: Code("RECORD_LIST_TOO_LARGE", partition),
        19: Code("NOT_ENOUGH_REPLICAS", retry),
        20: Code("NOT_ENOUGH_REPLICAS_AFTER_APPEND", reread),
        21: Code("INVALID_REQUIRED_ACKS", user),
        22: Code("ILLEGAL_GENERATION", reread),
        23: Code("INCONSISTENT_GROUP_PROTOCOL", user),
        24: Code("INVALID_GROUP_ID", user),
        25: Code("UNKNOWN_MEMBER_ID", reread),
        26: Code("INVALID_SESSION_TIMEOUT", user),
        27: Code("REBALANCE_IN_PROGRESS", reread),
        28: Code("INVALID_COMMIT_OFFSET_SIZE", user),
        29: Code("TOPIC_AUTHORIZATION_FAILED", user),
        30: Code("GROUP_AUTHORIZATION_FAILED", user),
        31: Code("CLUSTER_AUTHORIZATION_FAILED", user),
        32: Code("INVALID_TIMESTAMP", partition),
        33: Code("UNSUPPORTED_SASL_MECHANISM", user),
        34: Code("ILLEGAL_SASL_STATE", user),
        35: Code("UNSUPPORTED_VERSION", user),
        36: Code("TOPIC_ALREADY_EXISTS", user),
        37: Code("INVALID_PARTITIONS", user),
        38: Code("INVALID_REPLICATION_FACTOR", user),
        39: Code("INVALID_REPLICA_ASSIGNMENT", user),
        40: Code("INVALID_CONFIG", user),
        41: Code("NOT_CONTROLLER", metadata),
        42: Code("INVALID_REQUEST", peer),
        43: Code("UNSUPPORTED_FOR_MESSAGE_FORMAT", partition),
        44: Code("POLICY_VIOLATION", user),
        45: Code("OUT_OF_ORDER_SEQUENCE_NUMBER", reread),
        46: Code("DUPLICATE_SEQUENCE_NUMBER", reread),
        47: Code("INVALID_PRODUCER_EPOCH", fenced),
        48: Code("INVALID_TXN_STATE", reread),
        49: Code("INVALID_PRODUCER_ID_MAPPING", reread),
        50: Code("INVALID_TRANSACTION_TIMEOUT", user),
        51: Code("CONCURRENT_TRANSACTIONS", retry),
        52: Code("TRANSACTION_COORDINATOR_FENCED", coordinator),
        53: Code("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", user),
        54: Code("SECURITY_DISABLED", user),
        55: Code("OPERATION_NOT_ATTEMPTED", retry),
        56: Code("KAFKA_STORAGE_ERROR", metadata),
        57: Code("LOG_DIR_NOT_FOUND", user),
        58: Code("SASL_AUTHENTICATION_FAILED", user),
        59: Code("UNKNOWN_PRODUCER_ID", reread),
        60: Code("REASSIGNMENT_IN_PROGRESS", retry),
        61: Code("DELEGATION_TOKEN_AUTH_DISABLED", user),
        62: Code("DELEGATION_TOKEN_NOT_FOUND", user),
        63: Code("DELEGATION_TOKEN_OWNER_MISMATCH", user),
        64: Code("DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", user),
        65: Code("DELEGATION_TOKEN_AUTHORIZATION_FAILED", user),
        66: Code("DELEGATION_TOKEN_EXPIRED", user),
        67: Code("INVALID_PRINCIPAL_TYPE", user),
        68: Code("NON_EMPTY_GROUP", user),
        69: Code("GROUP_ID_NOT_FOUND", user),
        70: Code("FETCH_SESSION_ID_NOT_FOUND", reread),
        71: Code("INVALID_FETCH_SESSION_EPOCH", reread),
        72: Code("LISTENER_NOT_FOUND", metadata),
        73: Code("TOPIC_DELETION_DISABLED", user),
        74: Code("FENCED_LEADER_EPOCH", metadata),
        75: Code("UNKNOWN_LEADER_EPOCH", metadata),
        76: Code("UNSUPPORTED_COMPRESSION_TYPE", partition),
        77: Code("STALE_BROKER_EPOCH", retry),
        78: Code("OFFSET_NOT_AVAILABLE", retry),
        79: Code("MEMBER_ID_REQUIRED", reread),
        80: Code("PREFERRED_LEADER_NOT_AVAILABLE", metadata),
        81: Code("GROUP_MAX_SIZE_REACHED", user),
        82: Code("FENCED_INSTANCE_ID", fenced),
        83: Code("ELIGIBLE_LEADERS_NOT_AVAILABLE", metadata),
        84: Code("ELECTION_NOT_NEEDED", metadata),
        85: Code("NO_REASSIGNMENT_IN_PROGRESS", user),
        86: Code("GROUP_SUBSCRIBED_TO_TOPIC", user),
        87: Code("INVALID_RECORD", partition),
        88: Code("UNSTABLE_OFFSET_COMMIT", retry),
        89: Code("THROTTLING_QUOTA_EXCEEDED", retry),
        90: Code("PRODUCER_FENCED", fenced),
        91: Code("RESOURCE_NOT_FOUND", user),
        92: Code("DUPLICATE_RESOURCE", user),
        93: Code("UNACCEPTABLE_CREDENTIAL", user),
        94: Code("INCONSISTENT_VOTER_SET", user),
        95: Code("INVALID_UPDATE_VERSION", user),
        96: Code("FEATURE_UPDATE_FAILED", user),
        97: Code("PRINCIPAL_DESERIALIZATION_FAILURE", user),
        98: Code("SNAPSHOT_NOT_FOUND", reread),
        99: Code("POSITION_OUT_OF_RANGE", reread),
        100: Code("UNKNOWN_TOPIC_ID", metadata),
        101: Code("DUPLICATE_BROKER_REGISTRATION", fenced),
        102: Code("BROKER_ID_NOT_REGISTERED", user),
        103: Code("INCONSISTENT_TOPIC_ID", metadata),
        104: Code("INCONSISTENT_CLUSTER_ID", user),
        105: Code("TRANSACTIONAL_ID_NOT_FOUND", reread),
        106: Code("FETCH_SESSION_TOPIC_ID_ERROR", reread),
        107: Code("INELIGIBLE_REPLICA", retry),
        108: Code("NEW_LEADER_ELECTED", metadata),
        109: Code("OFFSET_MOVED_TO_TIERED_STORAGE", reread),
        110: Code("FENCED_MEMBER_EPOCH", reread),
        111: Code("UNRELEASED_INSTANCE_ID", retry),
        112: Code("UNSUPPORTED_ASSIGNOR", user),
        113: Code("STALE_MEMBER_EPOCH", reread),
        114: Code("MISMATCHED_ENDPOINT_TYPE", user),
        115: Code("UNSUPPORTED_ENDPOINT_TYPE", user),
        116: Code("UNKNOWN_CONTROLLER_ID", metadata),
        117: Code("UNKNOWN_SUBSCRIPTION_ID", reread),
        118: Code("TELEMETRY_TOO_LARGE", user),
        119: Code("INVALID_REGISTRATION", user),
        120: Code("TRANSACTION_ABORTABLE", reread),
        121: Code("INVALID_RECORD_STATE", reread),
        122: Code("SHARE_SESSION_NOT_FOUND", reread),
        123: Code("INVALID_SHARE_SESSION_EPOCH", reread),
        124: Code("FENCED_STATE_EPOCH", fenced),
        125: Code("INVALID_VOTER_KEY", user),
        126: Code("DUPLICATE_VOTER", user),
        127: Code("VOTER_NOT_FOUND", user),
        128: Code("INVALID_REGULAR_EXPRESSION", user),
        129: Code("REBOOTSTRAP_REQUIRED", metadata),
        130: Code("STREAMS_INVALID_TOPOLOGY", user),
        131: Code("STREAMS_INVALID_TOPOLOGY_EPOCH", reread),
        132: Code("STREAMS_TOPOLOGY_FENCED", fenced),
        133: Code("SHARE_SESSION_LIMIT_REACHED", retry),
    }


CODES: Final = _codes()

_HINTS: Final = {
    29: "grant this principal the operation on the topic",
    30: "grant this principal the operation on the group (DESCRIBE to see it and its offsets, READ "
    "to commit or to be a member)",
    31: "grant this principal the operation on the cluster",
    33: "compare sasl.mechanism with the broker's sasl.enabled.mechanisms",
    35: "the broker is older than Kafka 2.8, or the request's version was capped",
    53: "grant this principal WRITE on the transactional id",
    58: "check the user name and the password in sasl.jaas.config",
    10: "raise max.message.bytes of the destination's topic",
    18: "raise segment.bytes of the destination's topic",
}


DENIED: Final = frozenset({29, 30, 31, 53, 65})
"""Codes of a missing right: ..._AUTHORIZATION_FAILED."""


def code_of(number: int) -> Code:
    """Name and reaction of a code; one that we do not know is REREAD and says its number."""
    known = CODES.get(number)
    return Code(f"UNKNOWN_CODE_{number}", Reaction.REREAD) if known is None else known


_WHOLE_REQUEST: Final = re.compile(r"Request Request\(.*\) needs (\w+) permission\.?", re.DOTALL)
"""A broker that misses a right on the cluster says so with all that it knows of the request."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A broker's refusal of one item (a partition, a topic) of a request that held several.

    It is a value, not an exception, so that one item's trouble is never that of its neighbours:
    functions on many items return `T | Refusal` for each.
    """

    code: int
    message: str = ""

    def __post_init__(self) -> None:
        assert self.code != 0, "an item without error is no refusal"

    @property
    def name(self) -> str:
        """Kafka's name of the code."""
        return code_of(self.code).name

    @property
    def reaction(self) -> Reaction:
        """What the code asks of us."""
        return code_of(self.code).reaction

    def __str__(self) -> str:
        said = shortened(self.message, MAX_MESSAGE)
        said = shortened(_WHOLE_REQUEST.sub(r"needs \1 on the cluster", said), MAX_SAID)
        return f"{self.name} ({self.code}){': ' if said else ''}{said}"

    def error(
        self, what: str, *, topic: str | None = None, partition: int | None = None
    ) -> TwinlogError:
        """The exception that suits it. `what` is the step that was refused: `create the topic`."""
        cls = _class_of(self.reaction)
        return cls(
            f"cannot {what}: {self}",
            hint=_HINTS.get(self.code, ""),
            topic=topic,
            partition=partition,
            code=self.code,
        )

    def fail(
        self, what: str, *, topic: str | None = None, partition: int | None = None
    ) -> NoReturn:
        """Raise what `error` gives."""
        raise self.error(what, topic=topic, partition=partition)


def _class_of(reaction: Reaction) -> type[TwinlogError]:
    match reaction:
        case Reaction.RETRY | Reaction.METADATA | Reaction.COORDINATOR | Reaction.REREAD:
            return Retriable
        case Reaction.FENCED:
            return Fenced
        case Reaction.USER:
            return UserError
        case Reaction.PARTITION:
            return PartitionFailed
        case Reaction.PEER:
            return ProtocolError
        case Reaction.OK:
            raise AssertionError("no error has no class")
        case _:
            assert_never(reaction)


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise the error for `code`, unless it is 0. `what` is the step: `end the transaction`."""
    if code:
        Refusal(code, message or "").fail(what)
