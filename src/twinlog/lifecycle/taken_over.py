"""Where a flow begins in one partition that MirrorMaker 2 has copied: the result, and its line.

flow_takeover.py finds it out. A line names the records that may be copied twice, and why, and those
that are not copied although the target does not have them.
"""

from typing import Final, NamedTuple

from twinlog.kafka.errors import UserError
from twinlog.kafka.types import LogBounds, Offset, TopicPartition
from twinlog.mirror.copied_tail import OffsetRange
from twinlog.mirror.flow_settings import TAKEOVER, TAKEOVER_CONNECTOR

NAME_CONNECTOR: Final = (
    f"if one of the connectors is MirrorMaker 2's, set {TAKEOVER_CONNECTOR} to its name"
)


class TakenOver(NamedTuple):
    """Where a flow begins in a partition that MirrorMaker 2 has copied before."""

    source: TopicPartition
    begin: Offset
    """Of the source: nothing below is copied."""
    recorded: Offset | None
    """Up to which offset of the source MirrorMaker 2 has recorded all as copied."""
    repeated: OffsetRange | None = None
    """Source offsets from `begin` on that MirrorMaker 2 may have copied, too."""
    reason: str = ""
    """Why it is not known what it had copied."""
    is_usual: bool = False
    """Whether it begins as without a takeover, so that nothing has to be stored of it."""
    left_out: OffsetRange | None = None
    """Source offsets in front of `begin` that an empty remote partition does not have."""

    @property
    def warns(self) -> bool:
        """Whether the line names records that may be copied twice, or are not copied."""
        return self.repeated is not None or self.left_out is not None

    def __str__(self) -> str:
        """A line for the operator."""
        recorded = "nothing" if self.recorded is None else f"offset {self.recorded}"
        text = (
            f"{self.source}: begins at offset {self.begin}, MirrorMaker 2 has recorded {recorded}"
        )
        if self.left_out is not None:
            return (
                f"{text}; {self.reason}, and {self.left_out} of the source is not copied to it, as "
                f"{TAKEOVER}=recorded says"
            )
        if self.repeated is None:
            return f"{text}; no record is copied twice"
        count = self.repeated.end - self.repeated.start
        return f"{text}; up to {count} records, {self.repeated}, may be copied twice: {self.reason}"


def begun_behind(begun: TakenOver, start: int, remote: str | None) -> TakenOver:
    """A partition that begins behind what is recorded, although its remote partition is empty.

    Args:
        begun: where it begins.
        start: of the source's log.
        remote: the remote topic; None: there was none.
    """
    left_out = OffsetRange(Offset(start), begun.begin) if begun.begin > start else None
    return begun._replace(repeated=None, reason=_place(begun.source, remote), left_out=left_out)


def _place(source: TopicPartition, remote: str | None) -> str:
    return "it has no remote topic" if remote is None else f"{remote}-{source.partition} is empty"


def begun_whole(
    source: TopicPartition,
    bounds: LogBounds,
    recorded: Offset,
    remote: str | None,
    *,
    by_others: bool,
    is_usual: bool,
) -> TakenOver:
    """A partition that is copied from the source's beginning, as its remote partition is empty.

    Args:
        source: the partition.
        bounds: of the source's log.
        recorded: up to which offset something is recorded as copied.
        remote: the remote topic; None: there was none.
        by_others: whether only other connectors have recorded it, which `recorded` does not
            believe.
        is_usual: whether it would begin there without a takeover.
    """
    if by_others:
        why = "only other connectors have recorded it"
    elif recorded >= bounds.high_watermark:
        why = (
            f"the source's log ends at {bounds.high_watermark}, so the topic was recreated, or has "
            "lost records"
        )
    else:
        why = (
            "they may have been deleted there, copied to another topic, or left out; "
            f"{TAKEOVER}=recorded begins at offset {recorded + 1}"
        )
    end = max(bounds.start, min(recorded + 1, bounds.high_watermark))
    copied = OffsetRange(Offset(bounds.start), Offset(end))
    repeated = copied if copied.end > copied.start else None
    reason = f"{_place(source, remote)}, and {why}"
    return TakenOver(source, copied.start, recorded, repeated, reason, is_usual=is_usual)


def doubtful(
    source: TopicPartition, recorded: Offset | None, repeated: OffsetRange, reason: str
) -> TakenOver:
    """A partition that begins at the first record that may be there already, if any is.

    Args:
        source: the partition.
        recorded: up to which offset MirrorMaker 2 has recorded all as copied.
        repeated: what may be copied twice; its start is where the partition begins.
        reason: why it is not known.
    """
    some = repeated if repeated.end > repeated.start else None
    return TakenOver(source, repeated.start, recorded, some, reason)


def not_believed(source: TopicPartition, offset: Offset) -> UserError:
    """The refusal to begin by an offset that MirrorMaker 2's own connector has not recorded.

    Args:
        source: a partition that may have copies.
        offset: what other connectors have recorded.
    """
    return UserError(
        f"of {source}, only other connectors have recorded an offset ({offset}), which may be of "
        "copies in another topic",
        hint=f"{NAME_CONNECTOR}; or {TAKEOVER}=compare finds by the records what was copied, "
        "unless transforms may have routed it; or leave the topic out (topics.exclude), or "
        f"{TAKEOVER}=ignore copies all again",
    )


def begins_anew(topic: str) -> str:
    """How one topic is copied from its beginning, and the others of the flow are not."""
    return (
        f"exclude {topic} (topics.exclude) and take over the others; then select it again with "
        f"{TAKEOVER}=ignore, which copies all that the source has of it now"
    )
