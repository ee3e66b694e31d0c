"""A lane's settings as users write them: properties, with Kafka's name where Kafka has one.

Users cannot set these fields of `LaneSettings` (`NOT_OPTIONS`):

- the lease: it follows from the group's session timeout, and keeps a former owner from writing;
- the expirations of producer ids and transactional ids: they are the destination's
  (`producer.id.expiration.ms`, `transactional.id.expiration.ms`), and are read from it;
- the filler ids: all lanes of all nodes need the same ones, as each lane fences those of former
  owners.
"""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Final, NamedTuple

from twinlog.engines.settings import SMALLEST_BUFFER, LaneSettings
from twinlog.kafka.errors import UserError
from twinlog.kafka.protocol.frames import MAX_FRAME

NOT_OPTIONS: Final = frozenset(
    {"fillers", "lease_s", "producer_expiration_ms", "ids_expiration_ms"}
)

_SECONDS: Final = 1000
_HOUR: Final = 3_600_000
_GIGABYTE: Final = 1 << 30
_KILOBYTE: Final = 1 << 10


class LaneOption(NamedTuple):
    """A setting: its field, the smallest and the largest whole number allowed, its meaning.

    `scale` is the number of the property's units in one unit of the field.
    """

    field: str
    lowest: int
    highest: int
    meaning: str
    scale: int = 1

    @property
    def default(self) -> int:
        """The default, in the property's unit."""
        value: float = getattr(LaneSettings(), self.field)
        return round(value * self.scale)


OPTIONS: Final[Mapping[str, LaneOption]] = {
    "mirror.num.replica.fetchers": LaneOption(
        "fetchers_per_broker",
        1,
        64,
        "connections to each source broker (at least 4 if a round trip takes 50 ms)",
    ),
    "replica.fetch.wait.max.ms": LaneOption(
        "fetch_max_wait_ms", 0, 60_000, "maximum time that a source broker waits for data"
    ),
    "replica.fetch.max.bytes": LaneOption(
        "partition_fetch_bytes",
        _KILOBYTE,
        _GIGABYTE,
        "maximum bytes of one partition in a Fetch response",
    ),
    "replica.fetch.response.max.bytes": LaneOption(
        "fetch_max_bytes",
        _KILOBYTE,
        MAX_FRAME // 2,
        "maximum bytes of a Fetch response of a source broker",
    ),
    "max.request.size": LaneOption(
        "produce_max_bytes",
        _KILOBYTE,
        _GIGABYTE,
        "maximum bytes of a request to a destination broker",
    ),
    "max.in.flight.requests.per.connection": LaneOption(
        "produce_in_flight", 1, 64, "requests in flight to a destination broker"
    ),
    "retry.backoff.ms": LaneOption(
        "backoff_s", 1, _HOUR, "pause before a partition is retried", _SECONDS
    ),
    "retry.backoff.max.ms": LaneOption(
        "backoff_max_s", 1, _HOUR, "maximum of that pause after repeated failures", _SECONDS
    ),
    "metadata.max.age.ms": LaneOption(
        "leaders_max_age_s",
        1,
        _HOUR,
        "time between two refreshes of the partition leaders",
        _SECONDS,
    ),
    "lane.buffer.bytes": LaneOption(
        "buffer_bytes",
        SMALLEST_BUFFER,
        64 * _GIGABYTE,
        "maximum data of one source cluster that a lane buffers",
    ),
    "lane.partition.buffer.bytes": LaneOption(
        "partition_queue_bytes",
        _KILOBYTE,
        _GIGABYTE,
        "maximum data of one partition that a lane buffers",
    ),
    "lane.fetch.busy.wait.ms": LaneOption(
        "fetch_busy_wait_ms",
        0,
        60_000,
        "maximum time that a source broker waits for data while the buffer of a partition is full",
    ),
    "lane.fetch.small.bytes": LaneOption(
        "fetch_small_bytes",
        0,
        _GIGABYTE,
        "size of a Fetch response below which the next Fetch is delayed",
    ),
    "lane.fetch.pace.ms": LaneOption(
        "fetch_pace_s", 0, 60_000, "time between two Fetches in that case", _SECONDS
    ),
    "lane.attempts": LaneOption(
        "attempts", 1, 1000, "consecutive failures after which a partition is FAILED"
    ),
    "lane.corrupt.reads": LaneOption(
        "corrupt_reads", 1, 100, "how often a corrupt batch is read before its partition is FAILED"
    ),
    "lane.source.behind.ms": LaneOption(
        "ahead_patience_s",
        0,
        24 * _HOUR,
        "how long the source may end below the destination before the partition is FAILED",
        _SECONDS,
    ),
    "lane.positions.at.once": LaneOption(
        "read_partitions_at_once", 1, 10_000, "partitions whose positions are read together"
    ),
    "lane.position.pause.ms": LaneOption(
        "position_pause_s",
        1,
        60_000,
        "pause before an unsettled position is read again",
        _SECONDS,
    ),
    "lane.leaders.pause.ms": LaneOption(
        "leaders_pause_s",
        1,
        60_000,
        "pause between two refreshes of the leaders while leaders move",
        _SECONDS,
    ),
    "lane.trim.interval.ms": LaneOption(
        "trim_interval_s", 1, _HOUR, "time between two updates of log start offsets", _SECONDS
    ),
    "lane.markers.at.once": LaneOption(
        "markers_at_once", 1, 1_000_000, "offsets of a gap that one request fills"
    ),
    "lane.marker.deadline.ms": LaneOption(
        "marker_deadline_s",
        1,
        _HOUR,
        "how long to wait for the marker at an offset of a gap",
        _SECONDS,
    ),
}


def parse_lane_settings(properties: Mapping[str, str]) -> LaneSettings:
    """Parse a lane's settings from properties.

    Raises:
        UserError: a setting does not exist or is malformed, or two of them conflict.
    """
    values: dict[str, int | float] = {}
    for name, text in properties.items():
        option = OPTIONS.get(name)
        if option is None:
            raise UserError(f"{name} is not a setting of a lane", hint=_hint(name))
        values[option.field] = _number(name, option, text.strip())
    settings = replace(LaneSettings(), **values)  # type: ignore[arg-type]
    if settings.buffer_bytes < settings.fetch_max_bytes:
        raise UserError(
            f"lane.buffer.bytes is {settings.buffer_bytes}: expected at least "
            f"replica.fetch.response.max.bytes, which is {settings.fetch_max_bytes}"
        )
    return settings


def _number(name: str, option: LaneOption, text: str) -> int | float:
    number = int(text) if text.isascii() and text.isdecimal() else -1
    if not option.lowest <= number <= option.highest:
        allowed = f"a whole number from {option.lowest} to {option.highest}"
        raise UserError(f"{name} is {text!r}: expected {allowed}")
    return number if option.scale == 1 else number / option.scale


def _hint(name: str) -> str:
    near = get_close_matches(name, OPTIONS, n=1)
    return f"did you mean {near[0]}?" if near else f"lane settings: {', '.join(OPTIONS)}"
