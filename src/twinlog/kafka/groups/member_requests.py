"""A member's requests to its group's coordinator, and what the errors mean for the member.

    error                            raises
    -------------------------------  ------------------------------------------------------------
    25, 22                           `MembershipLostError`: what the member owns is lost
    retriable, lost, not decoded     `RejoinError`: the member retries, and keeps what it owns
    an operator has to end it        `UserError` before the first join, afterwards `RejoinError`:
                                     credentials and rights that were withdrawn may be restored
    82 FENCED_INSTANCE_ID            `Fenced`: another process has the instance id

Each request is sent once. Heartbeats have their own connection and continue while a JoinGroup waits
for the other members: a broker answers the requests of one connection in order.
"""

import asyncio
import logging
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.coordinators import Coordinator
from twinlog.kafka.client.pool import Lane
from twinlog.kafka.error_codes import ErrorCode
from twinlog.kafka.errors import ProtocolError, Reaction, Retriable, UserError, check, code_of
from twinlog.kafka.groups import assignor as assignment
from twinlog.kafka.groups.group_config import GroupConfig

log = logging.getLogger(__name__)

JOIN_LAPSE: Final = 5.0
"""Seconds over the rebalance timeout for a JoinGroup or SyncGroup, as in Kafka's client."""
LEAVE_TIMEOUT: Final = 5.0

_NO_GENERATION: Final = -1
_JOIN: Final = "join"
_BEAT: Final = "beat"


class MemberIdentity(NamedTuple):
    """How the coordinator knows a member, and the generation of the group that it is in."""

    member_id: str = ""
    generation: int = _NO_GENERATION


class RejoinError(Exception):
    """The round failed: rejoin, and keep what is owned."""


class MembershipLostError(Exception):
    """The coordinator does not know the member any more, or not in this generation."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class MemberRequests:
    """The requests of one member, on connections of its own.

    `has_joined` is set by the member: from then on no refusal ends the membership.
    """

    def __init__(self, cluster: KafkaCluster, config: GroupConfig) -> None:
        self.has_joined = False
        self._cluster = cluster
        self._config = config
        self._refusal_text = ""

    async def join(self, identity: MemberIdentity, owned: Collection[int]) -> Any:
        """Send a JoinGroup; return the response, whose error code the caller checks."""
        config = self._config
        metadata = assignment.encode_subscription(config.topic, owned, identity.generation)
        protocol = JoinGroupRequest.JoinGroupRequestProtocol
        request = JoinGroupRequest(
            group_id=config.group_id,
            session_timeout_ms=int(config.session_timeout * 1000),
            rebalance_timeout_ms=int(config.rebalance_timeout * 1000),
            member_id=identity.member_id,
            group_instance_id=config.instance_id,
            protocol_type=assignment.PROTOCOL_TYPE,
            protocols=[protocol(name=assignment.PROTOCOL_NAME, metadata=metadata)],
            min_version=5,
        )
        return await self._send(request, _JOIN, self._join_timeout)

    async def sync(
        self,
        identity: MemberIdentity,
        protocol_name: str,
        assignments: list[Any],
        *,
        purpose: str = _JOIN,
        timeout: float | None = None,
    ) -> bytes:
        """Send a SyncGroup, with all members' assignments if the member leads; return its own."""
        request = SyncGroupRequest(
            group_id=self._config.group_id,
            generation_id=identity.generation,
            member_id=identity.member_id,
            group_instance_id=self._config.instance_id,
            protocol_type=assignment.PROTOCOL_TYPE,
            protocol_name=protocol_name,
            assignments=assignments,
        )
        response = await self._send(request, purpose, timeout or self._join_timeout)
        self.check(response.error_code, "get the group's assignment")
        return bytes(response.assignment)

    async def sync_again(self, identity: MemberIdentity, protocol_name: str) -> None:
        """Check that the group is stable in the generation that this member has synced in.

        The answer does not wait for other members. Unlike a heartbeat's, it is not 0 while the
        coordinator is loading the group (14 or 27; 3.9.1 and 4.3.1).
        """
        timeout = self._config.session_timeout / 3
        await self.sync(identity, protocol_name, [], purpose=_BEAT, timeout=timeout)

    async def heartbeat(self, identity: MemberIdentity) -> int:
        """Send a heartbeat; return the response's error code: 0 also while the group is loaded."""
        request = HeartbeatRequest(
            group_id=self._config.group_id,
            generation_id=identity.generation,
            member_id=identity.member_id,
            group_instance_id=self._config.instance_id,
            min_version=3,
        )
        response = await self._send(request, _BEAT, self._config.session_timeout / 3)
        return int(response.error_code)

    async def leave(self, identity: MemberIdentity) -> None:
        """Send a LeaveGroup; without it, the session timeout removes the member."""
        item = LeaveGroupRequest.MemberIdentity
        member = item(
            member_id=identity.member_id,
            group_instance_id=self._config.instance_id,
            reason="closed",
        )
        request = LeaveGroupRequest(
            group_id=self._config.group_id, member_id=identity.member_id, members=[member]
        )
        await self._send(request, _BEAT, LEAVE_TIMEOUT)

    async def close(self) -> None:
        """Close the connections."""
        await self._cluster.close_lanes({self._lane(_JOIN), self._lane(_BEAT)})

    def check(self, code: int, action: str) -> None:
        """Raise the exception that an error code of the coordinator means for a member."""
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            raise MembershipLostError(code)
        reaction = code_of(code).reaction
        if reaction is Reaction.COORDINATOR:
            self._cluster.coordinators.forget(Coordinator.GROUP, self._config.group_id)
        if reaction.retriable:
            raise RejoinError(f"cannot {action}: {code_of(code).name}")
        try:
            check(code, f"{action} {self._config.group_id}")
        except UserError as error:
            raise self._refusal(error) from error

    @property
    def _join_timeout(self) -> float:
        return self._config.rebalance_timeout + JOIN_LAPSE

    def _lane(self, purpose: str) -> Lane:
        return f"group {self._config.group_id} {id(self)} {purpose}"

    async def _send(self, request: Any, purpose: str, timeout: float) -> Any:
        """Send a request to the coordinator once, on this member's own connection."""
        group = self._config.group_id
        try:
            async with asyncio.timeout(timeout):
                node = await self._cluster.coordinators.find(Coordinator.GROUP, group)
                connection = await self._cluster.connection(node, self._lane(purpose))
                return await connection.call(request, timeout=timeout)
        except (Retriable, ProtocolError, TimeoutError) as error:
            self._cluster.coordinators.forget(Coordinator.GROUP, group)
            raise RejoinError(str(error) or "no response") from error
        except UserError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: UserError) -> Exception:
        """The exception for a refusal that an operator must end; retriable once joined."""
        if not self.has_joined:
            return error
        if str(error) != self._refusal_text:
            self._refusal_text = str(error)
            log.warning("group %s: %s", self._config.group_id, error)
        return RejoinError(str(error))
