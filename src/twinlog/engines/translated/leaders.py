"""Where a flow's partitions are led, on both clusters, and whether their topics were recreated."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, Generic

from twinlog.engines.base import Assignment
from twinlog.engines.ports import (
    WHOLE_TOPIC,
    DestinationPort,
    LeaderReport,
    SourcePort,
)
from twinlog.engines.translated.partitions import (
    LACKS_REPLICAS,
    FlowPartition,
    FlowPartitions,
    FlowStage,
    Q,
    W,
)
from twinlog.engines.translated.remote_log import RECREATED
from twinlog.kafka.client.metadata import is_another
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import Refusal, Retriable, code_of
from twinlog.kafka.types import UNKNOWN_EPOCH, LeaderEpoch, Offset, TopicPartition
from twinlog.mirror.record_losses import RecordLoss

log = logging.getLogger(__name__)

_TO_BE_AGREED: Final = "the flow goes on in the new one once all brokers know it"


class FlowLeaders(Generic[W, Q]):
    """Follows the leaders of a flow's partitions."""

    def __init__(self, flow: FlowPartitions[W, Q], destination: DestinationPort) -> None:
        self._flow = flow
        self._destination = destination

    async def ask(self, source: SourcePort) -> None:
        """Ask both clusters."""
        partitions = list(self._flow.all.values())
        sources, destinations = await asyncio.gather(
            self._reports(source, {p: p.source for p in partitions}, _source_recreated),
            self._reports(
                self._destination, {p: p.destination for p in partitions}, _destination_recreated
            ),
        )
        if sources is None or destinations is None:
            self._flow.ask_leaders(failures=3)
            return
        for partition in partitions:
            if not partition.gone:
                self.led(partition, sources[partition], destinations[partition])
        self._flow.changed.set()

    async def _reports(
        self,
        port: SourcePort | DestinationPort,
        keys: Mapping[FlowPartition[W, Q], TopicPartition],
        recreated: Callable[[Assignment, LeaderReport | None], str | None],
    ) -> Mapping[FlowPartition[W, Q], LeaderReport | None] | None:
        """The leaders on one side; None: it is unreachable.

        From its answer on, fetches and appends use the topic ids in it. So these are compared at
        once, whenever the other cluster answers.
        """
        try:
            leaders = await port.leaders({key.topic for key in keys.values()})
        except Retriable as error:
            log.info("leaders cannot be refreshed now; retrying: %s", error)
            return None
        reports = {partition: leader_of(leaders, key) for partition, key in keys.items()}
        for partition, report in reports.items():
            if reason := recreated(partition.assignment, report):
                self._recreated(partition, reason, on_source=recreated is _source_recreated)
        return reports

    def _recreated(self, partition: FlowPartition[W, Q], reason: str, *, on_source: bool) -> None:
        """Stop a partition whose topic is another one now; the destination's lacks all copies.

        A node counts recreated topics of the source if the flow goes on with them (`FlowTopics`):
        this partition is soon another one.

        A flow that goes on in a recreated topic of the destination does so once its record names
        that one (sync/recreated_remotes.py). Until then the partition is neither located nor sent
        to. If this answer was of a broker that is behind, the next one ends that.
        """
        if not on_source and self._flow.passes_recreated:
            partition.destination_node = -1
            self._flow.fail(partition, f"{reason}; {_TO_BE_AGREED}")
            return
        failed_before = partition.stage is FlowStage.FAILED and not partition.transient
        sequence, counts = partition.sequence, not failed_before and not partition.begins
        partition.forget_sequence()
        if counts and not on_source:
            end = None if sequence is None else Offset(sequence.destination_end)
            loss = RecordLoss(partition.destination, None, end)
            self._flow.note_losses(partition, [loss])
        elif counts:
            self._flow.note_source_recreated(partition)
        self._flow.fail(partition, reason, transient=False)

    def led(
        self,
        partition: FlowPartition[W, Q],
        source: LeaderReport | None,
        destination: LeaderReport | None,
    ) -> None:
        """Take the leaders of one partition."""
        fail = self._flow.fail
        partition.lacks_source = (
            source is None or source.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        if source is None or partition.lacks_source:
            fail(partition, "the source does not have this partition")
        elif reason := _source_recreated(partition.assignment, source):
            self._recreated(partition, reason, on_source=True)
        elif destination is None or destination.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            fail(partition, "the destination does not have this partition")
        elif reason := _destination_recreated(partition.assignment, destination):
            self._recreated(partition, reason, on_source=False)
        elif refused := _refused(source, destination):
            partition.source_node = -1  # it is located once the refusal has ended
            fail(partition, refused)
        else:
            partition.source_node, partition.source_leader_epoch = source.node, source.epoch
            partition.destination_node = destination.node
            partition.held_back = LACKS_REPLICAS if partition.refusals else None
            former, newest = partition.destination_epoch, destination.epoch
            if UNKNOWN_EPOCH < former < newest:
                # The new leader may have lost records, and the producer that would have told.
                partition.elected = partition.locating
                self._flow.locate_again(partition, "the destination has elected another leader")
            partition.destination_epoch = LeaderEpoch(max(former, newest))
            if min(source.node, destination.node) < 0:
                side = "source" if source.node < 0 else "destination"
                partition.held_back = f"the {side} has no leader for this partition"
                self._flow.ask_leaders(failures=2)


def _refused(source: LeaderReport, destination: LeaderReport) -> str | None:
    """Why a partition may not be read or written; None: no broker says so."""
    for side, report in (("source", source), ("destination", destination)):
        if report.error and not code_of(report.error).reaction.retriable:
            return f"the {side} refuses: {Refusal(report.error)}"
    return None


def _source_recreated(wanted: Assignment, report: LeaderReport | None) -> str | None:
    if report is None or report.error or report.topic_id == wanted.source_topic_id:
        return None
    return "the source topic was deleted and recreated (twinlog.data.loss)"


def _destination_recreated(wanted: Assignment, report: LeaderReport | None) -> str | None:
    if report is None or not is_another(wanted.destination_topic_id, report.topic_id):
        return None
    return RECREATED


def leader_of(
    leaders: Mapping[TopicPartition, LeaderReport], key: TopicPartition
) -> LeaderReport | None:
    """What is reported of a partition, or of its whole topic; None: nothing."""
    return leaders.get(key, leaders.get(TopicPartition(key.topic, WHOLE_TOPIC)))
