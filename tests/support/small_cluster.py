"""A cluster of one fake broker, in this process, with a few readable logs and one group.

It speaks Kafka's frames over loopback, so real clients and code that uses them run on it without
Kafka. Each topic has one partition. The group has one member besides its leader. The fake broker
itself is the leader, and assigns the partitions `given` to that member.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from fake_broker import HEARTBEAT, FakeBroker, Request, framed
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    SyncGroupResponse,
)
from kafka.protocol.metadata import FindCoordinatorResponse, MetadataRequest, MetadataResponse
from kafka.protocol.producer import InitProducerIdResponse

from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.groups.assignor import PROTOCOL_NAME, encode_assignment
from twinlog.kafka.log.batch import batches

FETCH: Final = 1
INIT_PRODUCER_ID: Final = 22
NODE: Final = 1
CLUSTER_ID: Final = "small"
RANGES: Final[Mapping[int, tuple[int, int]]] = {
    FETCH: (4, 12),
    2: (1, 5),  # ListOffsets
    3: (0, 8),  # Metadata
    10: (0, 2),  # FindCoordinator
    11: (0, 5),  # JoinGroup
    HEARTBEAT: (0, 3),
    14: (0, 3),  # SyncGroup
    18: (0, 3),  # ApiVersions
    INIT_PRODUCER_ID: (0, 1),
    24: (0, 2),  # AddPartitionsToTxn
    26: (0, 2),  # EndTxn
    61: (0, 0),  # DescribeProducers
}
"""The broker's APIs and versions. It implements only some of them: others get no answer."""
FLEXIBLE: Final = {FETCH: 12}
_EARLIEST: Final = -2


@dataclass
class SmallCluster:
    """The content of the broker's answers.

    Args:
        logs: by topic, the batches of its partition 0, which begins at offset 0.
        topic: the group's topic.
        given: the partitions of that topic that the member gets.
    """

    logs: Mapping[str, bytes] = field(default_factory=dict)
    topic: str = ""
    given: Collection[int] = ()
    beats: bool = True
    """Whether heartbeats are answered."""
    broker: FakeBroker = field(default_factory=FakeBroker)

    @property
    def servers(self) -> str:
        """The address for `bootstrap.servers`."""
        return f"127.0.0.1:{self.broker.port}"

    def count(self, api_key: int) -> int:
        """Return how many requests of an API have arrived."""
        return sum(1 for request in self.broker.requests if request.api_key == api_key)

    async def answer(self, request: Request) -> bytes | None:
        """Return the response to a request; None sends none."""
        if request.api_key == HEARTBEAT and not self.beats:
            return None
        make: Callable[[Request], Any] | None = {
            FETCH: self._fetched,
            2: self._listed,
            3: self._metadata,
            10: lambda _: FindCoordinatorResponse(
                error_code=0, node_id=NODE, host="127.0.0.1", port=self.broker.port
            ),
            11: lambda _: JoinGroupResponse(
                error_code=0,
                generation_id=1,
                protocol_name=PROTOCOL_NAME,
                leader="leader",
                member_id="member",
                members=[],
            ),
            HEARTBEAT: lambda _: HeartbeatResponse(error_code=0),
            14: lambda _: SyncGroupResponse(
                error_code=0, assignment=encode_assignment(self.topic, self.given)
            ),
            INIT_PRODUCER_ID: lambda _: InitProducerIdResponse(
                error_code=0, producer_id=7, producer_epoch=0
            ),
        }.get(request.api_key)
        response = None if make is None else make(request)
        if response is None:
            return None
        flexible = request.version >= FLEXIBLE.get(request.api_key, request.version + 1)
        body = bytes(response.encode(version=request.version))
        return framed(request.correlation_id, body, flexible=flexible)

    def _metadata(self, request: Request) -> MetadataResponse:
        """Return all topics, and an error for those of the request that do not exist."""
        asked = MetadataRequest.decode(_body(request), version=request.version).topics or ()
        topic = MetadataResponse.MetadataResponseTopic
        partition = topic.MetadataResponsePartition(
            error_code=0,
            partition_index=0,
            leader_id=NODE,
            leader_epoch=0,
            replica_nodes=[NODE],
            isr_nodes=[NODE],
            offline_replicas=[],
        )
        broker = MetadataResponse.MetadataResponseBroker
        return MetadataResponse(
            brokers=[broker(node_id=NODE, host="127.0.0.1", port=self.broker.port)],
            cluster_id=CLUSTER_ID,
            controller_id=NODE,
            topics=[
                *(topic(error_code=0, name=name, partitions=[partition]) for name in self.logs),
                *(
                    topic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=one.name)
                    for one in asked
                    if one.name not in self.logs
                ),
            ],
        )

    def _end(self, topic: str) -> int:
        return max(
            (batch.next_offset for batch in batches(memoryview(self.logs[topic]))), default=0
        )

    def _listed(self, request: Request) -> ListOffsetsResponse:
        asked = ListOffsetsRequest.decode(_body(request), version=request.version)
        topic = ListOffsetsResponse.ListOffsetsTopicResponse
        return ListOffsetsResponse(
            topics=[
                topic(
                    name=one.name,
                    partitions=[
                        topic.ListOffsetsPartitionResponse(
                            partition_index=0,
                            error_code=0,
                            offset=0 if part.timestamp == _EARLIEST else self._end(one.name),
                            leader_epoch=0,
                        )
                        for part in one.partitions
                    ],
                )
                for one in asked.topics
            ]
        )

    def _fetched(self, request: Request) -> FetchResponse | None:
        """Return all of one log, at any fetch offset; None if there is nothing new."""
        asked = FetchRequest.decode(_body(request), version=request.version)
        (one,) = asked.topics
        (part,) = one.partitions
        end = self._end(one.topic)
        if part.fetch_offset >= end:
            return None
        topic = FetchResponse.FetchableTopicResponse
        found = topic.PartitionData(
            partition_index=0,
            error_code=0,
            high_watermark=end,
            last_stable_offset=end,
            log_start_offset=0,
            aborted_transactions=[],
            records=self.logs[one.topic],
        )
        return FetchResponse(responses=[topic(topic=one.topic, partitions=[found])])


def _body(request: Request) -> bytes:
    """Return the request without its header."""
    length = int.from_bytes(request.frame[8:10], "big", signed=True)
    tags = 1 if request.version >= FLEXIBLE.get(request.api_key, request.version + 1) else 0
    return request.frame[10 + max(length, 0) + tags :]


@asynccontextmanager
async def small_cluster(
    logs: Mapping[str, bytes] | None = None,
    *,
    topic: str = "",
    given: Collection[int] = (),
    lacking: Collection[int] = (),
) -> AsyncIterator[SmallCluster]:
    """Start a small cluster whose broker lacks some of the APIs."""
    small = SmallCluster(logs or {}, topic, given)
    ranges = {key: versions for key, versions in RANGES.items() if key not in lacking}
    async with FakeBroker(small.answer, ranges) as small.broker:
        yield small
