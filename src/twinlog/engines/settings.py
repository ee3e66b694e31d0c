"""The named limits of a lane: each buffer, wait and retry of the data plane."""

from dataclasses import dataclass
from typing import Final

from twinlog.kafka.backoff import Backoff

SMALLEST_BUFFER: Final = 16 * 1024 * 1024
"""The least `buffer_bytes`: two Fetch answers, one that is appended while the next arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSettings:
    """Limits of one lane, with their units in their names.

    `buffer_bytes` bounds the source's data that a lane holds, whatever the backlog: no fetch is
    sent that could exceed it alone. A Fetch answer is held whole until its last batch is
    acknowledged.

    Fetches with answers smaller than `fetch_small_bytes` are `fetch_pace_s` apart: otherwise each
    record of a slow stream would be a request of its own, to both clusters.
    """

    buffer_bytes: int = 64 * 1024 * 1024
    fetch_max_bytes: int = 8 * 1024 * 1024
    partition_fetch_bytes: int = 1024 * 1024
    partition_queue_bytes: int = 2 * 1024 * 1024
    fetch_max_wait_ms: int = 500
    fetch_busy_wait_ms: int = 5
    fetch_small_bytes: int = 64 * 1024
    fetch_pace_s: float = 0.02
    fetchers_per_broker: int = 1
    produce_max_bytes: int = 4 * 1024 * 1024
    produce_in_flight: int = 4
    fillers: int = 4
    markers_at_once: int = 10_000
    marker_deadline_s: float = 10.0
    lease_s: float = 10.0
    producer_expiration_ms: int = 86_400_000
    ids_expiration_ms: int = 604_800_000
    position_pause_s: float = 0.02
    read_partitions_at_once: int = 50
    attempts: int = 10
    backoff_s: float = 0.1
    backoff_max_s: float = 30.0
    ahead_patience_s: float = 30.0
    corrupt_reads: int = 3
    leaders_pause_s: float = 0.1
    leaders_max_age_s: float = 30.0
    trim_interval_s: float = 1.0

    @property
    def backoff(self) -> Backoff:
        """The backoff of partitions and lanes."""
        return Backoff(self.backoff_s, self.backoff_max_s, jitter=0.5)
