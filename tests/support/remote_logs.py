"""A log of the target in memory, as `DestinationPort` shows it to whoever compares its end."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from twinlog.engines.ports import LogEnd
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.log.batch import batches
from twinlog.kafka.log.markers import aborts
from twinlog.kafka.log_reader import ReadAlone
from twinlog.kafka.protocol.fetch import Fetched
from twinlog.kafka.types import AbortedTransaction, LogBounds, TopicPartition


@dataclass
class RemoteLog:
    """A partition with these batches, in order; some of its answers have no records."""

    found: bytes
    end: int
    start: int = 0
    replicated: int | None = None
    """The high watermark; None: the log end."""
    error: int = 0
    """Of every answer."""
    empty: int = 0
    """How many Fetch answers have no records, from the first one on."""
    throttle_ms: int = 0
    local_start: int = 0
    compacts: bool = False
    reads: int = 0
    """Fetch requests so far, read_uncommitted."""
    asked: int = 0
    """The same, read_committed."""
    hides: bool = False
    """Whether these have no records."""
    error_committed: int = 0
    """Of these."""
    longest_wait_ms: int = 0
    """Of these requests."""
    leader_epoch: int = 0
    batches_each: int = 1000
    """How many batches an answer has at most."""

    async def log_ends(self, keys: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogEnd]:
        """The same end for each."""
        return {key: LogEnd(self.error, self.end, self.leader_epoch) for key in keys}

    async def bounds(self, keys: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogBounds]:
        """The same bounds for each."""
        return {key: LogBounds(self.error, self.start, self.end, self.end) for key in keys}

    async def read_alone(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        max_wait_ms: int,
        partition_max_bytes: int,
        committed: bool = False,
    ) -> ReadAlone:
        """The batches from the offset on, up to the high watermark, or what is decided."""
        del partition
        if committed:
            self.asked += 1
            return self._committed(offset)
        self.longest_wait_ms = max(self.longest_wait_ms, max_wait_ms)
        assert partition_max_bytes > 0
        self.reads += 1
        watermark = self.end if self.replicated is None else self.replicated
        code = self.error
        if not code and not self.start <= offset <= self.end:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        records = b""
        if not code and self.reads > self.empty:
            headers = [one for one in batches(memoryview(self.found)) if one.next_offset > offset]
            for one in [one for one in headers if one.next_offset <= watermark][
                : self.batches_each
            ]:
                records += self.found[one.position : one.end]
        fetched = Fetched(code, watermark, watermark, self.start, (), memoryview(records))
        return ReadAlone(fetched, self.throttle_ms, 0, self.local_start, self.compacts)

    def _committed(self, offset: int) -> ReadAlone:
        """The batches from the offset on in front of the first open transaction."""
        watermark = self.end if self.replicated is None else self.replicated
        buffer, open_from, aborted = memoryview(self.found), dict[int, int](), []
        headers = [one for one in batches(buffer) if one.next_offset <= watermark]
        for one in headers:
            if not one.is_transactional:
                continue
            if not one.is_control:
                open_from.setdefault(one.producer_id, one.base_offset)
                continue
            first = open_from.pop(one.producer_id, None)
            if first is not None and aborts(one, buffer) and one.base_offset >= offset:
                aborted.append(AbortedTransaction(one.producer_id, first))
        stable = min([watermark, *open_from.values()])
        records = b""
        code = self.error or self.error_committed
        if not code and self.start <= offset < stable and not self.hides:
            shown = [one for one in headers if offset < one.next_offset <= stable]
            records = b"".join(self.found[one.position : one.end] for one in shown[:1])
        fetched = Fetched(code, watermark, stable, self.start, tuple(aborted), memoryview(records))
        return ReadAlone(fetched, self.throttle_ms, 0, self.local_start, self.compacts)
