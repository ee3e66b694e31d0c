"""The errors, classified by what happens next.

There are few classes, because a mirror has few reactions to a failure. A caller that catches one
knows what to do without knowing which of Kafka's 135 codes caused it:

    class             what happens next
    ----------------  ------------------------------------------------------------------------
    UserError         stop; the user changes a configuration, an argument or a grant
      Unsupported-    the same: what is stored is newer than this twinlog
      Version
    Retriable         retry the same step, bounded, with a backoff
      Disconnected    the same, but the outcome of what was sent is unknown: read it back first
    Fenced            stop: there is a new owner
    PartitionFailed   this partition is FAILED and waits for an operator; other partitions go on
    ProtocolError     the peer sent invalid data: drop the connection
      CorruptBatch    the invalid data is a record batch

One table, `CODES`, maps Kafka's codes to a `Reaction`, which is finer: it defines *what* has to be
refreshed before the step is retried.

    Reaction      before the next try                                   becomes
    ------------  ----------------------------------------------------  ---------------
    OK            (no error)
    RETRY         wait                                                  Retriable
    METADATA      refresh the topic's metadata: the leader has moved    Retriable
    COORDINATOR   find the coordinator: it has moved                    Retriable
    REREAD        drop cached state that is wrong (a position, a fetch  Retriable
                  session, a membership) and ask the cluster
    FENCED        nothing: there is a new owner                         Fenced
    USER          nothing: the user has to act                          UserError
    PARTITION     nothing: an operator has to check the partition       PartitionFailed
    PEER          open a new connection                                 ProtocolError

A reaction suits *most* requests. If a step knows better (TOPIC_ALREADY_EXISTS is fine for a caller
that wanted the topic to exist), it checks the code first. A code that is not in the table comes
from a newer broker. It is REREAD, because it is unknown whether the step took effect.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, NamedTuple, NoReturn, assert_never

from twinlog.kafka.error_codes import ErrorCode

MAX_MESSAGE: Final = 10_000
"""Characters of an error's message: it is logged, and stored for each partition that it concerns,
and the part that it repeats of a peer's answer may be megabytes long."""
MAX_SAID: Final = 1000
"""Characters of a broker's message that are repeated."""


def shortened(text: str, max_length: int) -> str:
    """The text, truncated to `max_length` characters and marked as such."""
    return text if len(text) <= max_length else f"{text[:max_length]}..."


class TwinlogError(Exception):
    """The base of all exceptions that twinlog raises. Fields name the place, `hint` what to do.

    `code` is Kafka's error code, if one was the cause. A field that is not known is None.
    The exception is picklable, so that it can pass from a Spark task to its driver.
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
        """The principal that lacks a right, if one is missing and it is known."""

    def __str__(self) -> str:
        """One line: the place, the message, and what to do."""
        place = self.topic if self.partition is None else f"{self.topic}-{self.partition}"
        labels = {
            "cluster ": self.cluster,
            "node ": self.node,
            "principal ": self.principal,
            "": place,
        }
        prefix = "".join(
            f"{label}{value}: " for label, value in labels.items() if value is not None
        )
        at = "" if self.offset is None else f" (offset {self.offset})"
        return f"{prefix}{self.message}{at}{'; ' if self.hint else ''}{self.hint}"


class UserError(TwinlogError):
    """A configuration, an argument or a grant is wrong; only the user can change it."""

    exit_status = 2


class UnsupportedVersion(UserError):
    """The stored data has a format that this version of twinlog does not know."""


class ControlTopicLost(UserError):
    """`__mirror_config` or `__mirror_state` was deleted, recreated or truncated: all must stop."""


class Retriable(TwinlogError):
    """The step had no effect and may be retried, a bounded number of times."""


class Disconnected(Retriable):
    """The connection was lost or timed out: it is unknown whether the step took effect."""


class Fenced(TwinlogError):
    """A new owner has taken over: stop, and change nothing."""


class PartitionFailed(TwinlogError):
    """The partition needs an operator; other partitions can go on."""


class ProtocolError(TwinlogError):
    """The peer sent what no Kafka broker sends: the connection cannot be used any more."""


class CorruptBatch(ProtocolError):
    """A record batch does not match its header."""


class Reaction(Enum):
    """What a Kafka error code requires (the table in the module's docstring)."""

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
        """Whether the same step may be retried."""
        return self in _RETRIABLE


_RETRIABLE: Final = frozenset(
    {Reaction.RETRY, Reaction.METADATA, Reaction.COORDINATOR, Reaction.REREAD}
)


class Code(NamedTuple):
    """One of Kafka's error codes: its name in Kafka's own `Errors`, and the reaction to it."""

    name: str
    reaction: Reaction


def _reactions() -> dict[ErrorCode, Reaction]:
    ok, retry, metadata = Reaction.OK, Reaction.RETRY, Reaction.METADATA
    coordinator, reread, fenced = Reaction.COORDINATOR, Reaction.REREAD, Reaction.FENCED
    user, partition, peer = Reaction.USER, Reaction.PARTITION, Reaction.PEER
    return {
        ErrorCode.UNKNOWN_SERVER_ERROR: reread,
        ErrorCode.NONE: ok,
        ErrorCode.OFFSET_OUT_OF_RANGE: reread,
        ErrorCode.CORRUPT_MESSAGE: retry,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: metadata,
        ErrorCode.INVALID_FETCH_SIZE: user,
        ErrorCode.LEADER_NOT_AVAILABLE: metadata,
        ErrorCode.NOT_LEADER_OR_FOLLOWER: metadata,
        ErrorCode.REQUEST_TIMED_OUT: reread,
        ErrorCode.BROKER_NOT_AVAILABLE: metadata,
        ErrorCode.REPLICA_NOT_AVAILABLE: metadata,
        ErrorCode.MESSAGE_TOO_LARGE: partition,
        ErrorCode.STALE_CONTROLLER_EPOCH: metadata,
        ErrorCode.OFFSET_METADATA_TOO_LARGE: user,
        ErrorCode.NETWORK_EXCEPTION: reread,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: retry,
        ErrorCode.COORDINATOR_NOT_AVAILABLE: coordinator,
        ErrorCode.NOT_COORDINATOR: coordinator,
        ErrorCode.INVALID_TOPIC_EXCEPTION: user,
        ErrorCode.RECORD_LIST_TOO_LARGE: partition,
        ErrorCode.NOT_ENOUGH_REPLICAS: retry,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: reread,
        ErrorCode.INVALID_REQUIRED_ACKS: user,
        ErrorCode.ILLEGAL_GENERATION: reread,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL: user,
        ErrorCode.INVALID_GROUP_ID: user,
        ErrorCode.UNKNOWN_MEMBER_ID: reread,
        ErrorCode.INVALID_SESSION_TIMEOUT: user,
        ErrorCode.REBALANCE_IN_PROGRESS: reread,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE: user,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: user,
        ErrorCode.GROUP_AUTHORIZATION_FAILED: user,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: user,
        ErrorCode.INVALID_TIMESTAMP: partition,
        ErrorCode.UNSUPPORTED_SASL_MECHANISM: user,
        ErrorCode.ILLEGAL_SASL_STATE: user,
        ErrorCode.UNSUPPORTED_VERSION: user,
        ErrorCode.TOPIC_ALREADY_EXISTS: user,
        ErrorCode.INVALID_PARTITIONS: user,
        ErrorCode.INVALID_REPLICATION_FACTOR: user,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT: user,
        ErrorCode.INVALID_CONFIG: user,
        ErrorCode.NOT_CONTROLLER: metadata,
        ErrorCode.INVALID_REQUEST: peer,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: partition,
        ErrorCode.POLICY_VIOLATION: user,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: reread,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER: reread,
        ErrorCode.INVALID_PRODUCER_EPOCH: fenced,
        ErrorCode.INVALID_TXN_STATE: reread,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING: reread,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT: user,
        ErrorCode.CONCURRENT_TRANSACTIONS: retry,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED: coordinator,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: user,
        ErrorCode.SECURITY_DISABLED: user,
        ErrorCode.OPERATION_NOT_ATTEMPTED: retry,
        ErrorCode.KAFKA_STORAGE_ERROR: metadata,
        ErrorCode.LOG_DIR_NOT_FOUND: user,
        ErrorCode.SASL_AUTHENTICATION_FAILED: user,
        ErrorCode.UNKNOWN_PRODUCER_ID: reread,
        ErrorCode.REASSIGNMENT_IN_PROGRESS: retry,
        ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: user,
        ErrorCode.DELEGATION_TOKEN_NOT_FOUND: user,
        ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: user,
        ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: user,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: user,
        ErrorCode.DELEGATION_TOKEN_EXPIRED: user,
        ErrorCode.INVALID_PRINCIPAL_TYPE: user,
        ErrorCode.NON_EMPTY_GROUP: user,
        ErrorCode.GROUP_ID_NOT_FOUND: user,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND: reread,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH: reread,
        ErrorCode.LISTENER_NOT_FOUND: metadata,
        ErrorCode.TOPIC_DELETION_DISABLED: user,
        ErrorCode.FENCED_LEADER_EPOCH: metadata,
        ErrorCode.UNKNOWN_LEADER_EPOCH: metadata,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: partition,
        ErrorCode.STALE_BROKER_EPOCH: retry,
        ErrorCode.OFFSET_NOT_AVAILABLE: retry,
        ErrorCode.MEMBER_ID_REQUIRED: reread,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: metadata,
        ErrorCode.GROUP_MAX_SIZE_REACHED: user,
        ErrorCode.FENCED_INSTANCE_ID: fenced,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: metadata,
        ErrorCode.ELECTION_NOT_NEEDED: metadata,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: user,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: user,
        ErrorCode.INVALID_RECORD: partition,
        ErrorCode.UNSTABLE_OFFSET_COMMIT: retry,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED: retry,
        ErrorCode.PRODUCER_FENCED: fenced,
        ErrorCode.RESOURCE_NOT_FOUND: user,
        ErrorCode.DUPLICATE_RESOURCE: user,
        ErrorCode.UNACCEPTABLE_CREDENTIAL: user,
        ErrorCode.INCONSISTENT_VOTER_SET: user,
        ErrorCode.INVALID_UPDATE_VERSION: user,
        ErrorCode.FEATURE_UPDATE_FAILED: user,
        ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE: user,
        ErrorCode.SNAPSHOT_NOT_FOUND: reread,
        ErrorCode.POSITION_OUT_OF_RANGE: reread,
        ErrorCode.UNKNOWN_TOPIC_ID: metadata,
        ErrorCode.DUPLICATE_BROKER_REGISTRATION: fenced,
        ErrorCode.BROKER_ID_NOT_REGISTERED: user,
        ErrorCode.INCONSISTENT_TOPIC_ID: metadata,
        ErrorCode.INCONSISTENT_CLUSTER_ID: user,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: reread,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR: reread,
        ErrorCode.INELIGIBLE_REPLICA: retry,
        ErrorCode.NEW_LEADER_ELECTED: metadata,
        ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE: reread,
        ErrorCode.FENCED_MEMBER_EPOCH: reread,
        ErrorCode.UNRELEASED_INSTANCE_ID: retry,
        ErrorCode.UNSUPPORTED_ASSIGNOR: user,
        ErrorCode.STALE_MEMBER_EPOCH: reread,
        ErrorCode.MISMATCHED_ENDPOINT_TYPE: user,
        ErrorCode.UNSUPPORTED_ENDPOINT_TYPE: user,
        ErrorCode.UNKNOWN_CONTROLLER_ID: metadata,
        ErrorCode.UNKNOWN_SUBSCRIPTION_ID: reread,
        ErrorCode.TELEMETRY_TOO_LARGE: user,
        ErrorCode.INVALID_REGISTRATION: user,
        ErrorCode.TRANSACTION_ABORTABLE: reread,
        ErrorCode.INVALID_RECORD_STATE: reread,
        ErrorCode.SHARE_SESSION_NOT_FOUND: reread,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH: reread,
        ErrorCode.FENCED_STATE_EPOCH: fenced,
        ErrorCode.INVALID_VOTER_KEY: user,
        ErrorCode.DUPLICATE_VOTER: user,
        ErrorCode.VOTER_NOT_FOUND: user,
        ErrorCode.INVALID_REGULAR_EXPRESSION: user,
        ErrorCode.REBOOTSTRAP_REQUIRED: metadata,
        ErrorCode.STREAMS_INVALID_TOPOLOGY: user,
        ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH: reread,
        ErrorCode.STREAMS_TOPOLOGY_FENCED: fenced,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED: retry,
    }


CODES: Final[Mapping[int, Code]] = {
    code: Code(code.name, reaction) for code, reaction in _reactions().items()
}

_HINTS: Final[Mapping[int, str]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "grant this principal the operation on the topic",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "grant this principal the operation on the group "
    "(DESCRIBE to see it and its offsets, READ to commit or to be a member)",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "grant this principal the operation on the cluster",
    ErrorCode.UNSUPPORTED_SASL_MECHANISM: "compare sasl.mechanism with the broker's "
    "sasl.enabled.mechanisms",
    ErrorCode.ILLEGAL_SASL_STATE: "the listener may have no SASL: compare security.protocol with "
    "the broker's listener.security.protocol.map",
    ErrorCode.UNSUPPORTED_VERSION: "the broker is older than Kafka 2.8, or the request's version "
    "was capped",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "grant this principal WRITE on the "
    "transactional id",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "check the user name and the password in "
    "sasl.jaas.config",
    ErrorCode.MESSAGE_TOO_LARGE: "raise max.message.bytes of the destination's topic",
    ErrorCode.RECORD_LIST_TOO_LARGE: "raise segment.bytes of the destination's topic",
}


DENIED: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
)
"""Codes of a missing right: ..._AUTHORIZATION_FAILED."""
TOPIC_GONE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""Codes of a topic that the broker does not have, by name or by id."""
REFUSED_VALUE: Final = frozenset({ErrorCode.INVALID_CONFIG, ErrorCode.POLICY_VIOLATION})
"""Codes of a configuration's value that is never accepted: invalid, or refused by a policy."""


def code_of(number: int) -> Code:
    """The name and reaction of a code; an unknown one is REREAD, and its name has the number."""
    code = CODES.get(number)
    return Code(f"UNKNOWN_CODE_{number}", Reaction.REREAD) if code is None else code


_WHOLE_REQUEST: Final = re.compile(r"Request Request\(.*\) needs (\w+) permission\.?", re.DOTALL)
"""A broker's message about a missing right on the cluster; it contains the whole request."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A broker's refusal of one item (a partition, a topic) of a request that held several.

    It is a value, not an exception, so that one item's error never affects the other items:
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
        """What the code requires."""
        return code_of(self.code).reaction

    def __str__(self) -> str:
        text = shortened(self.message, MAX_MESSAGE)
        text = shortened(_WHOLE_REQUEST.sub(r"needs \1 on the cluster", text), MAX_SAID)
        return f"{self.name} ({self.code}){': ' if text else ''}{text}"

    def error(
        self, action: str, *, topic: str | None = None, partition: int | None = None
    ) -> TwinlogError:
        """The matching exception. `action` is the step that was refused: `create the topic`."""
        cls = _class_of(self.reaction)
        return cls(
            f"cannot {action}: {self}",
            hint=_HINTS.get(self.code, ""),
            topic=topic,
            partition=partition,
            code=self.code,
        )

    def fail(
        self, action: str, *, topic: str | None = None, partition: int | None = None
    ) -> NoReturn:
        """Raise the exception that `error` returns."""
        raise self.error(action, topic=topic, partition=partition)


LEFT_OUT: Final = Refusal(ErrorCode.NETWORK_EXCEPTION, "the broker's answer leaves it out")
"""Of an item that an answer does not name: nothing is known about it."""


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


def check(code: int, action: str, message: str | None = None) -> None:
    """Raise the error for `code`, unless it is 0. `action` is the step: `end the transaction`."""
    if code:
        Refusal(code, message or "").fail(action)
