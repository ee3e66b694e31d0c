"""The settings of one flow `A->B`, as MirrorMaker 2 of Kafka 4.3 has them (KIP-382, KIP-545).

`SETTINGS` is the one source for parsing (flow_settings_parser.py), messages and the manual
(docs/operations/mirror-maker.md). Names and defaults are those of MirrorMaker 2's classes, with
which tests/mirror/test_mirror_maker_java.py compares them. Beside them are:

- names that MirrorMaker 2 had until 3.9 (`removed`), with their meaning there;
- the settings of KIP-656, a draft that no MirrorMaker 2 has (`draft`);
- two settings of the source's consumer, since they decide which records are copied; twinlog's own.

A value is accepted if MirrorMaker 2 accepts it, with its own syntax: surrounding white space does
not count, `TRUE` is `true`, lists are separated by commas. Refused besides: an interval of 0 with
which its scheduler fails, a negative timeout, an empty alias, an impossible separator.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from twinlog.mirror.connect_offsets import CONNECTOR
from twinlog.mirror.pattern_lists import matches
from twinlog.mirror.reported_positions import is_position_group
from twinlog.mirror.setting_values import (
    MAX_INT,
    MAX_LONG,
    MAX_SHORT,
    FlowSetting,
    Names,
    choice,
    number,
    only,
    parse_alias,
    parse_connector,
    parse_flag,
    parse_formats,
    parse_interval,
    parse_names,
    parse_offset_reset,
    parse_separator,
    parse_task_interval,
    parse_text,
    replicas,
    split_set,
)

PACKAGE: Final = "org.apache.kafka.connect.mirror."
DEFAULT_POLICY: Final = PACKAGE + "DefaultReplicationPolicy"
IDENTITY_POLICY: Final = PACKAGE + "IdentityReplicationPolicy"
POLICY_PREFIX: Final = "replication.policy"
OFFSET_RESET: Final = "auto.offset.reset"
ISOLATION: Final = "isolation.level"
CONSUMER: Final = "consumer."
TRANSACTIONS: Final = "transaction.producer"
DATA_LOSS: Final = "twinlog.data.loss"
MAP: Final = "twinlog.offset.map"
TAKEOVER: Final = "twinlog.takeover"
TAKEOVER_CONNECTOR: Final = "twinlog.takeover.connector"
SOURCE_HEARTBEATS: Final = "twinlog.source.heartbeats.enabled"
SOURCE_OFFSETS: Final = "twinlog.source.offsets.interval.seconds"


_POSITIVE_MS: Final = number(1, MAX_LONG, "whole milliseconds, 1 or more")
_FLAG: Final = "true, false"
_REGEX: Final = "regular expressions, comma-separated"
_LEAVE: Final = "a stored flow loses what is not selected"
_LANES: Final = "twinlog distributes partitions over lanes by their load"
_NO_JMX: Final = "twinlog has no JMX metrics: see docs/metrics.md"
_ALL_GROUPS: Final = "no effect, as groups are listed whenever their offsets are translated"
_CLIENT_TIMEOUT: Final = "twinlog has the timeouts of its clients: default.api.timeout.ms"
_OFFSET_MAP: Final = "twinlog stores where each batch landed, so no offset is approximate"

_ROWS: Final = (
    FlowSetting("enabled", "false", parse_flag, _FLAG, "whether topics are mirrored from A to B"),
    FlowSetting(
        "source.cluster.alias",
        None,
        parse_alias,
        "name",
        "the source's name in remote topic names; by default A of `A->B`; stored flows keep it",
    ),
    FlowSetting(
        "target.cluster.alias",
        None,
        parse_alias,
        "name",
        "the target's name in names of internal topics; by default B of `A->B`",
    ),
    FlowSetting("topics", ".*", parse_names, _REGEX, f"topics that are mirrored; {_LEAVE}"),
    FlowSetting(
        "topics.exclude",
        r"mm2.*\.internal, .*\.replica, __.*",
        parse_names,
        _REGEX,
        f"topics that are not mirrored, although `topics` matches them; {_LEAVE}",
    ),
    FlowSetting(
        "topic.filter.class",
        PACKAGE + "DefaultTopicFilter",
        only(PACKAGE + "DefaultTopicFilter"),
        "class",
        "selects topics; only the default is supported",
    ),
    FlowSetting(
        "groups", ".*", parse_names, _REGEX, "groups for which checkpoints and offsets are written"
    ),
    FlowSetting(
        "groups.exclude",
        "console-consumer-.*, connect-.*, __.*",
        parse_names,
        _REGEX,
        "groups that are left out, although `groups` matches them",
    ),
    FlowSetting(
        "group.filter.class",
        PACKAGE + "DefaultGroupFilter",
        only(PACKAGE + "DefaultGroupFilter"),
        "class",
        "selects groups; only the default is supported",
    ),
    FlowSetting(
        "replication.policy.class",
        DEFAULT_POLICY,
        parse_text,
        "class",
        "names remote topics; `IdentityReplicationPolicy` changes no name; stored flows keep it",
    ),
    FlowSetting(
        "replication.policy.separator",
        ".",
        parse_separator,
        "text",
        "text between the source's alias and the topic in remote names; stored flows keep it",
    ),
    FlowSetting(
        "replication.policy.internal.topic.separator.enabled",
        "true",
        parse_flag,
        _FLAG,
        "whether names of checkpoint and offset-sync topics have the separator, too; else `.`",
    ),
    FlowSetting(
        "replication.factor",
        "2",
        replicas(MAX_INT),
        "replicas",
        "replication factor of remote topics that are created; -1: the target's default",
    ),
    FlowSetting(
        "refresh.topics.enabled",
        "true",
        parse_flag,
        _FLAG,
        "whether the source is checked for new topics",
    ),
    FlowSetting(
        "refresh.topics.interval.seconds",
        "600",
        parse_interval,
        "seconds",
        "time between two checks for new topics",
    ),
    FlowSetting(
        "refresh.groups.enabled",
        "true",
        parse_flag,
        _FLAG,
        "whether the source is checked for new groups",
        differs=_ALL_GROUPS,
    ),
    FlowSetting(
        "refresh.groups.interval.seconds",
        "600",
        parse_interval,
        "seconds",
        "time between two checks for new groups",
        differs=_ALL_GROUPS,
    ),
    FlowSetting(
        "sync.topic.configs.enabled",
        "true",
        parse_flag,
        _FLAG,
        "whether configurations of remote topics follow the source's",
    ),
    FlowSetting(
        "sync.topic.configs.interval.seconds",
        "600",
        parse_interval,
        "seconds",
        "time between two copies of configurations",
    ),
    FlowSetting(
        "config.properties.exclude",
        "follower.replication.throttled.replicas, leader.replication.throttled.replicas, "
        "message.timestamp.difference.max.ms, log.message.timestamp.before.max.ms, "
        "log.message.timestamp.after.max.ms, message.timestamp.type, "
        "unclean.leader.election.enable, min.insync.replicas",
        parse_names,
        _REGEX,
        "topic configurations that are not copied",
    ),
    FlowSetting(
        "use.defaults.from",
        "target",
        choice("source", "target"),
        "source, target",
        "which cluster's value a remote topic has where the source topic has Kafka's default",
        everywhere=False,
    ),
    FlowSetting(
        "config.property.filter.class",
        PACKAGE + "DefaultConfigPropertyFilter",
        only(PACKAGE + "DefaultConfigPropertyFilter"),
        "class",
        "selects topic configurations; only the default is supported",
    ),
    FlowSetting(
        "sync.topic.acls.enabled",
        "true",
        parse_flag,
        _FLAG,
        "whether ACLs of remote topics follow the source's, without rights to write",
        differs="twinlog also removes what it has copied, when the source no longer has it",
    ),
    FlowSetting(
        "sync.topic.acls.interval.seconds",
        "600",
        parse_interval,
        "seconds",
        "time between two copies of ACLs",
    ),
    FlowSetting(
        "emit.heartbeats.enabled",
        "true",
        parse_flag,
        _FLAG,
        "whether heartbeats of A->B are written to B; also where no topic is mirrored",
    ),
    FlowSetting(
        "emit.heartbeats.interval.seconds",
        "1",
        parse_task_interval,
        "seconds",
        "time between heartbeats",
    ),
    FlowSetting(
        "heartbeats.topic.replication.factor",
        "3",
        replicas(MAX_SHORT),
        "replicas",
        "replication factor of the topic `heartbeats`",
    ),
    FlowSetting(
        "heartbeats.replication.enabled",
        "true",
        parse_flag,
        _FLAG,
        "whether heartbeats topics are mirrored even if `topics` does not match them",
    ),
    FlowSetting(
        "emit.checkpoints.enabled",
        "true",
        parse_flag,
        _FLAG,
        "whether translated offsets of groups are written to `A.checkpoints.internal` on B",
    ),
    FlowSetting(
        "emit.checkpoints.interval.seconds",
        "60",
        parse_task_interval,
        "seconds",
        "time between checkpoints",
    ),
    FlowSetting(
        "checkpoints.topic.replication.factor",
        "3",
        replicas(MAX_SHORT),
        "replicas",
        "replication factor of the checkpoints topic",
    ),
    FlowSetting(
        "sync.group.offsets.enabled",
        "false",
        parse_flag,
        _FLAG,
        "whether translated offsets are committed on B, for groups without members there "
        "(KIP-545); needs checkpoints",
    ),
    FlowSetting(
        "sync.group.offsets.interval.seconds",
        "60",
        parse_interval,
        "seconds",
        "time between two commits",
    ),
    FlowSetting(
        "emit.offset-syncs.enabled",
        "true",
        parse_flag,
        _FLAG,
        "whether positions of records on both sides are written for MirrorMaker 2's tools, also "
        "without checkpoints; without them there are no checkpoints",
    ),
    FlowSetting(
        "offset-syncs.topic.location",
        "source",
        choice("source", "target"),
        "source, target",
        "which cluster has the topic of recorded positions",
        differs="for MirrorMaker 2's tools only: the offset map is on the target",
    ),
    FlowSetting(
        "offset-syncs.topic.replication.factor",
        "3",
        replicas(MAX_SHORT),
        "replicas",
        "replication factor of the topic of recorded positions",
    ),
    FlowSetting(
        "offset.lag.max",
        "100",
        number(-MAX_LONG - 1, MAX_LONG, "a whole number of records"),
        "records",
        "how far a recorded position may be behind",
        differs=_OFFSET_MAP,
    ),
    FlowSetting(
        "tasks.max",
        "1",
        number(1, MAX_INT, f"a whole number from 1 to {MAX_INT}"),
        "tasks",
        "how many Connect tasks share the flow",
        differs=_LANES,
    ),
    FlowSetting(
        "tasks.max.enforce", "true", parse_flag, _FLAG, "whether more tasks fail", differs=_LANES
    ),
    FlowSetting(
        "admin.timeout.ms",
        "60000",
        _POSITIVE_MS,
        "ms",
        "timeout of administrative steps",
        differs=_CLIENT_TIMEOUT,
    ),
    FlowSetting(
        "consumer.poll.timeout.ms",
        "1000",
        _POSITIVE_MS,
        "ms",
        "longest wait of a consumer's poll",
        differs="twinlog has no consumer that polls; a Fetch waits on the broker",
    ),
    FlowSetting(
        "forwarding.admin.class",
        "org.apache.kafka.clients.admin.ForwardingAdmin",
        only("org.apache.kafka.clients.admin.ForwardingAdmin"),
        "class",
        "creates topics; only the default is supported",
    ),
    FlowSetting(
        "metric.names.formats",
        "legacy",
        parse_formats,
        "legacy, new",
        "names of JMX metrics",
        differs=_NO_JMX,
    ),
    FlowSetting(
        "metric.reporters",
        "org.apache.kafka.common.metrics.JmxReporter",
        split_set,
        "classes, comma-separated",
        "Java classes that report metrics",
        differs=_NO_JMX,
    ),
    FlowSetting(
        "add.source.alias.to.metrics",
        "false",
        parse_flag,
        _FLAG,
        "whether metrics have the source's alias",
        differs=_NO_JMX,
        origin="removed",
    ),
    FlowSetting(
        "connector.type",
        "source",
        choice("source", "sink"),
        "source, sink",
        "KIP-656: `sink` also commits positions on the source; `source` is MirrorMaker 2's way",
        differs="one engine copies for both, without a connector, exactly once",
        origin="draft",
    ),
    FlowSetting(
        TRANSACTIONS,
        "false",
        parse_flag,
        _FLAG,
        "KIP-656: whether records and positions are written in transactions on the target; flows "
        "with transforms always do it, and others are exactly once without it",
        origin="draft",
    ),
    FlowSetting(
        DATA_LOSS,
        "fail",
        choice("fail", "continue"),
        "fail, continue",
        "what happens if records are deleted before they were copied, a source topic is recreated, "
        "or the target loses copies: the partition is FAILED, or the flow reports it and goes on",
        origin="twinlog",
    ),
    FlowSetting(
        TAKEOVER,
        "refuse",
        choice("refuse", "compare", "recorded", "ignore"),
        "refuse, compare, recorded, ignore",
        "how the flow begins in a remote topic that MirrorMaker 2 has filled",
        origin="twinlog",
    ),
    FlowSetting(
        TAKEOVER_CONNECTOR,
        CONNECTOR,
        parse_connector,
        "name",
        "MirrorMaker 2's source connector, in a Connect cluster of your own; then only what this "
        "one has recorded counts, at a takeover and a hand-back",
        origin="twinlog",
    ),
    FlowSetting(
        SOURCE_OFFSETS,
        "60",
        parse_interval,
        "seconds",
        "time between two commits of the flow's positions on the source, for its tools; only with "
        "`connector.type=sink`, `transaction.producer` or transforms",
        origin="twinlog",
    ),
    FlowSetting(
        SOURCE_HEARTBEATS,
        "false",
        parse_flag,
        _FLAG,
        "whether A->B's nodes write heartbeats of B->A to A; `twinlog mirror-maker` does without",
        origin="twinlog",
    ),
    FlowSetting(
        MAP,
        "false",
        parse_flag,
        _FLAG,
        "whether offsets are translated with transforms or `transaction.producer`, too; needed for "
        "checkpoints and `flows translate` without `sync.group.offsets.enabled`",
        origin="twinlog",
    ),
    FlowSetting(
        CONSUMER + OFFSET_RESET,
        "earliest",
        parse_offset_reset,
        "earliest, latest, none, by_duration:PnDTnHnMnS",
        "where a partition begins that the flow has not mirrored before",
        everywhere=False,
        differs="none, by_duration are refused; with latest, what is added later is copied whole",
        origin="client",
    ),
    FlowSetting(
        CONSUMER + ISOLATION,
        "read_uncommitted",
        choice("read_uncommitted", "read_committed"),
        "read_uncommitted, read_committed",
        "whether records of aborted and open transactions are copied, too",
        everywhere=False,
        differs="only committed records are copied",
        origin="client",
    ),
)

SETTINGS: Final[Mapping[str, FlowSetting]] = {row.name: row for row in _ROWS}


def field_name(setting: str) -> str:
    """The field of `FlowSettings` for a setting."""
    return setting.replace(".", "_").replace("-", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    """The settings of one flow: a field for each of `SETTINGS`, `.` and `-` written as `_`.

    Intervals are in seconds, and a negative one means *never*. A replication factor of -1 is the
    cluster's default.
    """

    enabled: bool
    source_cluster_alias: str
    target_cluster_alias: str
    topics: Names
    topics_exclude: Names
    topic_filter_class: str
    groups: Names
    groups_exclude: Names
    group_filter_class: str
    replication_policy_class: str
    replication_policy_separator: str
    replication_policy_internal_topic_separator_enabled: bool
    replication_factor: int
    refresh_topics_enabled: bool
    refresh_topics_interval_seconds: int
    refresh_groups_enabled: bool
    refresh_groups_interval_seconds: int
    sync_topic_configs_enabled: bool
    sync_topic_configs_interval_seconds: int
    config_properties_exclude: Names
    use_defaults_from: str
    config_property_filter_class: str
    sync_topic_acls_enabled: bool
    sync_topic_acls_interval_seconds: int
    emit_heartbeats_enabled: bool
    emit_heartbeats_interval_seconds: int
    heartbeats_topic_replication_factor: int
    heartbeats_replication_enabled: bool
    emit_checkpoints_enabled: bool
    emit_checkpoints_interval_seconds: int
    checkpoints_topic_replication_factor: int
    sync_group_offsets_enabled: bool
    sync_group_offsets_interval_seconds: int
    emit_offset_syncs_enabled: bool
    offset_syncs_topic_location: str
    offset_syncs_topic_replication_factor: int
    offset_lag_max: int
    tasks_max: int
    tasks_max_enforce: bool
    admin_timeout_ms: int
    consumer_poll_timeout_ms: int
    forwarding_admin_class: str
    metric_names_formats: tuple[str, ...]
    metric_reporters: tuple[str, ...]
    add_source_alias_to_metrics: bool
    connector_type: str
    transaction_producer: bool
    twinlog_data_loss: str
    twinlog_takeover: str
    twinlog_takeover_connector: str
    twinlog_source_offsets_interval_seconds: int
    twinlog_source_heartbeats_enabled: bool
    twinlog_offset_map: bool
    consumer_auto_offset_reset: str
    consumer_isolation_level: str

    @property
    def passes_lost(self) -> bool:
        """Whether the flow goes on where records are lost."""
        return self.twinlog_data_loss == "continue"

    @property
    def refreshes_topics(self) -> bool:
        """Whether the source is checked for new topics again, when the flow has all that it had."""
        return self.refresh_topics_enabled and self.refresh_topics_interval_seconds > 0

    @property
    def syncs_topic_configs(self) -> bool:
        """Whether configurations of remote topics follow the source's."""
        return self.sync_topic_configs_enabled and self.sync_topic_configs_interval_seconds > 0

    @property
    def syncs_topic_acls(self) -> bool:
        """Whether ACLs of remote topics follow the source's."""
        return self.sync_topic_acls_enabled and self.sync_topic_acls_interval_seconds > 0

    @property
    def emits_heartbeats(self) -> bool:
        """Whether heartbeats are written to the target."""
        return self.emit_heartbeats_enabled and self.emit_heartbeats_interval_seconds > 0

    @property
    def emits_checkpoints(self) -> bool:
        """Whether checkpoints are written: the flow mirrors topics and records positions."""
        emits = self.emit_checkpoints_enabled and self.emit_checkpoints_interval_seconds > 0
        return self.enabled and self.emit_offset_syncs_enabled and emits

    @property
    def syncs_group_offsets(self) -> bool:
        """Whether offsets of groups are committed on the target; KIP-545: not w/o checkpoints."""
        syncs = self.sync_group_offsets_enabled and self.sync_group_offsets_interval_seconds > 0
        return self.emits_checkpoints and syncs

    def selects_topic(self, name: str) -> bool:
        """Whether `topics` and `topics.exclude` select a topic (`DefaultTopicFilter`).

        The replication policy decides besides: internal topics and cycles are never mirrored.
        """
        return matches(self.topics, name) and not matches(self.topics_exclude, name)

    def selects_group(self, name: str) -> bool:
        """Whether `groups` and `groups.exclude` select a group (`DefaultGroupFilter`).

        A group with the positions of a flow to this source never is: they are no offsets of it.
        """
        selected = matches(self.groups, name) and not matches(self.groups_exclude, name)
        return selected and not is_position_group(name)
