"""A fetch session (KIP-227): what to send to a broker, given what it remembers.

A broker with a session remembers partitions and positions. So a request lists only what has
changed, and an answer only what has news. Both sides count requests; if the counts differ, the
session is renewed.

    (id, epoch)   request lists                       after its answer
    -----------   ---------------------------------   ---------------------------------------------
    (0, 0)        all: asks for a session             (new id, 1); (0, 0) if the broker gave none
    (id, n)       what is new, changed, or unwanted   (id, n + 1)
    (id, 0)       all: replaces the session           (new id, 1)

`renew` leads to (id, 0), from any state:

- after a lost connection or an answer that was not awaited, when it is unknown whether the broker
  has counted the request;
- after the codes 70, 71 and 106, with which the broker reports that the two sides disagree;
- when a topic has another id.

A partition's error concerns only that partition: the broker keeps it in the session and repeats it
in every answer until the partition recovers or is forgotten.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.types import FetchPosition, TopicPartition

SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR."""

_MAX_EPOCH: Final = (1 << 31) - 1
_ALL: Final = 0


class Ask(NamedTuple):
    """The content of a request."""

    session_id: int
    epoch: int
    partitions: Mapping[TopicPartition, FetchPosition]
    forgotten: tuple[TopicPartition, ...]


class FetchSession:
    """One session with one broker. Call `answered` or `renew` after every `ask`."""

    def __init__(self) -> None:
        self._id = 0
        self._epoch = _ALL
        self._session_positions: dict[
            TopicPartition, FetchPosition
        ] = {}  # what the broker remembers
        self._session_bytes = 0  # ... and the bytes that it may return for each
        self._request_positions: dict[TopicPartition, FetchPosition] = {}

    def ask(
        self, positions: Mapping[TopicPartition, FetchPosition], partition_max_bytes: int
    ) -> Ask:
        """What to send so that the broker continues at exactly these positions."""
        session_positions = self._session_positions
        self._request_positions = changed_positions = dict(positions)
        if self._epoch != _ALL and partition_max_bytes == self._session_bytes:
            changed_positions = {
                p: at for p, at in positions.items() if session_positions.get(p) != at
            }
        forgotten_partitions: tuple[TopicPartition, ...] = ()
        if self._epoch != _ALL and not session_positions.keys() <= positions.keys():
            forgotten_partitions = tuple(session_positions.keys() - positions.keys())
        self._session_bytes = partition_max_bytes
        return Ask(self._id, self._epoch, changed_positions, forgotten_partitions)

    def answered(self, session_id: int) -> None:
        """Record that the request was carried out; `session_id` of the answer, 0 for none."""
        if session_id == 0:
            self._id, self._epoch, self._session_positions = 0, _ALL, {}
            return
        self._id = session_id
        # Epoch 0 would ask for a new session, so epochs wrap to 1, as in the broker (KIP-227).
        self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1
        self._session_positions = self._request_positions

    def renew(self) -> None:
        """Replace the session with the next request."""
        self._epoch = _ALL
        self._session_positions = {}
