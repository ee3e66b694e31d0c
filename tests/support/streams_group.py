"""A streams group (KIP-1071), made as a Kafka Streams client does; no Python client supports it."""

import asyncio
from typing import Any
from uuid import uuid4

from clients import client
from kafka.protocol.api_message import ApiMessage

import schemas
from twinlog.kafka.client.coordinators import Coordinator
from twinlog.kafka.errors import check
from twinlog.kafka.groups.offsets import Committed, commit_offsets
from twinlog.kafka.types import TopicPartition
from twinlog.local.cluster import LocalCluster

_JOIN, _LEAVE = 0, -1


class StreamsGroupHeartbeatRequest(ApiMessage, load_json=schemas):  # type: ignore[call-arg]
    """The request of API 88."""


class StreamsGroupHeartbeatResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg]
    """The response of API 88."""


def _heartbeat(group: str, member: str, epoch: int, topic: str | None) -> Any:
    topology = None
    if topic is not None:
        kind = StreamsGroupHeartbeatRequest.Topology
        part = kind.Subtopology(
            subtopology_id="0",
            source_topics=[topic],
            source_topic_regex=[],
            state_changelog_topics=[],
            repartition_sink_topics=[],
            repartition_source_topics=[],
            copartition_groups=[],
        )
        topology = kind(epoch=0, subtopologies=[part])
    tasks: list[Any] | None = [] if topic is not None else None
    return StreamsGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        endpoint_information_epoch=0,
        instance_id=None,
        rack_id=None,
        rebalance_timeout_ms=30_000,
        topology=topology,
        active_tasks=tasks,
        standby_tasks=tasks,
        warmup_tasks=tasks,
        process_id=member,
        user_endpoint=None,
        client_tags=[],
        task_offsets=None,
        task_end_offsets=None,
        shutdown_application=False,
        max_version=0,
    )


def make_streams_group(
    cluster: LocalCluster, group: str, offsets: dict[TopicPartition, int]
) -> None:
    """Make a streams group without members, with committed offsets of one topic."""
    [topic] = {partition.topic for partition in offsets}

    async def run() -> None:
        async with client(cluster) as kafka:
            member = str(uuid4())
            for epoch, name in ((_JOIN, topic), (_LEAVE, None)):
                request = _heartbeat(group, member, epoch, name)
                answer = await kafka.coordinators.call(Coordinator.GROUP, group, request)
                check(answer.error_code, "heartbeat", answer.error_message)
            committed = {one: Committed(offset) for one, offset in offsets.items()}
            refused = [
                offset
                for offset in (await commit_offsets(kafka, group, committed)).values()
                if offset
            ]
            assert not refused, refused

    asyncio.run(run())
