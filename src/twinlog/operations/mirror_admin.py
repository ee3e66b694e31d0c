"""`MirrorAdmin`: all that `kafka-mirrors` does, as a typed Python API (KIP-1279, "Admin Client").

The names are the KIP's. It connects to the *destination* cluster, which holds the mirrors, and to
source clusters where a method needs them. When a method returns, the desired state is written: the
nodes (`twinlog run`) then take partitions there, and `describe_mirrors` shows their progress.

Topics are named in two ways: a text is what `--topic` is, a topic name or otherwise a regular
expression that has to match in full; a collection holds exact topic names.

Each result is data for programs and serialises itself (`serialise.json_data`): an interface parses
its arguments, calls a method, and prints or sends the result.

A failover begins with a command that imports this module. So what only readiness, switchover or
verify needs is imported when they are called: the syncs take 50 ms, Spark takes 200 ms.
"""

import re
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from twinlog.kafka.client.cluster import KafkaCluster
from twinlog.kafka.client.configuration import parse_config
from twinlog.kafka.client.redaction import shown
from twinlog.kafka.errors import Refusal
from twinlog.kafka.requests.partitions import DEBUGGING, list_offsets
from twinlog.lifecycle import changes as lifecycle
from twinlog.lifecycle import creation as mirrors
from twinlog.lifecycle.flow_selection import may_rename, require_same_names
from twinlog.lifecycle.rebuild import Rebuild
from twinlog.mirror.settings import FLOW_KINDS
from twinlog.operations.describe import DescribedPartition, describe, without_log_end
from twinlog.operations.flows import FlowAdmin
from twinlog.operations.log_dump import SegmentDump, dump_log
from twinlog.operations.readiness.verdict import Readiness, judge
from twinlog.operations.removal import await_stopped
from twinlog.operations.results import (
    AlterMirrorResult,
    ChangedTopics,
    CreateMirrorResult,
    DeleteMirrorResult,
    DescribeMirrorsResult,
    ListMirrorsResult,
    MirrorListing,
)
from twinlog.operations.switchover.records import (
    Allowed,
    ForgottenDenials,
    Producers,
    SwitchedOver,
    Tell,
)
from twinlog.operations.verification import VerifyConfig, verify_mirrors
from twinlog.operations.verification_report import Verification
from twinlog.runtime.job_progress import JobProgress
from twinlog.store.control_topics import take_control_topics
from twinlog.store.mirrors import MirrorStore, unknown_mirror
from twinlog.store.snapshot import Snapshot
from twinlog.store.statuses import ages_of
from twinlog.verify.log_reader import PATIENCE_S

ALL_TOPICS: Final = ".*"
"""All topics of a mirror."""
SILENCE_S: Final = 5.0
"""Seconds for which nothing must have been written to the source before a switchover."""
STEP_TIMEOUT_S: Final = 300.0
"""Seconds that each step of a switchover may take before all is left as it was."""


class MirrorAdmin:
    """An administrator of the mirrors of one destination cluster; an async context manager.

    Every method may raise, in addition to its own errors:

        UserError    a right is missing, or the destination refuses the client
        Retriable    a cluster is unreachable; the request is carried out or not, never half

    `MirrorRefused`, a UserError, has the KIP's name of its error in `kind`; nothing was changed.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Take a client's properties of the destination, as in a `--command-config` file.

        Raises:
            UserError: a property is missing or malformed.
        """
        of_client = dict(properties)
        self._topics = take_control_topics(of_client)
        self._properties: Final = dict(of_client)
        parsed = parse_config(of_client)
        self.warnings: Final = parsed.warnings
        """Properties that are not used, a line each."""
        self._config = parsed.config
        self._stack = AsyncExitStack()
        self._cluster: KafkaCluster

    async def __aenter__(self) -> Self:
        connected = mirrors.connected(self._config, "destination")
        self._cluster = await self._stack.enter_async_context(connected)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    @property
    def flows(self) -> FlowAdmin:
        """What only flows of MirrorMaker 2 have."""
        return FlowAdmin(self._cluster, self._topics, self.describe_mirrors)

    async def create_mirror(
        self, mirror: str, configs: Mapping[str, str], *, replication_factor: int | None = None
    ) -> CreateMirrorResult:
        """Create a mirror of the cluster that `configs` connect to.

        Args:
            mirror: the mirror's name.
            configs: properties of the source and the mirror, as in a `--mirror-config` file.
            replication_factor: of the topics that are created for it; None: the destination's
                default.

        Raises:
            MirrorRefused: INVALID_MIRROR_NAME, MIRROR_ALREADY_EXISTS.
            UserError: a setting is wrong, the source refuses the client, or is the destination
                itself.
        """
        stored = await mirrors.create_mirror(
            self._cluster,
            mirror,
            configs,
            replication_factor=replication_factor,
            topics=self._topics,
        )
        return CreateMirrorResult(mirror=stored.name, source_cluster_id=stored.source_cluster_id)

    async def add_topics_to_mirror(
        self,
        mirror: str,
        topics: str | Collection[str],
        *,
        replication_factor: int | None = None,
        rebuild: Rebuild | None = None,
    ) -> ChangedTopics:
        """Mirror topics of the source, all of these or none; return their names.

        Topics that match a regular expression later are added then.

        Args:
            mirror: the mirror's name.
            topics: see the module.
            replication_factor: of topics that are created; None: the mirror's.
            rebuild: permission to delete and recreate topics that were failed over, or removed from
                a mirror, and have diverged.

        Raises:
            MirrorRefused: UNKNOWN_MIRROR, UNKNOWN_TOPIC_OR_PARTITION, TOPIC_ALREADY_IN_MIRROR,
                MIRROR_TOPIC_BEING_REMOVED, TOPIC_ALREADY_EXISTS, INVALID_REGULAR_EXPRESSION,
                MIRROR_LOOP, MIRROR_TOPIC_DIVERGED.
            UserError: the source is another cluster, a configuration is refused.
        """
        names = await mirrors.add_topics(
            self._cluster,
            mirror,
            topics,
            replication_factor=replication_factor,
            rebuild=rebuild,
        )
        return ChangedTopics(mirror, "added", names)

    async def remove_topics_from_mirror(
        self, mirror: str, topics: str | Collection[str]
    ) -> ChangedTopics:
        """Fail over to the destination's topics: fenced, then writable; return their names.

        Raises:
            MirrorRefused: UNKNOWN_MIRROR, TOPIC_NOT_IN_MIRROR, MIRROR_TOPIC_BEING_REMOVED,
                INVALID_REGULAR_EXPRESSION.
        """
        names = await lifecycle.remove_topics(self._cluster, mirror, topics)
        return ChangedTopics(mirror, "removed", names)

    async def await_stopped(
        self,
        mirror: str,
        topics: Collection[str],
        *,
        timeout_s: float,
        tell: Callable[[str], None] = lambda _: None,
    ) -> tuple[DescribedPartition, ...]:
        """Wait until all partitions of removed topics are STOPPED; return them.

        A partition has a reason if foreign records were found, or nothing was fenced.

        Args:
            mirror: the mirror's name.
            topics: names of topics that were removed from it.
            timeout_s: how long to wait, in seconds.
            tell: receives now and then what is waited for, as text.

        Raises:
            MirrorRefused: UNKNOWN_MIRROR.
            Retriable: not in time, or the states cannot be read. The removal goes on.
        """
        store = MirrorStore(self._cluster)  # one for all looks: later ones read only news
        return await await_stopped(
            lambda: self._describe(store, [mirror]), frozenset(topics), timeout_s, tell
        )

    async def pause_mirror_topics(
        self, mirror: str, topics: str | Collection[str]
    ) -> ChangedTopics:
        """Stop copying topics, which stay read-only; return their names.

        Raises:
            MirrorRefused: UNKNOWN_MIRROR, TOPIC_NOT_IN_MIRROR, MIRROR_TOPIC_ALREADY_PAUSED,
                MIRROR_TOPIC_BEING_REMOVED, INVALID_REGULAR_EXPRESSION.
        """
        names = await lifecycle.pause_topics(self._cluster, mirror, topics)
        return ChangedTopics(mirror, "paused", names)

    async def resume_mirror_topics(
        self, mirror: str, topics: str | Collection[str]
    ) -> ChangedTopics:
        """Resume paused topics from where they are; return their names.

        Raises:
            MirrorRefused: UNKNOWN_MIRROR, TOPIC_NOT_IN_MIRROR, MIRROR_TOPIC_NOT_PAUSED,
                MIRROR_TOPIC_BEING_REMOVED, INVALID_REGULAR_EXPRESSION.
        """
        names = await lifecycle.resume_topics(self._cluster, mirror, topics)
        return ChangedTopics(mirror, "resumed", names)

    async def alter_mirror(self, mirror: str, configs: Mapping[str, str]) -> AlterMirrorResult:
        """Set these properties of a mirror, and keep the others; its lanes reconnect.

        Raises:
            MirrorRefused: UNKNOWN_MIRROR.
            UserError: a setting is wrong, or the source is another cluster then; or topics of a
                flow would have other remote names.
        """

        def check(snapshot: Snapshot) -> None:
            changed = lifecycle.altered(snapshot, mirror, configs, replaces=False)
            # Others are altered also where a policy cannot be loaded, or where topics have former
            # names for another reason.
            if changed.kind in FLOW_KINDS and may_rename(configs, changed.source):
                require_same_names(snapshot, mirror, changed.source)

        await lifecycle.alter_mirror(self._cluster, mirror, configs, check=check)
        return AlterMirrorResult(mirror=mirror, properties=tuple(sorted(configs)))

    async def delete_mirror(self, mirror: str) -> DeleteMirrorResult:
        """Delete a mirror without topics, or whose partitions are all STOPPED.

        The destination's topics stay, and so do the copied ACLs.

        Raises:
            MirrorRefused: UNKNOWN_MIRROR, MIRROR_NOT_EMPTY.
        """
        acls = await lifecycle.delete_mirror(self._cluster, mirror)
        return DeleteMirrorResult(mirror=mirror, copied_acls=tuple(map(str, sorted(acls))))

    async def list_mirrors(self) -> ListMirrorsResult:
        """List all mirrors; none if none was ever created."""
        snapshot = await MirrorStore(self._cluster).snapshot()
        return ListMirrorsResult(
            mirrors=tuple(
                MirrorListing(
                    mirror=mirror.name,
                    topics=len(snapshot.topics_of(mirror.name)),
                    source_cluster_id=mirror.source_cluster_id,
                    source_bootstrap=mirror.source.get("bootstrap.servers", ""),
                    config=shown(mirror.source),
                    not_mirrored=snapshot.not_mirrored(mirror.name),
                )
                for mirror in snapshot.mirrors.values()
            ),
            unreadable=tuple(snapshot.unreadable.values()),
        )

    async def describe_mirrors(
        self, mirrors: Collection[str] | None = None
    ) -> DescribeMirrorsResult:
        """Describe mirrors with their topics and partitions: these, or all.

        Raises:
            MirrorRefused: UNKNOWN_MIRROR.
        """
        return await self._describe(MirrorStore(self._cluster), mirrors)

    async def _describe(
        self, store: MirrorStore, mirrors: Collection[str] | None
    ) -> DescribeMirrorsResult:
        snapshot = await store.snapshot()
        for name in mirrors or ():
            if name not in snapshot.mirrors:
                raise unknown_mirror(name, snapshot)
        states = await store.states()
        statuses, unreadable = await store.statuses()
        ages = ages_of(statuses, time.time())
        descriptions = describe(snapshot, states, statuses.values(), mirrors, ages=ages)
        if partitions := without_log_end(descriptions):
            answers = await list_offsets(self._cluster, partitions, replica_id=DEBUGGING)
            ends = {p: end.offset for p, end in answers.items() if not isinstance(end, Refusal)}
            descriptions = describe(
                snapshot, states, statuses.values(), mirrors, log_ends=ends, ages=ages
            )
        return DescribeMirrorsResult(
            mirrors=descriptions,
            unreadable=(*snapshot.unreadable.values(), *states.unreadable.values(), *unreadable),
        )

    async def readiness(self, mirror: str, topics: str | Collection[str] = ALL_TOPICS) -> Readiness:
        """Judge whether topics can be failed over now, and what would be lost (docs/readiness.md).

        Nothing is changed. A source that does not answer is a finding, not an error.

        Raises:
            MirrorRefused: UNKNOWN_MIRROR, TOPIC_NOT_IN_MIRROR, MIRROR_TOPIC_BEING_REMOVED,
                INVALID_REGULAR_EXPRESSION.
        """
        from twinlog.operations.readiness.subject import subject_of  # noqa: PLC0415 (see the module)
        from twinlog.operations.readiness.survey import survey  # noqa: PLC0415 (see the module)

        return judge(await survey(self._cluster, await subject_of(self._cluster, mirror, topics)))

    async def verify(
        self,
        mirror: str | None = None,
        topics: re.Pattern[str] | None = None,
        *,
        master: str = "local[*]",
        spark_conf: Mapping[str, str] | None = None,
        patience_s: float = PATIENCE_S,
        progress: Callable[[JobProgress], None] = lambda _: None,
    ) -> Verification:
        """Compare both logs of each mirror partition, offset by offset, as a Spark job.

        Args:
            mirror: only this mirror; None: all.
            topics: only topics whose whole names match; None: all.
            master: where Spark runs, as for spark-submit.
            spark_conf: settings of Spark.
            patience_s: seconds for which an offset is requested without any progress before it is
                not seen.
            progress: receives how many tasks have ended, now and then, from another thread.

        Raises:
            MirrorRefused: UNKNOWN_MIRROR.
            UserError: there is nothing to compare.
        """
        config = VerifyConfig(
            destination=self._properties,
            mirror=mirror,
            topic=topics,
            master=master,
            spark_conf=spark_conf or {},
            patience=patience_s,
        )
        return await verify_mirrors(self._cluster, config, progress)

    async def switchover(
        self,
        mirror: str,
        topics: str | Collection[str] = ALL_TOPICS,
        *,
        producers: Producers | None = None,
        silence_s: float = SILENCE_S,
        timeout_s: float = STEP_TIMEOUT_S,
        tell: Tell = lambda _: None,
    ) -> SwitchedOver:
        """Fail topics over without losing a record, while both clusters run (docs/cli.md).

        If it ends before the failover, also by a cancellation, it removes what it has denied.

        Args:
            mirror: the mirror's name.
            topics: see the module.
            producers: what to do about the source's producers, and how an operator is asked in the
                middle of it; None: they are denied WRITE, and nobody is asked.
            silence_s: seconds for which nothing must have been written to the source.
            timeout_s: seconds that each step may take.
            tell: receives the progress of each step.

        Raises:
            ProducersNotStopped: producers may write, and cannot be denied it; nothing was changed.
            DenialsStay: it failed, and its denials could not be removed.
            SwitchoverFailed: it failed; `gone_back` is whether all is as it was.
        """
        from twinlog.operations.switchover.switchover import switch_over  # noqa: PLC0415 (see the module)

        return await switch_over(
            *(self._cluster, mirror, topics),
            producers=producers or Producers(),
            silence_s=silence_s,
            timeout_s=timeout_s,
            tell=tell,
        )

    async def allow_producers(
        self,
        mirror: str,
        topics: str = ALL_TOPICS,
        *,
        source_config: Mapping[str, str] | None = None,
    ) -> Allowed:
        """Remove what switchovers of a mirror have denied at its source.

        Args:
            mirror: the mirror's name.
            topics: a topic name or otherwise a regular expression.
            source_config: properties of a connection to the source that may alter its ACLs; None:
                the mirror's.

        Raises:
            MirrorRefused: UNKNOWN_MIRROR, INVALID_REGULAR_EXPRESSION.
            UserError: the source mirrors such a topic from the destination, has to keep it
                read-only, and has not taken its denials over.
        """
        from twinlog.operations.switchover.denials import allow_producers  # noqa: PLC0415 (see the module)

        return await allow_producers(self._cluster, mirror, topics, source_config=source_config)

    async def forget_denials(self, mirror: str, topics: str = ALL_TOPICS) -> ForgottenDenials:
        """Forget what switchovers have denied at a source that is gone for good.

        Raises:
            MirrorRefused: UNKNOWN_MIRROR, INVALID_REGULAR_EXPRESSION.
        """
        from twinlog.operations.switchover.denials import forget_denials  # noqa: PLC0415 (see the module)

        return await forget_denials(self._cluster, mirror, topics)

    @staticmethod
    def dump_log(file: Path) -> SegmentDump:
        """Decode a segment of `__mirror_state` that was copied from a broker; it needs no cluster.

        Raises:
            UserError: the file cannot be read.
        """
        return dump_log(file)
