"""The names in MirrorMaker 2's properties file that are not settings of a flow.

- `HEARTBEAT_SETTINGS`: those of settings that a flow has which only writes heartbeats.
- `CLIENT_NAMES`: connection properties of all clients (`MirrorClientConfig.CLIENT_CONFIG_DEF`).
- `ROLE_NAMES`: further properties of consumers, producers and admin clients.
- `CONNECTOR_NAMES`: what MirrorMaker 2 reads without a prefix, for all flows.
- `REASONS`: properties of Kafka Connect that have no meaning here, each with the reason.
- `CONNECT_NAMES`: those of them that have one name.
- `CLIENT_REASONS`: properties of clients that twinlog does not need, each with the reason.
- `DRAFT_NAMES`, `REMOTE_ADMIN`: names of KIP-382's table that no MirrorMaker 2 has ever read.

tests/mirror/test_mirror_maker_java.py compares the first four with Kafka 4.3's own.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from twinlog.mirror.config_providers import PROVIDERS
from twinlog.mirror.flow_settings import SETTINGS

FORMER_NAMES: Final[Mapping[str, str]] = {
    "topics.blacklist": "topics.exclude",
    "groups.blacklist": "groups.exclude",
    "config.properties.blacklist": "config.properties.exclude",
}
"""Names until Kafka 3.9. If both are set, at whatever level, the present name counts (as there)."""

HEARTBEAT_SETTINGS: Final = frozenset(
    {
        "enabled",
        "source.cluster.alias",
        "target.cluster.alias",
        "emit.heartbeats.enabled",
        "emit.heartbeats.interval.seconds",
        "heartbeats.topic.replication.factor",
        "replication.policy.class",
        "replication.policy.separator",
        "replication.policy.internal.topic.separator.enabled",
        "admin.timeout.ms",
        "forwarding.admin.class",
        "metric.reporters",
        "tasks.max",
        "tasks.max.enforce",
    }
)
"""Settings of a flow that only writes heartbeats: those of `MirrorHeartbeatConfig`."""

ROLES: Final = ("consumer", "producer", "admin")
SIDES: Final = ("source", "target")
BOOTSTRAP: Final = "bootstrap.servers"
TRANSFORMS: Final = "transforms"
INTERCEPTORS: Final = "interceptor.classes"
BYTES_CONVERTER: Final = "ByteArrayConverter"
CREATION: Final = "topic.creation."
"""How Connect's worker creates topics that do not exist."""
CREATION_ENABLED: Final = f"{CREATION}enable"
"""Whether it does; a property of the worker, and not of a connector."""

CLIENT_NAMES: Final = (
    BOOTSTRAP,
    "security.protocol",
    *(
        f"ssl.{name}"
        for name in (
            "cipher.suites",
            "enabled.protocols",
            "endpoint.identification.algorithm",
            "engine.factory.class",
            "key.password",
            "keymanager.algorithm",
            "keystore.certificate.chain",
            "keystore.key",
            "keystore.location",
            "keystore.password",
            "keystore.type",
            "protocol",
            "provider",
            "secure.random.implementation",
            "trustmanager.algorithm",
            "truststore.certificates",
            "truststore.location",
            "truststore.password",
            "truststore.type",
        )
    ),
    *(
        f"sasl.{name}"
        for name in (
            "client.callback.handler.class",
            "jaas.config",
            "kerberos.kinit.cmd",
            "kerberos.min.time.before.relogin",
            "kerberos.service.name",
            "kerberos.ticket.renew.jitter",
            "kerberos.ticket.renew.window.factor",
            "login.callback.handler.class",
            "login.class",
            "login.connect.timeout.ms",
            "login.read.timeout.ms",
            "login.refresh.buffer.seconds",
            "login.refresh.min.period.seconds",
            "login.refresh.window.factor",
            "login.refresh.window.jitter",
            "login.retry.backoff.max.ms",
            "login.retry.backoff.ms",
            "mechanism",
        )
    ),
    *(
        f"sasl.oauthbearer.{name}"
        for name in (
            "assertion.algorithm",
            "assertion.claim.aud",
            "assertion.claim.exp.seconds",
            "assertion.claim.iss",
            "assertion.claim.jti.include",
            "assertion.claim.nbf.seconds",
            "assertion.claim.sub",
            "assertion.file",
            "assertion.private.key.file",
            "assertion.private.key.passphrase",
            "assertion.template.file",
            "client.credentials.client.id",
            "client.credentials.client.secret",
            "clock.skew.seconds",
            "expected.audience",
            "expected.issuer",
            "header.urlencode",
            "jwks.endpoint.refresh.ms",
            "jwks.endpoint.retry.backoff.max.ms",
            "jwks.endpoint.retry.backoff.ms",
            "jwks.endpoint.url",
            "jwt.retriever.class",
            "jwt.validator.class",
            "scope",
            "scope.claim.name",
            "sub.claim.name",
            "token.endpoint.url",
        )
    ),
)

_COMMON: Final = frozenset(
    {
        "client.dns.lookup",
        "client.id",
        "config.providers",
        "connections.max.idle.ms",
        "enable.metrics.push",
        "metadata.max.age.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "security.providers",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    }
)

ROLE_NAMES: Final[Mapping[str, frozenset[str]]] = {
    "consumer": _COMMON
    | {
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "check.crcs",
        "client.rack",
        "default.api.timeout.ms",
        "enable.auto.commit",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        INTERCEPTORS,
        "internal.throw.on.fetch.stable.offset.unsupported",
        "isolation.level",
        "key.deserializer",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "partition.assignment.strategy",
        "session.timeout.ms",
        "share.acknowledgement.mode",
        "share.acquire.mode",
        "value.deserializer",
    },
    "producer": _COMMON
    | {
        "acks",
        "batch.size",
        "buffer.memory",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "delivery.timeout.ms",
        "enable.idempotence",
        INTERCEPTORS,
        "key.serializer",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.request.size",
        "metadata.max.idle.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "partitioner.class",
        "partitioner.ignore.keys",
        "retries",
        "transaction.timeout.ms",
        "transaction.two.phase.commit.enable",
        "transactional.id",
        "value.serializer",
    },
    "admin": _COMMON | {"bootstrap.controllers", "default.api.timeout.ms", "retries"},
}

_OF_CONNECTORS: Final = (
    "name",
    "connector.class",
    "connector.plugin.version",
    "key.converter",
    "key.converter.plugin.version",
    "value.converter",
    "value.converter.plugin.version",
    "header.converter",
    "header.converter.plugin.version",
    TRANSFORMS,
    "predicates",
    "config.action.reload",
    "errors.retry.timeout",
    "errors.retry.delay.max.ms",
    "errors.tolerance",
    "errors.log.enable",
    "errors.log.include.messages",
    PROVIDERS,
)
"""Properties of every Connect connector, of which MirrorMaker 2's are three."""

CONNECTOR_NAMES: Final = frozenset(
    {
        *(name for name, setting in SETTINGS.items() if setting.everywhere),
        *FORMER_NAMES,
        *_OF_CONNECTORS,
        *(name for name in CLIENT_NAMES if name != BOOTSTRAP),
    }
)
"""Properties that a flow has from a line without prefix."""

_WORKER: Final = "twinlog has no Connect worker"
_REST: Final = "twinlog has no Connect worker and no REST server of one"
_STORAGE: Final = "twinlog keeps its state in control topics of its own (docs/operations)"
_CONVERTER: Final = "twinlog copies the bytes of keys, values and headers unchanged"
_FLUSH: Final = (
    "twinlog stores positions with the records; how often a sink commits them on its source is "
    "twinlog.source.offsets.interval.seconds"
)
_TOPICS: Final = "twinlog creates remote topics itself, as MirrorMaker 2 does"
_EXACTLY_ONCE: Final = "twinlog's flows need no setting for that (docs/decisions, 0014)"
_BOUNDARY: Final = "a setting of Connect's exactly-once mode"
_ERRORS: Final = "twinlog skips no record: a partition that cannot go on is FAILED"

_TOPIC_CONFIGS: Final = (
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "index.interval.bytes",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.downconversion.enable",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
)
"""Configurations of topics: Connect takes any of them for its own topics, too."""
_OF_CONNECTS_TOPICS: Final = frozenset(
    f"{kind}.storage.{name}" for kind in ("offset", "config", "status") for name in _TOPIC_CONFIGS
)

REASONS: Final[Mapping[str, str]] = {
    "dedicated.mode.enable.internal.rest": _REST,
    "listeners": _REST,
    "listeners.https.*": _REST,
    "rest.advertised.host.name": _REST,
    "rest.advertised.listener": _REST,
    "rest.advertised.port": _REST,
    "rest.extension.classes": _REST,
    "rest.host.name": _REST,
    "rest.port": _REST,
    "admin.listeners": _REST,
    "admin.listeners.https.*": _REST,
    "access.control.allow.methods": _REST,
    "access.control.allow.origin": _REST,
    "response.http.headers.config": _REST,
    "ssl.client.auth": _REST,
    "inter.worker.key.generation.algorithm": _REST,
    "inter.worker.key.size": _REST,
    "inter.worker.key.ttl.ms": _REST,
    "inter.worker.signature.algorithm": _REST,
    "inter.worker.verification.algorithms": _REST,
    "offset.storage.topic": _STORAGE,
    "offset.storage.partitions": _STORAGE,
    "offset.storage.replication.factor": _STORAGE,
    "offset.storage.file.filename": _STORAGE,
    "config.storage.topic": _STORAGE,
    "config.storage.replication.factor": _STORAGE,
    "status.storage.topic": _STORAGE,
    "status.storage.partitions": _STORAGE,
    "status.storage.replication.factor": _STORAGE,
    "offsets.storage.topic": _STORAGE,
    "offset.flush.interval.ms": _FLUSH,
    "offset.flush.timeout.ms": _FLUSH,
    "group.id": _WORKER,
    "client.id": _WORKER,
    "plugin.discovery": _WORKER,
    "plugin.path": _WORKER,
    "worker.sync.timeout.ms": _WORKER,
    "worker.unsync.backoff.ms": _WORKER,
    "task.shutdown.graceful.timeout.ms": _WORKER,
    "task.class": _WORKER,
    "task.index": _WORKER,
    "task.assigned.groups": _WORKER,
    "task.assigned.partitions": _WORKER,
    "connect.protocol": _WORKER,
    "connector.client.config.override.policy": _WORKER,
    "scheduled.rebalance.max.delay.ms": _WORKER,
    "rebalance.timeout.ms": _WORKER,
    "session.timeout.ms": _WORKER,
    "heartbeat.interval.ms": _WORKER,
    "topic.tracking.allow.reset": _WORKER,
    "topic.tracking.enable": _WORKER,
    CREATION_ENABLED: _TOPICS,
    f"{CREATION}groups": _TOPICS,
    f"{CREATION}*.*": _TOPICS,
    "exactly.once.source.support": _EXACTLY_ONCE,
    "exactly.once.support": _EXACTLY_ONCE,
    "transaction.boundary": _BOUNDARY,
    "transaction.boundary.interval.ms": _BOUNDARY,
    "key.converter": _CONVERTER,
    "key.converter.*": _CONVERTER,
    "value.converter": _CONVERTER,
    "value.converter.*": _CONVERTER,
    "header.converter": _CONVERTER,
    "header.converter.*": _CONVERTER,
    "internal.key.converter": _CONVERTER,
    "internal.key.converter.*": _CONVERTER,
    "internal.value.converter": _CONVERTER,
    "internal.value.converter.*": _CONVERTER,
    "errors.deadletterqueue.context.headers.enable": _ERRORS,
    "errors.deadletterqueue.topic.name": _ERRORS,
    "errors.deadletterqueue.topic.replication.factor": _ERRORS,
    "errors.log.enable": _ERRORS,
    "errors.log.include.messages": _ERRORS,
    "errors.retry.delay.max.ms": _ERRORS,
    "errors.retry.timeout": _ERRORS,
    "errors.tolerance": _ERRORS,
    "name": "twinlog has no connectors to name",
    "connector.class": "twinlog has no connectors",
    "connector.plugin.version": "twinlog has no connectors",
    "config.action.reload": "twinlog reads secrets again for each connection",
    "predicates": "they decide only where a transform applies",
}
"""By name. `*` stands for what is free: the alias of a group, properties of a class or of TLS.

A name that is only similar is none of Connect's: its author has misspelt it.
"""

CONNECT_NAMES: Final = frozenset(name for name in REASONS if "*" not in name)
_FREE_NAMES: Final = {name: why for name, why in REASONS.items() if "*" in name}

_AS_COMPRESSED: Final = "twinlog copies batches as their producers compressed them"
_LANE_SIZES: Final = "sizes of requests are settings of a lane (docs/operations/settings.md)"
_NO_GROUP: Final = "a flow is no consumer group"

CLIENT_REASONS: Final[Mapping[str, str]] = {
    "compression.type": _AS_COMPRESSED,
    "compression.gzip.level": _AS_COMPRESSED,
    "compression.lz4.level": _AS_COMPRESSED,
    "compression.zstd.level": _AS_COMPRESSED,
    "batch.size": "twinlog copies batches as their producers made them",
    "linger.ms": "twinlog copies batches as their producers made them",
    "buffer.memory": _LANE_SIZES,
    "max.request.size": _LANE_SIZES,
    "fetch.max.bytes": _LANE_SIZES,
    "max.partition.fetch.bytes": _LANE_SIZES,
    "acks": "twinlog always writes with acks=all",
    "enable.idempotence": "twinlog's writes are always idempotent",
    "group.id": _NO_GROUP,
    "session.timeout.ms": _NO_GROUP,
    "heartbeat.interval.ms": _NO_GROUP,
    "max.poll.interval.ms": _NO_GROUP,
    "partition.assignment.strategy": _NO_GROUP,
    "partitioner.class": "records keep their partition, as in MirrorMaker 2",
}
"""Why twinlog's client does not use a property of Kafka's clients."""

DRAFT_NAMES: Final[Mapping[str, str]] = {
    "topics.whitelist": "topics",
    "groups.whitelist": "groups",
    "sync.topic.configs": "sync.topic.configs.enabled",
    "sync.topic.acls": "sync.topic.acls.enabled",
    "sync.group.offsets": "sync.group.offsets.enabled",
    "emit.heartbeats": "emit.heartbeats.enabled",
    "emit.checkpoints": "emit.checkpoints.enabled",
    "refresh.topics": "refresh.topics.enabled",
    "refresh.groups": "refresh.groups.enabled",
    "rename.topics": "replication.policy.class",
    "readahead.queue.capacity": "",
    "heartbeat.retention.ms": "",
    "checkpoint.retention.ms": "",
    "heartbeats.replication.factor": "heartbeats.topic.replication.factor",
    "checkpoints.replication.factor": "checkpoints.topic.replication.factor",
    "offset-syncs.replication.factor": "offset-syncs.topic.replication.factor",
}
"""Names of KIP-382 and of old examples, with what is read instead (empty: nothing)."""
REMOTE_ADMIN: Final = "remote.admin."
"""KIP-382's prefix of what its connectors give the admin client of the other cluster."""


def reason(name: str) -> str | None:
    """Why a property of Kafka Connect has no meaning here; None: it is not one of Connect's."""
    if name in CONNECT_NAMES:
        return REASONS[name]
    if name in _OF_CONNECTS_TOPICS:
        return _STORAGE
    return next((why for free, why in _FREE_NAMES.items() if fnmatchcase(name, free)), None)


def role_of(name: str) -> str | None:
    """The role whose properties MirrorMaker 2 takes a cluster's property for.

    Its rule is the beginning of the name, without a dot: `^consumer.*|^producer.*|^admin.*`.
    """
    return next((role for role in ROLES if name.startswith(role)), None)


def is_client_property(role: str, name: str) -> bool:
    """Whether Kafka's clients of this role know a property."""
    return name in CLIENT_NAMES or name in ROLE_NAMES[role]


def read_instead(name: str, aliases: Sequence[str]) -> str:
    """What is read instead of a name of KIP-382, as the end of a sentence."""
    if name.startswith(REMOTE_ADMIN):
        of_clusters = [f"{alias}.{name.removeprefix('remote.')}" for alias in aliases[:2]]
        return f"; write {' or '.join(of_clusters)}"
    return f"; it reads {DRAFT_NAMES[name]}" if DRAFT_NAMES[name] else ""
