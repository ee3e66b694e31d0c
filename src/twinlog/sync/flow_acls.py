"""ACLs of remote topics follow those of the source's topics (`sync.topic.acls.enabled`, KIP-382).

mirror/remote_acls.py has the rules for the ACLs, acls.py those by which an exact mirror keeps both
clusters' ACLs apart. They hold for flows too:

- only ACLs that the flow has made are removed, and only if the source no longer has what they were
  copied from (absent_acls.py). MirrorMaker 2 removes none;
- a denial that would stop nodes is not copied, and neither is an ALLOW that it limits;
- ACLs of a remote topic whose flow is paused or removed are left as they are.

A remote topic may have records of several flows (`IdentityReplicationPolicy`, and two sources).
Each flow knows the ACLs of its own source alone. So a denial that it has made is not removed there
when its source no longer has it: the other source may still deny the same, and its flow makes no
copy of its own while there is one. An ALLOW opens the records of both sources, as in MirrorMaker 2.
The log reports both.

An ACL is copied when its topic is in the flow. FlowTopics runs before, so this may be the refresh
that creates the remote topic, else the next one at `sync.topic.acls.interval.seconds`.

Which ACLs the source's own mirrors have made is not asked here, so the source's principal needs no
right to read `__mirror_config`: a flow copies no topic that came from its target, so none of the
target's own ACLs returns to it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from twinlog.kafka.acls import (
    Acl,
    AclChanges,
    AclRule,
    Permission,
    ResourceType,
    acl_changes,
    nodes_among,
)
from twinlog.kafka.requests.acls import acls_of_any_broker, describe_acls
from twinlog.mirror.acl_scope import AclScope, Choice, choose_all
from twinlog.mirror.flow import FlowRules, flow_of, flow_settings_of
from twinlog.mirror.remote_acls import remote_acls
from twinlog.store.config_records import MadeFor, Mirror, Wanted
from twinlog.store.control_topics import STATE_TOPIC
from twinlog.store.snapshot import Snapshot
from twinlog.sync.absent_acls import AbsentAcls, MirrorTexts
from twinlog.sync.acls import AclSync, NoAuthorizer, check_acls_known, report_denials
from twinlog.sync.base import Moved, Sync, SyncContext
from twinlog.sync.created_acls import carry_out
from twinlog.sync.flow_topics import FLOWS
from twinlog.text import few

_RULES: Final = (AclRule(resource_type=ResourceType.TOPIC),)
_KEPT: Final = frozenset({Choice.LEFT, Choice.WITHHELD, Choice.BEYOND})
"""Decisions by which a copy that exists is not removed."""
_SHARED: Final = "shared"


class RemoteAcls(NamedTuple):
    """How the ACLs of a flow's remote topics differ from the source's."""

    changes: AclChanges
    """What has to be changed."""
    names: dict[str, str]
    """The remote names of the flow's topics, by the source's; also of those that are copied no
    more, if others are copied to the same remote topic."""
    absent: frozenset[Acl]
    """The ACLs of `changes.remove` that this answer of the source does not list."""
    denying: frozenset[Acl]
    """Denials that are not copied, since they would stop nodes."""
    withheld: frozenset[Acl]
    """ACLs that are not copied, since a denial that limits them is not."""
    shared: frozenset[str]
    """Remote topics that topics of other mirrors are, were, or may be copied to as well."""


class FlowAcls(Sync[RemoteAcls | NoAuthorizer | None]):
    """Copies ACLs to the remote topics of flows."""

    kinds = FLOWS
    name = "ACLs of a flow"
    metric = AclSync.metric

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._texts = MirrorTexts()
        self._absent = AbsentAcls(self._texts, clock)

    def interval_s(self, mirror: Mirror) -> float:
        """`sync.topic.acls.interval.seconds`; a negative one is never (`compare`).

        While the source lacks an ACL each refresh looks again: two checks remove the copy.
        """
        settings = flow_settings_of(mirror.source)
        return 0 if self._absent.waits(mirror.name) else settings.sync_topic_acls_interval_seconds

    def forget(self, moved: Moved) -> None:
        """Begin anew to conclude that an ACL is absent."""
        self._absent.forget(moved)

    async def compare(self, context: SyncContext) -> RemoteAcls | NoAuthorizer | None:
        """Compare the ACLs of both clusters; None: the flow does not copy ACLs.

        Raises:
            UserError: the right to describe ACLs is missing, or the flow's settings are malformed.
            Retriable: a cluster is unreachable.
        """
        flow = flow_of(context.mirror.source)
        if not flow.settings.syncs_topic_acls:
            return None
        source, destination, store = context.source, context.destination, context.store
        before = await store.snapshot()
        source_acls = await describe_acls(source)
        destination_acls = await acls_of_any_broker(destination)
        if source_acls is None:
            return NoAuthorizer("source")
        if destination_acls is None:
            return NoAuthorizer("destination")
        snapshot = await store.snapshot()
        check_acls_known(before)
        check_acls_known(snapshot)
        # What a switchover denies on the source is remembered before it exists, and forgotten after
        # it is gone.
        source_acls -= before.made_of(source.cluster_id, MadeFor.SWITCHOVER)
        source_acls -= snapshot.made_of(source.cluster_id, MadeFor.SWITCHOVER)
        recorded = snapshot.made_acls(context.name, MadeFor.SOURCE)
        topics = snapshot.topics_of(context.name)
        remotes = {one.destination_name for one in topics if one.wanted is Wanted.MIRRORING}
        names = {
            topic.topic: topic.destination_name
            for topic in topics
            if topic.destination_name in remotes
        }
        scope = _scope(snapshot, context.name, flow, names, destination_acls)
        shared = _shared(snapshot, context.name, flow, names)

        def decide() -> tuple[frozenset[Acl], dict[Acl, Choice]]:
            copies = remote_acls(source_acls, names)
            return copies, choose_all(copies, destination_acls, recorded, _RULES, scope)

        # In a thread: with ten thousand ACLs it takes a second or two.
        copies, choices = await asyncio.to_thread(decide)
        kept = frozenset(
            acl
            for acl, choice in choices.items()
            if choice in _KEPT or _denies_shared(acl, choice, shared)
        )
        copied = frozenset(acl for acl in copies if choices[acl] is Choice.COPIED)
        changes = acl_changes(copied, destination_acls, recorded - kept)
        # Where an operator has removed a denial, one that is created later is not the flow's.
        gone = frozenset(
            acl
            for acl in recorded - copied - destination_acls
            if _denies_shared(acl, choices[acl], shared)
        )
        changes = changes._replace(forget=changes.forget | gone)
        return RemoteAcls(
            changes,
            names,
            absent=changes.remove - copies,
            denying=frozenset(acl for acl in copies if choices[acl] is Choice.DENYING),
            withheld=frozenset(acl for acl in copies if choices[acl] is Choice.WITHHELD),
            shared=shared,
        )

    async def apply(
        self, context: SyncContext, difference: RemoteAcls | NoAuthorizer | None
    ) -> int:
        """Make and remove ACLs of remote topics; return how many could not be changed.

        Raises:
            UserError: a right is missing.
            Retriable: a cluster is unreachable.
        """
        if difference is None:
            return 0
        if isinstance(difference, NoAuthorizer):
            # MirrorMaker 2 also regards a source without an authorizer as usual.
            level = logging.INFO if difference.side == "source" else logging.WARNING
            text = (
                f"ACLs of topics are not copied: the {difference.side} has no authorizer; "
                "sync.topic.acls.enabled=false ends the attempts"
            )
            self._texts.tell(context.name, "none", text, level)
            return 0
        report_denials(self._texts, context.name, difference.denying, difference.withheld)
        self._tell_shared(context.name, difference.shared)
        gone = await self._absent.gone(
            context.source,
            context.name,
            difference.absent,
            advice="remove them by kafka-acls",
            copies=lambda acls: remote_acls(acls, difference.names),
        )
        stays = difference.absent - gone
        changes = difference.changes._replace(
            remove=difference.changes.remove - stays, forget=difference.changes.forget - stays
        )
        return await carry_out(
            context.destination, context.store, context.name, changes, MadeFor.SOURCE
        )

    def _tell_shared(self, mirror: str, shared: frozenset[str]) -> None:
        """Log once what the ACLs of several sources mean for a remote topic."""
        if not shared:
            self._texts.last.pop((mirror, _SHARED), None)
            return
        text = (
            f"other flows copy topics to the same remote topics, or may have done so: "
            f"{few(sorted(shared))}; there an ALLOW of either source opens the records of both, "
            "and a copied DENY is not removed when the source no longer has it: remove it by "
            "kafka-acls"
        )
        self._texts.tell(mirror, _SHARED, text)


def _shared(
    snapshot: Snapshot, mirror: str, flow: FlowRules, names: Mapping[str, str]
) -> frozenset[str]:
    """Remote topics of a flow that have, or had, topics of other mirrors; heartbeats are no secret.

    A removed topic counts: its records are still there. One whose record cannot be read may be
    copied to any of them.
    """
    own = frozenset(
        remote for name, remote in names.items() if not flow.policy.is_heartbeats_topic(name)
    )
    if any(key[0] == "topic" and key[1] != mirror for key in snapshot.unread):
        return own
    return frozenset(
        topic.destination_name
        for topic in snapshot.topics
        if topic.mirror != mirror and topic.destination_name in own
    )


def _denies_shared(acl: Acl, choice: Choice, shared: frozenset[str]) -> bool:
    """Whether an ACL may be needed for the records of another source; one that stops nodes not."""
    return (
        acl.permission is not Permission.ALLOW
        and acl.resource_name in shared
        and choice is not Choice.DENYING
    )


def _scope(
    snapshot: Snapshot,
    mirror: str,
    flow: FlowRules,
    names: dict[str, str],
    destination_acls: frozenset[Acl],
) -> AclScope:
    """The scope by the remote names: topics of the flow, those paused or removed, and nodes."""
    nodes, _ = nodes_among(destination_acls, STATE_TOPIC, snapshot.copied_acls)
    alias = flow.settings.source_cluster_alias
    inactive = {
        topic.destination_name
        for topic in snapshot.topics_of(mirror)
        if topic.wanted is not Wanted.MIRRORING
    }
    unread = {
        flow.policy.format_remote_topic(alias, topic) for topic in snapshot.unread_topics(mirror)
    }
    return AclScope(
        topics=frozenset(names.values()),
        inactive_topics=frozenset(inactive | unread),
        nodes=nodes,
    )
